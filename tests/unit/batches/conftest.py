"""Caches and streams with chosen ids."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from token_caches import MakeCache, numbered_documents, write_cache

from ponente.store.token_cache.cache import TokenCache


@pytest.fixture
def make_cache(tmp_path: Path) -> MakeCache:
    """Makes a finished cache of documents of these lengths, whose tokens are 1, 2, 3 …"""
    made: dict[tuple[int, ...], TokenCache] = {}

    def make(lengths: Sequence[int]) -> TokenCache:
        key = tuple(lengths)
        if key not in made:
            made[key] = write_cache(tmp_path / f"cache-{len(made)}", numbered_documents(lengths), segment_rows=3)
        return made[key]

    return make
