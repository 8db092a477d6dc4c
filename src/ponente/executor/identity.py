"""Identity: a step's payload as plain JSON, and its sha256.

In: a step. Out: `{name, kind, config}` with each dependency as its own identity, never a path, and only identity fields
that differ from their defaults. Secrets are masked before hashing, so the stored payload is the hashed one and a new
key re-runs nothing.
"""

import dataclasses
import hashlib

from ponente.config.errors import RefusedError
from ponente.executor.canonical import (
    OMIT,
    Canonical,
    Json,
    StepReference,
    UnhashableError,
    canonical_text,
    defaults_text,
)
from ponente.executor.reference import check_step_function
from ponente.executor.step import ExecutorStep


@dataclasses.dataclass(slots=True)
class Payload:
    """A step's payload whose dependencies' identities are still to be filled in."""

    content: dict[str, Json]
    references: list[StepReference]
    defaults: str  # those that the config rests on, as JSON; not hashed
    secrets: list[str]  # what was masked; for the redactor, never stored


def payload_of(step: ExecutorStep) -> Payload:
    """The payload of `step`, its dependencies still open (`build_graph` fills them in)."""
    references: list[StepReference] = []
    check_step_function(step.fn)
    try:
        canonical = Canonical(references)
        config = canonical.of(step.config)
    except UnhashableError as error:
        error.where.append(f"step {step.name!r}, config")
        raise
    except RecursionError:
        raise RefusedError(f"step {step.name!r}: found a config that contains itself; needed one that ends") from None
    content: dict[str, Json] = {"name": step.name, "kind": step.declared_kind}
    if config is not OMIT and config is not None:
        content["config"] = config
    defaults = defaults_text(frozenset(canonical.classes))
    return Payload(content=content, references=references, defaults=defaults, secrets=canonical.secrets)


def identity_of(content: dict[str, Json]) -> str:
    """The sha256, in hex, of a payload whose dependencies are filled in."""
    return hashlib.sha256(canonical_text(content).encode("ascii")).hexdigest()
