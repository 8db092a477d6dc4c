"""A step that writes document shards."""

from dataclasses import dataclass

from ponente.executor import this_output_path
from ponente.store.documents import Document, write_documents


@dataclass(frozen=True, kw_only=True)
class ShardsConfig:
    texts: tuple[str, ...]
    output_path: str = this_output_path()


def write_shards(config: ShardsConfig) -> None:
    for number in range(2):
        some = config.texts[number::2]
        documents = [Document(id=str(index), text=text, source="test") for index, text in enumerate(some)]
        write_documents(f"{config.output_path}/{number:05d}.parquet", documents)
