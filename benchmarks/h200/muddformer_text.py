"""Real text for a pair of models: novels, documentation, essays and code, small enough to travel to a GPU machine.

Run:  .venv/bin/python benchmarks/h200/muddformer_text.py [--tokenizer FOLDER]      (minutes; needs a network)
Then: python experiments/muddformer_pair.py --data.train_urls train.jsonl.xz --data.validation_urls validation.jsonl.xz
      --data.format.type text --data.shuffle true --data.tokenizer FOLDER [--trainer.num_train_steps 400 …]
In:   the novels of ../shared/data, two Debian packages, the .py files of a wheel, by benchmarks/corpus.py.
Out:  ~/.cache/ponente-data/mudd/train.jsonl.xz and validation.jsonl.xz: {"id", "text", "source"} in a fixed random
      order, no text twice; what is held out follows from the text alone. Counts of each source are printed, and kept
      beside them in counts.json.
"""

import argparse
import hashlib
import json
import lzma
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import corpus

PREPARED = corpus.UNPACKED / "mudd"
LARGEST_DOCUMENT = 100_000  # characters: of a longer file, or of a book without chapters, each piece is a document
HELD_OUT = 50  # one of so many documents is for validation
LIMIT_BYTES = 26_000_000  # of both files: a GPU machine takes so much beside the program


@dataclass(frozen=True, kw_only=True)
class Text:
    """One document; its digest says where it goes."""

    text: str
    source: str
    digest: str

    @property
    def split(self) -> str:
        return "validation" if int(self.digest, 16) % HELD_OUT == 0 else "train"

    def line(self) -> str:
        return json.dumps({"id": self.digest[:16], "text": self.text, "source": self.source}, ensure_ascii=False) + "\n"


@dataclass(kw_only=True)
class Count:
    """How much of a source is in a split."""

    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0

    def add(self, text: str, tokens: int) -> None:
        self.documents += 1
        self.text_bytes += len(text.encode())
        self.tokens += tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, default=corpus.UNPACKED / "tokenizers" / "gpt-neox-20b")
    options = parser.parse_args()
    if not (options.tokenizer / "tokenizer.json").is_file():
        sys.exit(
            f"found no tokenizer.json in {options.tokenizer}; needed one to count tokens. Give --tokenizer FOLDER."
        )
    texts = gathered()
    PREPARED.mkdir(parents=True, exist_ok=True)
    sizes = {split: write(split, [one for one in texts if one.split == split]) for split in ("train", "validation")}
    if sum(sizes.values()) > LIMIT_BYTES:
        sys.exit(f"found {sum(sizes.values()):,} bytes in {PREPARED}; needed at most {LIMIT_BYTES:,}. Leave out text.")
    counts = counted(texts, options.tokenizer)
    kept = {split: {name: asdict(count) for name, count in found.items()} for split, found in counts.items()}
    (PREPARED / "counts.json").write_text(json.dumps(kept, indent=1))
    for split, found in counts.items():
        print(f"{PREPARED / split}.jsonl.xz: {sizes[split] / 1e6:.1f} MB")
        for name, count in found.items():
            told = f"{count.documents:>7,} documents{count.text_bytes / 1e6:>8.1f} MB{count.tokens:>12,} tokens"
            print(f"  {name:<16}{told}")


def gathered() -> list[Text]:
    """All documents, none twice, in the order of their digests, which is random and the same everywhere."""
    found: dict[str, Text] = {}
    for source, text in sources():
        for piece in in_documents(text):
            digest = hashlib.sha256(piece.encode()).hexdigest()
            if len(piece) >= corpus.SMALLEST_DOCUMENT:
                found.setdefault(digest, Text(text=piece, source=source, digest=digest))
    return [found[digest] for digest in sorted(found)]


def sources() -> Iterator[tuple[str, str]]:
    """The name of a source, and a chapter, page or file of it."""
    for text in corpus.novels():
        yield "novels", "\n".join(text.splitlines())
    for package in ("linux-doc-6.1", "anarchism"):
        for text in corpus.debian_documents(package, corpus.DEBIAN_PACKAGES[package]):
            yield package, text
    for text in corpus.wheel_documents("sympy==1.14.0"):
        yield "sympy", text


def in_documents(text: str) -> Iterator[str]:
    """The text, cut at line ends where it is too long for one document."""
    pieces = [text] if len(text) <= LARGEST_DOCUMENT else corpus.in_pieces(text, LARGEST_DOCUMENT)
    for piece in pieces:
        yield piece.strip("\n")


def write(split: str, texts: list[Text]) -> int:
    """Writes a split, whole or not at all; gives the size of its file."""
    unfinished = PREPARED / f".{split}.jsonl.xz"
    with lzma.open(unfinished, "wb", preset=9) as file:
        for one in texts:
            file.write(one.line().encode())
    unfinished.rename(PREPARED / f"{split}.jsonl.xz")
    return (PREPARED / f"{split}.jsonl.xz").stat().st_size


def counted(texts: list[Text], tokenizer: Path) -> dict[str, dict[str, Count]]:
    """By split and source: documents, bytes and tokens, one at the end of each document counted."""
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    counts: dict[str, dict[str, Count]] = {"train": {}, "validation": {}}
    for first in range(0, len(texts), 256):
        some = texts[first : first + 256]
        for one, encoded in zip(some, encoder.encode_batch_fast([one.text for one in some]), strict=True):
            counts[one.split].setdefault(one.source, Count()).add(one.text, len(encoded) + 1)
    for found in counts.values():
        parts = list(found.values())
        total = (sum(getattr(part, key) for part in parts) for key in ("documents", "text_bytes", "tokens"))
        found["all"] = Count(**dict(zip(("documents", "text_bytes", "tokens"), total, strict=True)))
    return counts


if __name__ == "__main__":
    main()
