"""The fast engine for a tokenizer, if it gives the right answers to a trial; it may be loaded ahead of that."""

import os

from ponente.tokens.definition import TokenizerDefinition
from ponente.tokens.engine import Engine, Trial

_LOADED: dict[str, Engine] = {}  # by fingerprint: loaded ahead, not tried yet


def set_threads(count: int) -> None:
    """How many threads the fast engines of this process may use; before they are loaded."""
    os.environ["FASTOKENS_BPE_THREADS"] = str(count)


def load_ahead(definition: TokenizerDefinition, threads: int) -> None:
    """Loads the fast engine, which takes a while with a large vocabulary, so that `fast_engine` finds it loaded."""
    from ponente.tokens.fast import FastEngine

    set_threads(threads)
    try:
        _LOADED[definition.fingerprint] = FastEngine(definition)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 (`fast_engine` will find the same, and say so)
        return


def fast_engine(definition: TokenizerDefinition, trial: Trial) -> tuple[Engine | None, str]:
    """The fast engine, or None and the reason why the reference must be used."""
    from ponente.tokens.fast import FastEngine

    try:
        fast = _LOADED.pop(definition.fingerprint, None) or FastEngine(definition)
        reason = trial.failure_of(fast)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a panic in Rust is no Exception)
        return None, f"{FastEngine.name} cannot read it ({type(error).__name__}: {error})"
    return (fast, "") if reason is None else (None, reason)
