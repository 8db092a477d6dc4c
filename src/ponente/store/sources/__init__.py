"""Where rows come from: files of many formats, Hugging Face datasets, and sources of the user's own."""

from ponente.store.sources.hf import HfSourceConfig
from ponente.store.sources.source import BadRow, Fingerprint, RowBatch, SourceConfig, Unit
from ponente.store.sources.url import UrlSourceConfig

__all__ = ["BadRow", "Fingerprint", "HfSourceConfig", "RowBatch", "SourceConfig", "Unit", "UrlSourceConfig"]
