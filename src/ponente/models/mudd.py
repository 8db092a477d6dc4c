"""MUDDFormer: Llama's layers, whose queries, keys, values and residuals are mixtures of all states before them.

In: tokens. Out: hidden states [B, S, D]. B batch, S sequence, D width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import equinox as eqx
from jax import Array

from ponente.config import execution
from ponente.models.activations import LayerActivations
from ponente.models.connection_keys import ConnectedConfig
from ponente.models.connections import (
    ConnectedDecoder,
    Connection,
    Mixer,
    States,
    connections_of,
    norm_of_state,
)
from ponente.models.hf_connections import (
    connected_code,
    connection_weights,
    connections_from_hf,
    connections_to_hf,
)
from ponente.models.huggingface import HfWeight
from ponente.models.llama import Attention, Llama, LlamaConfig, Mlp, Pass, norm_of
from ponente.models.lm import KeyValues, LanguageModel, LmConfig, Tokens
from ponente.models.parameters import Parameter, stacked
from ponente.ops.embedding import lookup_split
from ponente.ops.fp8 import Fp8Weight
from ponente.ops.gated import Activation, linear_of_gated
from ponente.ops.linear import scaled
from ponente.ops.mesh import UNSPLIT, Tensor, is_any_split, whole
from ponente.ops.norm import rms_norm, rms_norm_beside
from ponente.ops.rotary import rotary_at

_KEEPS_GATED = 2  # one of so many layers keeps what is gated: there is room for so much
_HF_KEYS = ("use_qk_norm", "hybrid_norm", "input_embedding_norm", "use_layer_norm_weight")  # beside those of a Llama


@LmConfig.register_subclass("mudd")
@dataclass(frozen=True, kw_only=True)
class MuddConfig(LlamaConfig, ConnectedConfig):
    """Sizes of a MUDDFormer."""

    hf_model_types: ClassVar[tuple[str, ...]] = ("mudd",)
    usual_reference: ClassVar[str | None] = None

    initializer_range: float = 0.006
    layer_norm_epsilon: float = 1e-6
    scan_layers: bool = execution(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_connections()

    def parameters(self, vocab_size: int) -> LanguageModel:
        return Mudd.of(self, vocab_size) if self.dense_conn else Llama.of(self, vocab_size)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        plain = super().from_hf(config)
        own = {key: config[key] for key in _HF_KEYS if key in config}
        return replace(plain, **own, **connections_from_hf(config))

    def to_hf(self, vocab_size: int) -> dict[str, Any]:
        if not self.dense_conn:
            return super().to_hf(vocab_size)
        own = {key: getattr(self, key) for key in _HF_KEYS}
        return {**connections_to_hf(self, "mudd"), **self.hf_sizes(vocab_size), **own}

    def hf_weights(self) -> dict[str, HfWeight]:
        table = super().hf_weights()
        if not self.dense_conn:
            return table
        return {
            **table,
            **connection_weights(table, self.num_layers),
            "norm_embed_D": HfWeight("model.embed_norm.weight", "D"),
            "blocks.norm_q_D": HfWeight("model.layers.{}.q_layernorm.weight", "D"),
            "blocks.norm_k_D": HfWeight("model.layers.{}.k_layernorm.weight", "D"),
            "blocks.norm_v_D": HfWeight("model.layers.{}.v_layernorm.weight", "D"),
            "blocks.norm_after_attention_D": HfWeight("model.layers.{}.after_attention_layernorm.weight", "D"),
            "blocks.norm_after_mlp_D": HfWeight("model.layers.{}.after_mlp_layernorm.weight", "D"),
        }

    def hf_code(self) -> dict[str, bytes]:
        return connected_code() if self.dense_conn else super().hf_code()

    def flops_per_token(self, length: int, vocab_size: int) -> float:
        added = self.weighing_products() + 3 * self.hidden_dim * self.mlp_growth
        return super().flops_per_token(length, vocab_size) + 6 * added

    @property
    def usual_mfu(self) -> float:
        return super().usual_mfu * (self.usual_speed if self.dense_conn else 1)

    def activations(self) -> LayerActivations:
        made = super().activations()
        if not self.dense_conn:
            return made
        made = replace(made, rest=made.rest // _KEEPS_GATED)  # what is gated, unless its product is in 8 bits
        return self.connected(made, residual=self.hidden_dim if self.is_single else 0)


class Block(eqx.Module):
    """One layer, whose queries, keys and values have norms of their own unless all ways take one mixture."""

    norm_attention_D: Array | None
    norm_q_D: Array | None
    norm_k_D: Array | None
    norm_v_D: Array | None
    attention: Attention
    norm_mlp_D: Array | None
    mlp: Mlp | None  # None: its width is not that of the others
    norm_after_attention_D: Array | None  # of hybrid norm
    norm_after_mlp_D: Array | None

    @classmethod
    def of(cls, config: MuddConfig) -> "Block":
        norm, is_single = norm_of(config), config.is_single
        each = None if is_single else norm
        after = norm if config.hybrid_norm else None
        mlp = None if config.dynamic_mlp_dim else Mlp.of(config)
        one = norm if is_single else None
        return cls(one, each, each, each, Attention.of(config), norm, mlp, after, after)

    @property
    def norms(self) -> dict[str, Array | None]:
        """The weights of norms of queries, keys and values."""
        return {"q": self.norm_q_D, "k": self.norm_k_D, "v": self.norm_v_D}

    def with_norms_inside(self, heads: Tensor = UNSPLIT) -> "Block":
        """The layer, or all of them, for streams that are normed but for these weights: its own take them in."""

        def normed(weight: Any, norm: Array | None) -> Any:
            return scaled(weight, None if norm is None else heads.enter(norm))

        attention = self.attention
        inside = replace(
            attention,
            w_q_DNH=normed(attention.w_q_DNH, self.norm_q_D),
            w_k_DKH=normed(attention.w_k_DKH, self.norm_k_D),
            w_v_DKH=normed(attention.w_v_DKH, self.norm_v_D),
        )
        return replace(self, attention=inside, norm_q_D=None, norm_k_D=None, norm_v_D=None)


@dataclass(frozen=True, kw_only=True)
class _Pass(Pass):
    """One pass through the layers."""

    config: MuddConfig
    mixer: Mixer

    def layer_behind(
        self, block: Block, own: tuple[Connection | None, Mlp | None], states: States, number: int, kept: Any
    ) -> tuple[States, Any]:
        """The states with that of one more layer; what the connection before it mixes of them is its input."""
        connection, mlp = own
        mlp = mlp or block.mlp
        assert mlp is not None
        heads = self.tokens.tensor.of("heads")
        if self.config.is_single:
            residual_BSD, states = self.mixer.single(connection, states, number)
            normed, residual_BSD = rms_norm_beside(residual_BSD, block.norm_attention_D, self.config.layer_norm_epsilon)
            one = heads.enter(normed)
            inputs, term = (one, one, one), None
        else:
            norms = block.norms if self.mixer.is_for_good else None
            (*streams, residual_BSD, term), states = self.mixer.streams(connection, states, number, norms)
            q_BSD, k_BSD, v_BSD = map(heads.enter, streams)
            inputs = q_BSD, k_BSD, v_BSD
            if norms is None:
                block = block.with_norms_inside(heads)
        rest = self._keeping if number % _KEEPS_GATED == 0 else self
        x_BSD, kept = rest.behind_norm(block, inputs, residual_BSD, mlp, kept, term)
        return states._replace(x_BSD=x_BSD), kept

    @property
    def _keeping(self) -> Pass:
        """The pass as that of a Llama, which keeps what is gated."""
        return Pass(config=self.config, tokens=self.tokens, past=self.past, rotary=self.rotary)

    def behind_gate(self, gate: Array, up: Array, activation: Activation, weight: Array | Fp8Weight) -> Array:
        """Half of the layers do not keep what is gated, which is large and soon made again."""
        return linear_of_gated(gate, up, activation, weight)


class Mudd(ConnectedDecoder):
    """The whole model."""

    embed_VD: Array
    norm_embed_D: Array | None
    norm_state_D: Array | None
    blocks: Block
    mlps: tuple[Mlp, ...] | None
    connections: tuple[Connection, ...]
    norm_D: Array | None
    w_head_DV: Array | None  # None: tied to the embeddings
    config: MuddConfig = eqx.field(static=True)

    @classmethod
    def of(cls, config: MuddConfig, vocab_size: int) -> "Mudd":
        vocabulary, width = {"vocab": vocab_size}, {"embed": config.hidden_dim}
        embed: Any = Parameter(vocabulary | width, std=config.initializer_range)
        head: Any = None if config.tie_word_embeddings else Parameter(width | vocabulary, std=config.initializer_range)
        norm = norm_of(config)
        return cls(
            embed_VD=embed,
            norm_embed_D=norm if config.input_embedding_norm else None,
            norm_state_D=norm_of_state(config, 0),
            blocks=stacked(Block.of(config), config.num_layers),
            mlps=tuple(Mlp.of(config, inner) for inner in config.mlp_widths) if config.dynamic_mlp_dim else None,
            connections=connections_of(config),
            norm_D=norm,
            w_head_DV=head,
            config=config,
        )

    def _run(self, tokens: Tokens, past: KeyValues | None) -> tuple[Array, Any]:
        config, epsilon = self.config, self.config.layer_norm_epsilon
        x_BSD = lookup_split(whole(self.embed_VD), tokens.ids_BS, tokens.tensor.of("vocab"))
        if config.input_embedding_norm:
            x_BSD = rms_norm(x_BSD, whole(self.norm_embed_D), epsilon)
        rotary = rotary_at(config.rope, tokens.positions_BS, config.head_size, x_BSD.dtype)
        mixer = Mixer(config, is_for_good=past is not None)
        run = _Pass(config=config, tokens=tokens, past=past, rotary=rotary, mixer=mixer)
        blocks = self.blocks
        if not mixer.is_for_good and not is_any_split(blocks) and tokens.tensor.axis is None:
            blocks = blocks.with_norms_inside()  # of all layers at once; split ones are made whole layer by layer
        last_BSD, kept = self._behind_layers(blocks, x_BSD, run.layer_behind, mixer, past)
        return rms_norm(last_BSD, whole(self.norm_D), epsilon), kept
