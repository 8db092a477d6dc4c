"""The step: a frozen value that names a function, its config and where it runs, and the handles that join steps.

A step inside another step's config, or `step / "sub/path"`, is a dependency. `this_output_path()` and
`this_state_path()` stand for the step's own places until it runs. `versioned(x)` is accepted and means x: every
config field is identity unless its class says otherwise (`ponente.config`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from ponente.cluster.environment import Environment
from ponente.cluster.resources import Resources
from ponente.config.errors import RefusedError, UserError
from ponente.executor.estimate import Estimate
from ponente.executor.reference import Function, step_kind

T = TypeVar("T")

_LONGEST_NAME = 200  # a folder's name has 255 bytes, and "-" with eight digits is added


@dataclass(frozen=True)
class Retries:
    """How often a step may be tried again in one go: after its own errors, and after losing its place."""

    errors: int = 1
    preemptions: int = 20


@dataclass(frozen=True, eq=False)
class ExecutorStep:
    """One node of the graph.

    Args:
        name: where the output goes: `{prefix}/{name}-{first 8 of identity}`; may hold slashes.
        fn: an importable function of one argument, the config with every handle resolved to a path.
        config: a frozen dataclass (or any mix of dataclasses, containers and plain values).
        description: for people; no part of identity.
        resources: what it asks of a machine; execution, never identity.
        env: environment variables of the step's process, or an `Environment` with extras and packages too; execution,
            never identity, values never stored.
        override_output_path: pins the output to existing data (or says where new output goes); never identity.
        kind: the declared kind; by default the step type's, else `module:function`.
        retries: how often it is tried again.

    Example:
        counts = ExecutorStep(name="counts", fn=count_words, config=CountConfig(documents=documents / "text"))
    """

    name: str
    fn: Function
    config: Any = None
    description: str | None = None
    resources: Resources | None = None
    env: Mapping[str, str] | Environment = field(default_factory=dict)
    override_output_path: str | None = None
    kind: str | None = None
    retries: Retries = Retries()

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not callable(self.fn):
            raise RefusedError(f"step {self.name!r}: found fn={self.fn!r}, which cannot be called; give a function")
        for name, value in self.environment.variables.items():
            if not isinstance(name, str) or not isinstance(value, str):
                kind = type(value).__name__
                raise RefusedError(f"step {self.name!r}: found env {name!r} with a value of type {kind}; needed texts")

    @property
    def environment(self) -> Environment:
        """What its process needs beyond the project's own."""
        return self.env if isinstance(self.env, Environment) else Environment(variables=self.env)

    def __truediv__(self, path: str) -> Any:
        return StepPath(step=self, path=_clean(path))

    def nonblocking(self) -> Any:
        """This step as a parent that is neither run nor waited for; resolves to its state path."""
        return StepPath(step=self, path="", blocking=False)

    @property
    def declared_kind(self) -> str:
        """What enters identity as the step's kind."""
        return self.kind or step_type_of(self.fn).kind or step_kind(self.fn)

    def __repr__(self) -> str:
        return f"ExecutorStep({self.name!r})"

    def __str__(self) -> str:
        _refuse_as_text(f"step {self.name!r}")


@dataclass(frozen=True)
class StepPath:
    """A place in another step's output (or state, where not blocking)."""

    step: ExecutorStep
    path: str = ""
    blocking: bool = True

    def __truediv__(self, path: str) -> Any:
        return StepPath(step=self.step, path=_below(self.path, path), blocking=self.blocking)

    def __str__(self) -> str:
        _refuse_as_text(f"a handle of step {self.step.name!r}")


class Own(StrEnum):
    """Which of the step's own places a handle stands for."""

    OUTPUT = "output"
    STATE = "state"


@dataclass(frozen=True)
class OwnPath:
    """A place of the step in whose config it stands."""

    place: Own
    path: str = ""

    def __truediv__(self, path: str) -> Any:
        return OwnPath(self.place, _below(self.path, path))

    def __str__(self) -> str:
        _refuse_as_text(f"this_{self.place.value}_path({self.path!r})")


def this_output_path(path: str = "") -> Any:
    """Stands for (a place in) the attempt's own output folder, invisible to others until the step commits."""
    return OwnPath(Own.OUTPUT, _clean(path))


def this_state_path(path: str = "") -> Any:
    """Stands for (a place in) the step's state folder, which outlives attempts: checkpoints, finished shards."""
    return OwnPath(Own.STATE, _clean(path))


def output_path_of(step: ExecutorStep, path: str = "") -> Any:
    """The same as `step / path`."""
    return step / path


def versioned(value: T) -> T:
    """`value`; in identity, as everything is. Kept so that existing experiments read on."""
    return value


@dataclass(frozen=True)
class StepType:
    """What a function declares about all steps that run it."""

    kind: str | None = None
    estimate: Callable[[Any], Estimate] | None = None


def step_type(
    *, kind: str | None = None, estimate: Callable[[Any], Estimate] | None = None
) -> Callable[[Function], Function]:
    """Declares a function to be a type of step: a kind that survives renaming, an estimate for the plan.

    Args:
        kind: enters identity in place of `module:function`.
        estimate: from the config (handles unresolved) to what the step will take.
    """

    def declare(fn: Function) -> Function:
        fn.__ponente_step_type__ = StepType(kind=kind, estimate=estimate)  # type: ignore[attr-defined]
        return fn

    return declare


def step_type_of(fn: Function) -> StepType:
    """What `fn` declared, if anything."""
    declared: StepType = getattr(fn, "__ponente_step_type__", StepType())
    return declared


class HandleAsTextError(UserError, TypeError):
    """A handle was put into a text, where it cannot become a path."""


def _refuse_as_text(handle: str) -> NoReturn:
    raise HandleAsTextError(
        f"found {handle} used as text while the graph is built; its path is known only when the step runs. "
        "Put the handle itself into a config field, with / for what lies below it"
    )


def _clean(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("/"):
        raise RefusedError(f"found {path!r}; needed a path below the step's folder, without '..' or a leading slash")
    return "/".join(parts)


def _below(folder: str, path: str) -> str:
    return "/".join(part for part in (folder, _clean(path)) if part)


def _check_name(name: str) -> None:
    parts = name.split("/") if isinstance(name, str) else []
    good = bool(parts) and all(part and not part.startswith(".") and part.isprintable() for part in parts)
    good = good and all(len(part.encode()) <= _LONGEST_NAME for part in parts)
    if not good or any(mark in name for mark in '\\:*?"<>|[]{}') or name != name.strip():
        raise RefusedError(
            f"found step name {name!r}; needed parts joined by '/', none empty, none starting with a dot, "
            'without \\ : * ? " < > | [ ] { } or outer spaces, each of at most 200 bytes'
        )
