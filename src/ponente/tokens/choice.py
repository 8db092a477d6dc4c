"""The fast engine for a tokenizer, if it gives the right answers to a trial."""

import os
from collections.abc import Callable
from functools import partial

from ponente.tokens.definition import TokenizerDefinition
from ponente.tokens.engine import Engine, Trial

_loaded: dict[str, Engine] = {}  # by the text of their definition; before this process was forked


def loading(definition: TokenizerDefinition, threads: int) -> Callable[[], None]:
    """What loads the fast engine in a process from which others are forked, which then need not load it."""
    return partial(_load, definition, threads)


def _load(definition: TokenizerDefinition, threads: int) -> None:
    from ponente.tokens.fast import FastEngine

    os.environ["FASTOKENS_BPE_THREADS"] = str(threads)
    try:
        _loaded[definition.text] = FastEngine(definition)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (a panic in Rust is no Exception)
        return  # each worker finds out, and says why


def fast_engine(definition: TokenizerDefinition, trial: Trial) -> tuple[Engine | None, str]:
    """The fast engine, or None and the reason why the reference must be used."""
    from ponente.tokens.fast import FastEngine

    try:
        fast = _loaded.get(definition.text) or FastEngine(definition)
        reason = trial.failure_of(fast)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a panic in Rust is no Exception)
        return None, f"{FastEngine.name} cannot read it ({type(error).__name__}: {error})"
    return (fast, "") if reason is None else (None, reason)
