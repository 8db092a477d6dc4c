#!/bin/sh
# What a GPU machine without a network needs beside its own JAX and PyTorch, in one folder that travels with the tree.
# Run:  sh benchmarks/h200/pack.sh [FOLDER] [PYTHON_VERSION] [bench|mudd]      (default: .device 3.12 bench)
#       bench: text of benchmarks/corpus.py, tokenizers llama3.1 and gpt2; mudd: text of muddformer_text.py, gpt-neox-20b
# Then: PYTHONPATH=$PWD/src:$PWD/FOLDER/site python benchmarks/h200/train.py --text 'FOLDER/data/text-*.jsonl.gz' --tokenizers FOLDER/data
# or:   PYTHONPATH=$PWD/src:$PWD/FOLDER/site python benchmarks/h200/muddformer.py --text FOLDER/data --tokenizer FOLDER/data/gpt-neox-20b --out RUNS.jsonl
set -eu
folder=${1:-.device}
version=${2:-3.12}
data=${3:-bench}
case $data in bench | mudd) ;; *) echo "found $data; needed bench or mudd" >&2 && exit 2 ;; esac
cached=$HOME/.cache/ponente-data
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder/site" "$folder/data" "$folder/wheels"
wanted='braceexpand|draccus|execnet|fastokens|google-crc32c|iniconfig|isal|jaxtyping|markdown-it-py|mdurl|mergedeep|msgspec'
wanted="$wanted|mypy-extensions|pluggy|pygments|pytest|pytest-timeout|pytest-xdist|pyyaml|rich|toml|typing-inspect|wadler-lindig"
grep -oE "^($wanted)==[^ ;]+" "$here/requirements.lock" | sort -u > "$folder/wanted.txt"
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --python-version "$version" \
	--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest "$folder/wheels" -r "$folder/wanted.txt"
for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
rm -r "$folder/wheels" "$folder/wanted.txt"
if [ "$data" = mudd ]; then
	cp -r "$cached/tokenizers/gpt-neox-20b" "$folder/data/"
	cp "$cached"/mudd/train.jsonl.xz "$cached"/mudd/validation.jsonl.xz "$folder/data/"
else
	for name in llama3.1 gpt2; do cp -r "$cached/tokenizers/$name" "$folder/data/"; done
	cp "$cached"/bench/text-*/gz/text-0000[012].jsonl.gz "$folder/data/"
fi
du -sh "$folder"
