"""Rotary position embeddings, and how their frequencies are stretched for longer contexts.

In: positions [B, S] and heads [B, S, N, H]. Out: the heads, turned, or the first R numbers of each. The two halves of
what turns are the two coordinates of each turn, as Hugging Face stores them. Frequencies are computed in float32 on the
host, once.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import draccus
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ponente.config.errors import RefusedError

Frequencies = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RotaryConfig(draccus.ChoiceRegistry):
    """`rope: {type: default, theta: 10000}`; the type says how frequencies are stretched."""

    theta: float = 10000.0

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "default"

    def frequencies(self, head_size: int) -> Frequencies:
        """Radians a position, for each pair of coordinates."""
        return self.theta ** -(np.arange(0, head_size, 2) / head_size)

    def attention_factor(self) -> float:
        """By which queries and keys grow."""
        return 1.0


@RotaryConfig.register_subclass("default")
@dataclass(frozen=True, kw_only=True)
class DefaultRotary(RotaryConfig):
    """As they are."""


@RotaryConfig.register_subclass("linear")
@dataclass(frozen=True, kw_only=True)
class LinearRotary(RotaryConfig):
    """All frequencies divided by the same factor."""

    factor: float = 1.0

    def frequencies(self, head_size: int) -> Frequencies:
        return super().frequencies(head_size) / self.factor


@RotaryConfig.register_subclass("llama3")
@dataclass(frozen=True, kw_only=True)
class Llama3Rotary(RotaryConfig):
    """Low frequencies divided by the factor, high ones kept, those between blended (Llama 3.1)."""

    theta: float = 500000.0
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def frequencies(self, head_size: int) -> Frequencies:
        plain = super().frequencies(head_size)
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)  # within the first context
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(share, 0.0, 1.0)
        return plain * kept + plain / self.factor * (1 - kept)


@RotaryConfig.register_subclass("yarn")
@dataclass(frozen=True, kw_only=True)
class YarnRotary(RotaryConfig):
    """Frequencies blended by how often they turn, and attention made a little sharper (Peng et al. 2023)."""

    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position_embeddings: int = 2048
    mscale: float | None = None  # the attention factor; by default 0.1 ln(factor) + 1

    def frequencies(self, head_size: int) -> Frequencies:
        plain = super().frequencies(head_size)
        low, high = (self._pair_that_turns(often, head_size) for often in (self.beta_fast, self.beta_slow))
        low, high = max(math.floor(low), 0), min(math.ceil(high), head_size - 1)
        ramp = np.clip((np.arange(head_size // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        return plain / self.factor * ramp + plain * (1 - ramp)

    def _pair_that_turns(self, times: float, head_size: int) -> float:
        """The number of the pair of coordinates that turns so many times within the first context."""
        wavelength = self.original_max_position_embeddings / (times * 2 * math.pi)
        return head_size * math.log(wavelength) / (2 * math.log(self.theta))

    def attention_factor(self) -> float:
        if self.mscale is not None:
            return self.mscale
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True)
class Rotary:
    """The turns of some positions, ready to be applied: to whole heads, or to their first R numbers."""

    cos_BS1R: Array
    sin_BS1R: Array

    def __call__(self, x_BSNH: Array) -> Array:
        return _turned(x_BSNH, self.cos_BS1R, self.sin_BS1R)


@jax.custom_vjp
def _turned(x: Array, cos: Array, sin: Array) -> Array:
    size = cos.shape[-1]
    half = size // 2
    quarter = jnp.concatenate([-x[..., half:size], x[..., :half]], axis=-1)  # x after a quarter of a turn
    turned = x[..., :size] * cos + quarter * sin
    return turned if size == x.shape[-1] else jnp.concatenate([turned, x[..., size:]], axis=-1)


def _forward(x: Array, cos: Array, sin: Array) -> tuple[Array, tuple[Array, Array]]:
    return _turned(x, cos, sin), (cos, sin)


def _backward(turns: tuple[Array, Array], by_turned: Array) -> tuple[Array, None, None]:
    """Back by the same angles, in the same form; JAX's rule would add halves that are padded with zeros."""
    cos, sin = turns
    return _turned(by_turned, cos, -sin), None, None


_turned.defvjp(_forward, _backward)


def rotary_at(config: RotaryConfig, positions_BS: Array, size: int, dtype: jnp.dtype) -> Rotary:
    """The turns of positions, computed in float32 and rounded to `dtype`.

    Args:
        size: how many numbers of each head turn, its first ones; of whole heads their size.
    """
    if size % 2:
        raise RefusedError(f"found heads of {size} numbers; needed an even size for rotary positions. Set head_dim.")
    frequencies = jnp.asarray(config.frequencies(size), jnp.float32)
    angles_BSr = positions_BS[..., None].astype(jnp.float32) * frequencies
    # The two halves turn alike. A product puts the two side by side, because XLA computes what a product gives
    # once; on a CPU it would compute anything else anew in each use of it, cosines for every head of every layer.
    twice_rR = jnp.tile(jnp.eye(size // 2, dtype=jnp.float32), 2)
    turns = (jnp.cos(angles_BSr), jnp.sin(angles_BSr))
    cos, sin = (jnp.matmul(turn * config.attention_factor(), twice_rR, precision="highest") for turn in turns)
    return Rotary(cos[:, :, None].astype(dtype), sin[:, :, None].astype(dtype))


def rotary_from_hf(config: Mapping[str, Any]) -> RotaryConfig:
    """The rotary positions of a Hugging Face config.json, as older and newer versions of transformers write them."""
    stored = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(stored.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = stored.get("rope_type") or stored.get("type") or "default"
    known: dict[str, type[RotaryConfig]] = RotaryConfig.get_known_choices()
    if kind not in known:
        raise RefusedError(f"found rotary type {kind}; needed one of {', '.join(known)}. Use another model.")
    names = {field.name for field in fields(known[kind])} - {"theta", "mscale"}
    given = {name: stored[name] for name in names if stored.get(name) is not None}
    if kind == "yarn":
        given["mscale"] = stored.get("attention_factor")
        given.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    return known[kind](theta=theta, **given)


def rotary_to_hf(rotary: RotaryConfig) -> dict[str, Any]:
    """The same, as config.json has it."""
    stored = {"rope_type": RotaryConfig.get_choice_name(type(rotary))}
    stored |= {("rope_theta" if name == "theta" else name): value for name, value in asdict(rotary).items()}
    if "mscale" in stored:
        stored["attention_factor"] = stored.pop("mscale")
    return {"rope_theta": rotary.theta, "rope_parameters": stored}
