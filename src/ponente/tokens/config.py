"""Which datasets there are, and what their token caches are made of: the `data` section, as far as caches go."""

from dataclasses import dataclass, field

from ponente.config import execution
from ponente.config.errors import RefusedError
from ponente.store.paths import absolute, join
from ponente.store.sources import SourceConfig
from ponente.tokens.formats import TextFormat
from ponente.tokens.formats.format import EncoderOptions, TokenFormat


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """One dataset: where its rows come from and what becomes of them."""

    source: SourceConfig
    format: TokenFormat = field(default_factory=TextFormat)
    cache_dir: str | None = execution(None)  # by default data.cache_dir / name


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """All datasets of a run. Each split of each becomes the token cache `cache_dir/NAME/SPLIT`."""

    tokenizer: str = "gpt2"
    vocab_size: int | None = None  # ids of the model; None: the tokenizer's, but `passthrough` has none of its own
    enforce_eos: bool = True
    chat_template: str | None = None
    components: dict[str, ComponentConfig] = field(default_factory=dict)
    cache_dir: str = execution("cache/")
    max_bad_records: int = execution(0)  # a cache: how many rows may be set aside

    def options(self) -> EncoderOptions:
        """What all formats share."""
        return EncoderOptions(enforce_eos=self.enforce_eos, chat_template=self.chat_template)

    def cache_path(self, name: str, split: str) -> str:
        """Where the cache of a component's split lies."""
        component = self.components[name]
        return join(absolute(component.cache_dir or join(absolute(self.cache_dir), name)), split)

    def check(self) -> None:
        """Refuses, before any work, a config without data or with two caches in one place."""
        if not self.components:
            raise RefusedError(
                "found no dataset in the config; needed data.train_urls, data.id or data.components. Add one."
            )
        if self.max_bad_records < 0:
            raise RefusedError(
                f"found data.max_bad_records: {self.max_bad_records}; needed 0 or more. Set how many rows of a cache "
                "may be set aside."
            )
        places: dict[str, str] = {}
        for name in self.components:
            other = places.setdefault(self.cache_path(name, ""), name)
            if other != name:
                raise RefusedError(
                    f"found data.components {other} and {name} with the same cache_dir "
                    f"{self.cache_path(name, '')}; needed one each. Give one of them another cache_dir."
                )


@dataclass(frozen=True, kw_only=True)
class CacheDatasetConfig:
    """What `ponente cache-dataset` reads of a config."""

    data: DataConfig
