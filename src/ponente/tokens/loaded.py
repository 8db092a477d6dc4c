"""Tokenizers of the `fastokens` library that were loaded in a process before others were forked from it.

Imports nothing else: the process in which they are loaded shall begin with that, and import the rest meanwhile.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import fastokens  # type: ignore[import-untyped]

_loaded: dict[str, Any] = {}  # by the text that they were read from


def loading(data: bytes, threads: int) -> Callable[[], None]:
    """What loads the text of a definition (UTF-8) in a process from which others are forked, for all of them."""
    return partial(_load, data, threads)


def _load(data: bytes, threads: int) -> None:
    os.environ["FASTOKENS_BPE_THREADS"] = str(threads)
    text = data.decode()
    try:
        _loaded[text] = fastokens.Tokenizer.from_json_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (a panic in Rust is no Exception)
        return  # each worker finds out, and says why


def read(text: str) -> Any:
    """The library's tokenizer of a text: the one that was loaded before this process was forked, or a new one."""
    return _loaded.get(text) or fastokens.Tokenizer.from_json_str(text)
