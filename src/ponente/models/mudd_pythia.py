"""MUDDPythia: Pythia's layers, whose queries, keys, values and residuals are mixtures of all states before them.

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
from ponente.models.gpt_neox import Attention, GptNeox, GptNeoxConfig, Mlp, Pass
from ponente.models.hf_connections import (
    connected_code,
    connection_weights,
    connections_from_hf,
    connections_to_hf,
)
from ponente.models.huggingface import HfWeight
from ponente.models.lm import KeyValues, LanguageModel, LmConfig, Tokens
from ponente.models.parameters import Parameter, stacked
from ponente.ops.embedding import lookup_split
from ponente.ops.mesh import whole
from ponente.ops.norm import layer_norm, with_term
from ponente.ops.rotary import rotary_at


@LmConfig.register_subclass("mudd_pythia")
@dataclass(frozen=True, kw_only=True)
class MuddPythiaConfig(GptNeoxConfig, ConnectedConfig):
    """Sizes of a MUDDPythia."""

    hf_model_types: ClassVar[tuple[str, ...]] = ("mudd_pythia",)
    usual_reference: ClassVar[str | None] = None
    divides_streams: ClassVar[bool] = False  # its norms also take the mean away

    initializer_range: float = 0.006
    scan_layers: bool = execution(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_connections()

    def parameters(self, vocab_size: int) -> LanguageModel:
        return MuddPythia.of(self, vocab_size) if self.dense_conn else GptNeox.of(self, vocab_size)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        return replace(super().from_hf(config), **connections_from_hf(config))

    def to_hf(self, vocab_size: int) -> dict[str, Any]:
        stored = super().to_hf(vocab_size)
        return {**stored, **connections_to_hf(self, "mudd_pythia")} if self.dense_conn else stored

    def hf_weights(self) -> dict[str, HfWeight]:
        return _hf_weights(self.num_layers) if self.dense_conn else super().hf_weights()

    def hf_code(self) -> dict[str, bytes]:
        return connected_code() if self.dense_conn else super().hf_code()

    def flops_per_token(self, length: int, vocab_size: int) -> float:
        added = self.weighing_products() + 2 * self.hidden_dim * self.mlp_growth
        return super().flops_per_token(length, vocab_size) + 6 * added

    @property
    def usual_mfu(self) -> float:
        return super().usual_mfu * (self.usual_speed if self.dense_conn else 1)

    def activations(self) -> LayerActivations:
        made = super().activations()
        is_normed = self.is_single or (self.use_parallel_residual and self.mixes_residuals)
        return self.connected(made, residual=self.hidden_dim if is_normed else 0) if self.dense_conn else made


def _hf_weights(layers: int) -> dict[str, HfWeight]:
    layer = "model.layers.{}"
    table = {
        "embed_VD": HfWeight("model.embed_tokens.weight", "V,D"),
        "norm_D": HfWeight("model.norm.weight", "D"),
        "norm_bias_D": HfWeight("model.norm.bias", "D"),
        "w_head_DV": HfWeight("lm_head.weight", "V,D"),
        "blocks.norm_mlp_D": HfWeight(f"{layer}.post_attention_layernorm.weight", "D"),
        "blocks.norm_mlp_bias_D": HfWeight(f"{layer}.post_attention_layernorm.bias", "D"),
        "blocks.attention.w_out_NHD": HfWeight(f"{layer}.self_attn.o_proj.weight", "D,NH"),
        "blocks.attention.b_out_D": HfWeight(f"{layer}.self_attn.o_proj.bias", "D"),
        "blocks.mlp.w_up_DF": HfWeight(f"{layer}.mlp.up_proj.weight", "F,D"),
        "blocks.mlp.b_up_F": HfWeight(f"{layer}.mlp.up_proj.bias", "F"),
        "blocks.mlp.w_down_FD": HfWeight(f"{layer}.mlp.down_proj.weight", "D,F"),
        "blocks.mlp.b_down_D": HfWeight(f"{layer}.mlp.down_proj.bias", "D"),
    }
    for way in "qkv":
        table[f"blocks.attention.w_{way}_DNH"] = HfWeight(f"{layer}.self_attn.{way}_proj.weight", "NH,D")
        table[f"blocks.attention.b_{way}_NH"] = HfWeight(f"{layer}.self_attn.{way}_proj.bias", "NH")
    for ours, theirs in {"attention": "input", "q": "q", "k": "k", "v": "v"}.items():
        table[f"blocks.norm_{ours}.weight_D"] = HfWeight(f"{layer}.{theirs}_layernorm.weight", "D")
        table[f"blocks.norm_{ours}.bias_D"] = HfWeight(f"{layer}.{theirs}_layernorm.bias", "D")
    return table | connection_weights(table, layers)


class Norm(eqx.Module):
    """Weight and bias of a norm over the width."""

    weight_D: Array
    bias_D: Array

    @classmethod
    def of(cls, config: MuddPythiaConfig) -> "Norm":
        weight: Any = Parameter({"embed": config.hidden_dim}, mean=1.0)
        bias: Any = Parameter({"embed": config.hidden_dim})
        return cls(weight, bias)


class Block(eqx.Module):
    """One layer, whose queries, keys and values have norms of their own unless all ways take one mixture."""

    norm_attention: Norm | None
    norm_q: Norm | None
    norm_k: Norm | None
    norm_v: Norm | None
    attention: Attention
    norm_mlp_D: Array
    norm_mlp_bias_D: Array
    mlp: Mlp | None  # None: its width is not that of the others

    @classmethod
    def of(cls, config: MuddPythiaConfig) -> "Block":
        width, std, norm = config.hidden_dim, config.initializer_range, Norm.of(config)
        each, one = (None, norm) if config.is_single else (norm, None)
        attention = Attention.of(width=width, num_heads=config.num_heads, head_size=config.head_size, std=std)
        mlp = None if config.dynamic_mlp_dim else Mlp.of(width=width, inner_width=config.intermediate_dim, std=std)
        return cls(one, each, each, each, attention, norm.weight_D, norm.bias_D, mlp)


@dataclass(frozen=True, kw_only=True)
class _Pass(Pass):
    """One pass through the layers."""

    config: MuddPythiaConfig
    mixer: Mixer

    def layer_behind(
        self, block: Block, own: tuple[Connection | None, Mlp | None], states: States, number: int, kept: Any
    ) -> tuple[States, Any]:
        """The states with that of one more layer; what the connection before it mixes of them is its input."""
        connection, mlp = own
        mlp = mlp or block.mlp
        assert mlp is not None
        if block.norm_attention is not None:
            residual_BSD, states = self.mixer.single(connection, states, number)
            one = self._normed(residual_BSD, block.norm_attention)
            inputs = one, one, one
        else:
            (q_BSD, k_BSD, v_BSD, residual_BSD, term), states = self.mixer.streams(connection, states, number)
            residual_BSD = residual_BSD if term is None else with_term(residual_BSD, term)
            assert block.norm_q and block.norm_k and block.norm_v
            inputs = (
                self._normed(q_BSD, block.norm_q),
                self._normed(k_BSD, block.norm_k),
                self._normed(v_BSD, block.norm_v),
            )
        x_BSD, kept = self.behind_norm(block, inputs, residual_BSD, mlp, kept)
        return states._replace(x_BSD=x_BSD), kept

    def _normed(self, x_BSD: Array, norm: Norm) -> Array:
        return self.normed(x_BSD, norm.weight_D, norm.bias_D)


class MuddPythia(ConnectedDecoder):
    """The whole model."""

    embed_VD: Array
    norm_state_D: Array | None
    blocks: Block
    mlps: tuple[Mlp, ...] | None
    connections: tuple[Connection, ...]
    norm_D: Array
    norm_bias_D: Array
    w_head_DV: Array | None  # None: tied to the embeddings
    config: MuddPythiaConfig = eqx.field(static=True)

    @classmethod
    def of(cls, config: MuddPythiaConfig, vocab_size: int) -> "MuddPythia":
        vocabulary, width, std = {"vocab": vocab_size}, {"embed": config.hidden_dim}, config.initializer_range
        embed: Any = Parameter(vocabulary | width, std=std)
        head: Any = None if config.tie_word_embeddings else Parameter(width | vocabulary, std=std)
        norm = Norm.of(config)
        mlps = tuple(Mlp.of(width=config.hidden_dim, inner_width=inner, std=std) for inner in config.mlp_widths)
        return cls(
            embed_VD=embed,
            norm_state_D=norm_of_state(config, 0),
            blocks=stacked(Block.of(config), config.num_layers),
            mlps=mlps if config.dynamic_mlp_dim else None,
            connections=connections_of(config),
            norm_D=norm.weight_D,
            norm_bias_D=norm.bias_D,
            w_head_DV=head,
            config=config,
        )

    def _run(self, tokens: Tokens, past: KeyValues | None) -> tuple[Array, Any]:
        config = self.config
        x_BSD = lookup_split(whole(self.embed_VD), tokens.ids_BS, tokens.tensor.of("vocab"))
        rotary = rotary_at(config.rope, tokens.positions_BS, config.rotary_size, x_BSD.dtype)
        mixer = Mixer(config, is_for_good=past is not None)
        run = _Pass(config=config, tokens=tokens, past=past, rotary=rotary, mixer=mixer)
        last_BSD, kept = self._behind_layers(self.blocks, x_BSD, run.layer_behind, mixer, past)
        return layer_norm(last_BSD, whole(self.norm_D), whole(self.norm_bias_D), config.layer_norm_epsilon), kept
