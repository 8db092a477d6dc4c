"""Made golden/format-1 with ponente 0.1.0. Never run it again over that folder: what it holds is the past."""

import sys
from dataclasses import dataclass
from pathlib import Path

from ponente.cluster import map_shards
from ponente.executor import ExecutorStep, executor_main, this_output_path
from ponente.store.documents import Document, write_attributes, write_documents
from ponente.store.dolma import write_dolma


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    words: tuple[str, ...]
    output_path: str = this_output_path()


@dataclass(frozen=True, kw_only=True)
class LengthsConfig:
    documents: str
    scale: float = 1.0


def make_documents(config: DocumentsConfig) -> None:
    import pyarrow as pa

    documents = [
        Document(id=word, text=f"{word}, ponente", source="golden", metadata={"n": [1]}) for word in config.words
    ]
    write_documents(f"{config.output_path}/documents/00000.parquet", documents)
    lengths = [(document.id, {"length": len(document.text)}) for document in documents]
    schema = pa.schema([("length", pa.int64())])
    write_attributes(f"{config.output_path}/attributes/length/00000.parquet", lengths, schema)
    write_dolma(f"{config.output_path}/dolma/00000.jsonl.zst", documents)


def measure(config: LengthsConfig) -> None:
    map_shards(measure_one, [1, 2, 3], name="lengths", suffix=".txt")


def measure_one(shard: int, output_path: str) -> int:
    Path(output_path).write_text("x" * shard)
    return shard


documents = ExecutorStep(
    name="golden/documents", fn=make_documents, config=DocumentsConfig(words=("levante", "tramontana"))
)
lengths = ExecutorStep(
    name="golden/lengths", fn=measure, config=LengthsConfig(documents=documents / "documents", scale=2.0)
)

if __name__ == "__main__":
    executor_main(steps=[lengths], argv=["--prefix", str(Path(__file__).with_name("format-1")), *sys.argv[1:]])
