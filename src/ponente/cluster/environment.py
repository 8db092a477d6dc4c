"""What a step's process needs beyond what the project has installed: extras of ours, pins, variables."""

import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement

from ponente.config import Kind
from ponente.config.errors import RefusedError

_PACKAGE = "ponente"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Packages and variables of a step; `Environment(extras=("eval",), packages=("vllm==0.12.0",))`.

    On a Ray cluster they are made ready on the machine that the step comes to; on one's own they must be installed.
    """

    config_kind: ClassVar[Kind] = Kind.EXECUTION

    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in self.packages:
            try:
                Requirement(text)
            except InvalidRequirement as error:
                raise RefusedError(f"found package {text!r}; needed one as pip takes it: name==1.2 ({error})") from None
        if self.extras:
            known = importlib.metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
            unknown = [extra for extra in self.extras if extra not in known]
            if unknown:
                raise RefusedError(f"found the extra {unknown[0]!r}; needed one of {', '.join(sorted(known))}")

    @property
    def requirements(self) -> list[str]:
        """All packages, as pip takes them."""
        return [*self.packages, *(str(one) for extra in self.extras for one in _of_extra(extra))]

    def missing(self) -> list[str]:
        """Those that are not installed here, or in another version."""
        return [text for text in self.requirements if not _is_installed(Requirement(text))]


def _of_extra(extra: str) -> Iterator[Requirement]:
    """What one of our extras asks for, on this Python."""
    for text in importlib.metadata.requires(_PACKAGE) or []:
        one = Requirement(text)
        environment = {**default_environment(), "extra": extra}
        if one.marker is not None and "extra" in str(one.marker) and one.marker.evaluate(environment):  # type: ignore[arg-type]
            one.marker = None
            yield one


def _is_installed(one: Requirement) -> bool:
    try:
        version = importlib.metadata.version(one.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return one.specifier.contains(version, prereleases=True)
