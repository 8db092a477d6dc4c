"""Which number types a run uses: for parameters and optimizer, for computing, and for what models hand out.

In: the text of `trainer.mp`, such as "f32" or "p=f32,c=bfloat16". Out: types, and trees cast to them.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ponente.config.errors import RefusedError

Tree = TypeVar("Tree")

FLOAT_TYPES = {
    **dict.fromkeys(("f32", "float32", "full", "single"), jnp.float32),
    **dict.fromkeys(("bf16", "bfloat16"), jnp.bfloat16),
}
_ROLES = {"p": "parameters", "params": "parameters", "c": "compute", "compute": "compute", "o": "", "output": ""}


@dataclass(frozen=True)
class Precision:
    """The types of a run. Losses and sums are float32 in any case."""

    parameters: Any
    compute: Any

    @classmethod
    def of(cls, text: str) -> "Precision":
        """The types that `trainer.mp` names.

        Example: `Precision.of("p=f32,c=bfloat16").compute == jnp.bfloat16`
        """
        if "=" not in text:
            kind = _type(text.strip(), text)
            return cls(parameters=kind, compute=kind)
        types: dict[str, Any] = {"parameters": jnp.float32}
        for part in text.split(","):
            role, _, name = (piece.strip() for piece in part.partition("="))
            if role not in _ROLES:
                raise _refusal(text)
            types[_ROLES[role]] = _type(name, text)
        return cls(parameters=types["parameters"], compute=types.get("compute", types["parameters"]))

    def for_computing(self, tree: Tree) -> Tree:
        """The floating-point arrays of a tree in the type that is computed with."""
        cast: Tree = jax.tree.map(
            lambda leaf: leaf.astype(self.compute) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
        )
        return cast


def _type(name: str, text: str) -> Any:
    if name not in FLOAT_TYPES:
        raise _refusal(text)
    return FLOAT_TYPES[name]


def _refusal(text: str) -> RefusedError:
    return RefusedError(
        f"found trainer.mp: {text}; needed f32, bfloat16, or types for parameters and computing, such as "
        "p=f32,c=bfloat16. Change it."
    )
