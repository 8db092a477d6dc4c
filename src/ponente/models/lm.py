"""What every language model is to the trainer, the evaluator and the generator.

A family is a config, registered under its `type`, and a module of arrays that turns tokens into hidden states; the head
is applied by whoever needs logits or a loss. B batch, S sequence, D width, V vocabulary, K key-value heads, H size.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import draccus
import jax
import jax.numpy as jnp
from jax import Array

from ponente.config import execution
from ponente.models.activations import LayerActivations
from ponente.models.huggingface import HfWeight
from ponente.ops.attention import Backend, Mask
from ponente.ops.dropout import drop
from ponente.ops.mesh import UNSPLIT, Tensor

PositionsName = Literal["document", "row"]
ActivationName = Literal["silu", "gelu", "gelu_new", "relu"]
ACTIVATIONS = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


@dataclass(frozen=True, kw_only=True)
class LmConfig(draccus.ChoiceRegistry):
    """A model family's sizes. Register one with `@LmConfig.register_subclass("name")` on a frozen dataclass."""

    hf_model_types: ClassVar[tuple[str, ...]] = ()  # the `model_type`s of config.json that `from_hf` reads
    usual_reference: ClassVar[str | None] = None  # what `initialize_from_hf: true` means

    max_seq_len: int = 2048
    attn_backend: Backend = execution("default")
    gradient_checkpointing: bool | str = execution(True)
    scan_layers: bool = execution(True)
    reference_checkpoint: str | None = None  # what `initialize_from_hf: true` means, for this one

    @classmethod
    def default_choice_name(cls) -> str | None:
        return "llama"

    @abstractmethod
    def parameters(self, vocab_size: int) -> "LanguageModel":
        """The model with a `Parameter` in place of every array."""

    @abstractmethod
    def cache_sizes(self) -> tuple[int, int, int]:
        """Layers, key-value heads and head size, of the cache for decoding."""

    @abstractmethod
    def flops_per_token(self, length: int, vocab_size: int) -> float:
        """Floating-point operations of a forward and backward pass, for each token of rows of a length."""

    @property
    def usual_mfu(self) -> float:
        """The share of a device's peak that training is supposed to reach where nothing else is said."""
        return 0.5

    @abstractmethod
    def activations(self) -> LayerActivations:
        """What one layer makes for each token."""

    @classmethod
    @abstractmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """The sizes in the config.json of a Hugging Face model."""

    @abstractmethod
    def to_hf(self, vocab_size: int) -> dict[str, Any]:
        """A config.json that transformers reads."""

    @abstractmethod
    def hf_weights(self) -> dict[str, HfWeight]:
        """Where each parameter lies in a Hugging Face model."""

    def hf_code(self) -> dict[str, bytes]:
        """Files of code that config.json names for transformers, which has no such model; we write and never run it."""
        return {}

    @property
    def has_plain_attention(self) -> bool:
        """Whether its attention is one that fast kernels know: in the type that is computed with, without dropout."""
        return True

    @property
    def positions(self) -> PositionsName:
        """Whether positions count within the document or within the row."""
        return "document"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Where dropout comes from: a key of the step, and the number of each row in the whole batch.

    So what is dropped depends on step, place in the model and row, not on how a batch is split.
    """

    key: Array
    rows_B: Array

    def within(self, number: Array | int) -> "Dropout":
        """Another place in the model."""
        return replace(self, key=jax.random.fold_in(self.key, number))

    def keys_B(self) -> Array:
        """A key for each row."""
        return jax.vmap(lambda row: jax.random.fold_in(self.key, row))(self.rows_B)

    def __call__(self, x: Array, rate: float) -> Array:
        return drop(x, self.keys_B(), rate)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class KeyValues:
    """Keys and values of earlier tokens, of all layers or of one; `length_B` tokens of each row are there."""

    keys: Array  # [L, B, K, S, H], the order in which attention reads them
    values: Array
    length_B: Array

    @classmethod
    def empty(cls, config: LmConfig, batch: int, length: int, dtype: Any) -> Self:
        layers, heads, size = config.cache_sizes()
        shape = (layers, batch, heads, length, size)
        return cls(keys=jnp.zeros(shape, dtype), values=jnp.zeros(shape, dtype), length_B=jnp.zeros(batch, jnp.int32))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What a model is given: ids, where they stand, and which others each may see."""

    ids_BS: Array
    positions_BS: Array
    mask: Mask
    dropout: Dropout | None = None
    tensor: Tensor = field(default=UNSPLIT, metadata={"static": True})

    @classmethod
    def plain(cls, ids_BS: Array) -> Self:
        """Rows of one document each."""
        positions = jnp.broadcast_to(jnp.arange(ids_BS.shape[1]), ids_BS.shape)
        return cls(ids_BS=ids_BS, positions_BS=positions, mask=Mask())


class LanguageModel(Protocol):
    """A module of arrays."""

    @property
    def config(self) -> Any: ...

    def hidden(self, tokens: Tokens) -> Array:
        """Hidden states [B, S, D], normalised, ready for the head."""

    def extend(self, tokens: Tokens, past: KeyValues) -> tuple[Array, KeyValues]:
        """Hidden states of tokens that follow those of `past`, and the cache with them in it."""

    def head_DV(self) -> Array:
        """The matrix that makes logits of hidden states."""


def logits(model: LanguageModel, hidden: Array) -> Array:
    """Logits in float32."""
    return jnp.einsum("...D,DV->...V", hidden, model.head_DV(), preferred_element_type=jnp.float32)
