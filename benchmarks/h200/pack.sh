#!/bin/sh
# What a GPU machine without a network needs beside its own JAX and PyTorch, in one folder that travels with the tree.
# Run:  sh benchmarks/h200/pack.sh [FOLDER] [PYTHON_VERSION]      (default: .device 3.12; text of benchmarks/corpus.py)
# Then: PYTHONPATH=$PWD/src:$PWD/FOLDER/site python benchmarks/h200/train.py --text 'FOLDER/data/text-*.jsonl.gz' --tokenizers FOLDER/data
set -eu
folder=${1:-.device}
version=${2:-3.12}
cached=$HOME/.cache/ponente-data
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder/site" "$folder/data" "$folder/wheels"
wanted='braceexpand|draccus|fastokens|google-crc32c|iniconfig|isal|jaxtyping|markdown-it-py|mdurl|mergedeep|msgspec'
wanted="$wanted|mypy-extensions|pluggy|pygments|pytest|pytest-timeout|pyyaml|rich|toml|typing-inspect|wadler-lindig"
grep -oE "^($wanted)==[^ ;]+" "$here/requirements.lock" | sort -u > "$folder/wanted.txt"
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: --python-version "$version" \
	--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest "$folder/wheels" -r "$folder/wanted.txt"
for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
rm -r "$folder/wheels" "$folder/wanted.txt"
for name in llama3.1 gpt2; do cp -r "$cached/tokenizers/$name" "$folder/data/"; done
cp "$cached"/bench/text-*/gz/text-0000[012].jsonl.gz "$folder/data/"
du -sh "$folder"
