"""The platform that programs are compiled for: that of this process, or another's for a trial compilation."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_TARGET: ContextVar[str | None] = ContextVar("platform", default=None)


def platform() -> str:
    """`cpu`, `gpu` or `tpu`."""
    return _TARGET.get() or jax.default_backend()


@contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Kernels are chosen for that platform, on devices that need not be there."""
    token = _TARGET.set(name)
    try:
        yield
    finally:
        _TARGET.reset(token)
