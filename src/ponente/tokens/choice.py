"""The fast engine for a tokenizer, if it gives the right answers to a trial."""

from ponente.tokens.definition import TokenizerDefinition
from ponente.tokens.engine import Engine, Trial


def fast_engine(definition: TokenizerDefinition, trial: Trial) -> tuple[Engine | None, str]:
    """The fast engine, or None and the reason why the reference must be used."""
    from ponente.tokens.fast import FastEngine

    try:
        fast = FastEngine(definition.text)
        reason = trial.failure_of(fast)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a panic in Rust is no Exception)
        return None, f"{FastEngine.name} cannot read it ({type(error).__name__}: {error})"
    return (fast, "") if reason is None else (None, reason)
