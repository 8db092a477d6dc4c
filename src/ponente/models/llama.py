"""Llama 2 and 3, and what differs from them by a switch: grouped keys, query-key norm, biases, tied embeddings.

In: tokens. Out: hidden states [B, S, D]. B batch, S sequence, D width, N heads, K key-value heads, H head size, F MLP
width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import equinox as eqx
from jax import Array

from ponente.config.errors import RefusedError
from ponente.models.activations import LayerActivations
from ponente.models.decoding import Decoder, attend_after
from ponente.models.hf_config import beyond_full_attention, beyond_rotary, refuse_config
from ponente.models.huggingface import HfWeight
from ponente.models.lm import ACTIVATIONS, ActivationName, KeyValues, LanguageModel, LmConfig, Tokens
from ponente.models.parameters import Parameter, stacked
from ponente.models.stack import fold_layers
from ponente.ops.embedding import lookup_split
from ponente.ops.fp8 import Fp8Weight
from ponente.ops.gated import Activation, gated
from ponente.ops.linear import linear, linear_each, linears
from ponente.ops.mesh import Tensor, whole
from ponente.ops.norm import Term, rms_norm, rms_norm_beside
from ponente.ops.rotary import DefaultRotary, Rotary, RotaryConfig, rotary_at, rotary_from_hf, rotary_to_hf


@LmConfig.register_subclass("llama")
@dataclass(frozen=True, kw_only=True)
class LlamaConfig(LmConfig):
    """Sizes of a Llama."""

    hf_model_types: ClassVar[tuple[str, ...]] = ("llama", "qwen3")
    usual_reference: ClassVar[str | None] = "NousResearch/Llama-2-7b-hf"

    hidden_dim: int = 4096
    intermediate_dim: int = 11008
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: hidden_dim / num_heads
    activation_function: ActivationName = "silu"
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    use_qk_norm: bool = False
    hybrid_norm: bool = False
    input_embedding_norm: bool = False
    use_bias: bool = False
    use_layer_norm_weight: bool = True
    upcast_attn: bool = False
    rope: RotaryConfig = field(default_factory=DefaultRotary)

    def __post_init__(self) -> None:
        if self.head_dim is None and self.hidden_dim % self.num_heads:
            raise RefusedError(
                f"found hidden_dim: {self.hidden_dim} and num_heads: {self.num_heads}; needed heads that divide the "
                "width. Change one, or set head_dim."
            )
        if self.num_heads % self.kv_heads:
            raise RefusedError(
                f"found num_heads: {self.num_heads} and num_kv_heads: {self.kv_heads}; needed key-value heads that "
                "divide the heads. Change one."
            )

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_dim // self.num_heads

    def parameters(self, vocab_size: int) -> LanguageModel:
        return Llama.of(self, vocab_size)

    @property
    def has_plain_attention(self) -> bool:
        return not self.upcast_attn

    def cache_sizes(self) -> tuple[int, int, int]:
        return self.num_layers, self.kv_heads, self.head_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        is_qwen3, biased = config.get("model_type") == "qwen3", bool(config.get("attention_bias"))
        activation = config.get("hidden_act", "silu")
        unlike = {
            "attention_bias: true but no biases in the MLP": biased and (is_qwen3 or not config.get("mlp_bias")),
            "mlp_bias: true but no biases in attention": bool(config.get("mlp_bias")) and not biased and not is_qwen3,
            f"hidden_act: {activation}": activation not in ACTIVATIONS,
        }
        refuse_config(config, unlike | beyond_full_attention(config) | beyond_rotary(config))
        return cls(
            max_seq_len=config["max_position_embeddings"],
            hidden_dim=config["hidden_size"],
            intermediate_dim=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config.get("num_key_value_heads"),
            head_dim=config.get("head_dim"),
            activation_function=activation,
            initializer_range=config.get("initializer_range", 0.02),
            layer_norm_epsilon=config.get("rms_norm_eps", 1e-6),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            use_qk_norm=is_qwen3,
            use_bias=biased,
            rope=rotary_from_hf(config),
        )

    def to_hf(self, vocab_size: int) -> dict[str, Any]:
        if self.hybrid_norm or self.input_embedding_norm or not self.use_layer_norm_weight:
            raise RefusedError(
                "found a Llama with hybrid_norm, input_embedding_norm or without norm weights, which no model of "
                "transformers has; needed a plain one to export. Leave hf_save_path out."
            )
        if self.use_qk_norm and self.use_bias:
            raise RefusedError(
                "found a Llama with use_qk_norm and use_bias, of which transformers has only one at a time; needed one "
                "of them to export. Leave hf_save_path out."
            )
        kind = "Qwen3" if self.use_qk_norm else "Llama"
        return {"architectures": [f"{kind}ForCausalLM"], "model_type": kind.lower(), **self.hf_sizes(vocab_size)}

    def hf_sizes(self, vocab_size: int) -> dict[str, Any]:
        """What a config.json says of the sizes, whatever model it is of."""
        return {
            "vocab_size": vocab_size,
            "max_position_embeddings": self.max_seq_len,
            "hidden_size": self.hidden_dim,
            "intermediate_size": self.intermediate_dim,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "hidden_act": self.activation_function,
            "initializer_range": self.initializer_range,
            "rms_norm_eps": self.layer_norm_epsilon,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.use_bias,
            "mlp_bias": self.use_bias,
            **rotary_to_hf(self.rope),
        }

    def hf_weights(self) -> dict[str, HfWeight]:
        layer = "model.layers.{}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        return {
            "embed_VD": HfWeight("model.embed_tokens.weight", "V,D"),
            "norm_D": HfWeight("model.norm.weight", "D"),
            "w_head_DV": HfWeight("lm_head.weight", "V,D"),
            "blocks.norm_attention_D": HfWeight(f"{layer}.input_layernorm.weight", "D"),
            "blocks.norm_mlp_D": HfWeight(f"{layer}.post_attention_layernorm.weight", "D"),
            "blocks.attention.w_q_DNH": HfWeight(f"{attention}.q_proj.weight", "NH,D"),
            "blocks.attention.w_k_DKH": HfWeight(f"{attention}.k_proj.weight", "KH,D"),
            "blocks.attention.w_v_DKH": HfWeight(f"{attention}.v_proj.weight", "KH,D"),
            "blocks.attention.w_out_NHD": HfWeight(f"{attention}.o_proj.weight", "D,NH"),
            "blocks.attention.b_q_NH": HfWeight(f"{attention}.q_proj.bias", "NH"),
            "blocks.attention.b_k_KH": HfWeight(f"{attention}.k_proj.bias", "KH"),
            "blocks.attention.b_v_KH": HfWeight(f"{attention}.v_proj.bias", "KH"),
            "blocks.attention.b_out_D": HfWeight(f"{attention}.o_proj.bias", "D"),
            "blocks.attention.norm_q_H": HfWeight(f"{attention}.q_norm.weight", "H"),
            "blocks.attention.norm_k_H": HfWeight(f"{attention}.k_norm.weight", "H"),
            "blocks.mlp.w_gate_DF": HfWeight(f"{mlp}.gate_proj.weight", "F,D"),
            "blocks.mlp.w_up_DF": HfWeight(f"{mlp}.up_proj.weight", "F,D"),
            "blocks.mlp.w_down_FD": HfWeight(f"{mlp}.down_proj.weight", "D,F"),
            "blocks.mlp.b_gate_F": HfWeight(f"{mlp}.gate_proj.bias", "F"),
            "blocks.mlp.b_up_F": HfWeight(f"{mlp}.up_proj.bias", "F"),
            "blocks.mlp.b_down_D": HfWeight(f"{mlp}.down_proj.bias", "D"),
        }

    def flops_per_token(self, length: int, vocab_size: int) -> float:
        projections = self.hidden_dim * self.head_size * (2 * self.num_heads + 2 * self.kv_heads)
        mlp = 3 * self.hidden_dim * self.intermediate_dim
        attention = self.num_heads * self.head_size * length  # causal: half of the square, twice
        return 6 * (self.num_layers * (projections + mlp + attention) + self.hidden_dim * vocab_size)

    def activations(self) -> LayerActivations:
        attention, keys_values = self.num_heads * self.head_size, 2 * self.kv_heads * self.head_size
        return LayerActivations(
            input=self.hidden_dim,
            products=attention + keys_values + 2 * self.intermediate_dim,
            product_of_width=self.hidden_dim,
            attention=attention,
            norms=2 * self.hidden_dim,
            rest=self.intermediate_dim,
        )


class Attention(eqx.Module):
    """Attention with rotary positions."""

    w_q_DNH: Array
    w_k_DKH: Array
    w_v_DKH: Array
    w_out_NHD: Array
    b_q_NH: Array | None
    b_k_KH: Array | None
    b_v_KH: Array | None
    b_out_D: Array | None
    norm_q_H: Array | None
    norm_k_H: Array | None

    @classmethod
    def of(cls, config: LlamaConfig) -> "Attention":
        width = {"embed": config.hidden_dim}
        heads = {"heads": config.num_heads, "head_size": config.head_size}
        kv_heads = {"kv_heads": config.kv_heads, "head_size": config.head_size}
        std = config.initializer_range

        def weight(sizes: dict[str, int]) -> Any:
            return Parameter(sizes, std=std)

        def bias(sizes: dict[str, int]) -> Any:
            return Parameter(sizes) if config.use_bias else None

        norm: Any = Parameter({"head_size": config.head_size}, mean=1.0) if config.use_qk_norm else None
        return cls(
            w_q_DNH=weight(width | heads),
            w_k_DKH=weight(width | kv_heads),
            w_v_DKH=weight(width | kv_heads),
            w_out_NHD=weight(heads | width),
            b_q_NH=bias(heads),
            b_k_KH=bias(kv_heads),
            b_v_KH=bias(kv_heads),
            b_out_D=bias(width),
            norm_q_H=norm,
            norm_k_H=norm,
        )

    def project(
        self, for_q_BSD: Array, for_k_BSD: Array, for_v_BSD: Array, rotary: Rotary, epsilon: float, tensor: Tensor
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values; of the same in most models."""
        weights = self.w_q_DNH, self.w_k_DKH, self.w_v_DKH
        q_BSNH, k_BSKH, v_BSKH = linear_each((for_q_BSD, for_k_BSD, for_v_BSD), weights)
        q_BSNH, k_BSKH, v_BSKH = _plus(q_BSNH, self.b_q_NH), _plus(k_BSKH, self.b_k_KH), _plus(v_BSKH, self.b_v_KH)
        if self.norm_q_H is not None and self.norm_k_H is not None:
            q_BSNH = rms_norm(q_BSNH, tensor.enter(self.norm_q_H), epsilon)
            k_BSKH = rms_norm(k_BSKH, tensor.enter(self.norm_k_H), epsilon)
        return rotary(q_BSNH), rotary(k_BSKH), v_BSKH

    def output(self, mixed_BSNH: Array, tensor: Tensor) -> Array:
        return _plus(tensor.leave(linear(mixed_BSNH, self.w_out_NHD, 2)), self.b_out_D)


Behind = Callable[[Array, Array, Activation, Array | Fp8Weight], Array]  # of gate and up, the last product of an MLP


class Mlp(eqx.Module):
    """Gated MLP."""

    w_gate_DF: Array
    w_up_DF: Array
    w_down_FD: Array
    b_gate_F: Array | None
    b_up_F: Array | None
    b_down_D: Array | None

    @classmethod
    def of(cls, config: LlamaConfig, inner_width: int | None = None) -> "Mlp":
        width, inner = {"embed": config.hidden_dim}, {"mlp": inner_width or config.intermediate_dim}
        std = config.initializer_range

        def bias(sizes: dict[str, int]) -> Any:
            return Parameter(sizes) if config.use_bias else None

        into: Any = Parameter(width | inner, std=std)
        back: Any = Parameter(inner | width, std=std)
        return cls(into, into, back, bias(inner), bias(inner), bias(width))

    def __call__(self, x_BSD: Array, activation: ActivationName, tensor: Tensor, behind: Behind) -> Array:
        """The MLP of x.

        Args:
            behind: what makes the last product, of gate and up.
        """
        x_BSD = tensor.enter(x_BSD)
        gate_BSF, up_BSF = linears(x_BSD, self.w_gate_DF, self.w_up_DF)
        gate_BSF, up_BSF = _plus(gate_BSF, self.b_gate_F), _plus(up_BSF, self.b_up_F)
        product_BSD = behind(gate_BSF, up_BSF, ACTIVATIONS[activation], self.w_down_FD)
        return _plus(tensor.leave(product_BSD), self.b_down_D)


class Block(eqx.Module):
    """One layer."""

    norm_attention_D: Array | None
    attention: Attention
    norm_mlp_D: Array | None
    mlp: Mlp
    norm_after_attention_D: Array | None  # of hybrid norm
    norm_after_mlp_D: Array | None

    @classmethod
    def of(cls, config: LlamaConfig) -> "Block":
        norm = norm_of(config)
        after = norm if config.hybrid_norm else None
        return cls(norm, Attention.of(config), norm, Mlp.of(config), after, after)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass through the layers: what all of them are given."""

    config: LlamaConfig
    tokens: Tokens
    past: KeyValues | None
    rotary: Rotary

    def layer(self, block: Block, x_BSD: Array, kept: Any) -> tuple[Array, Any]:
        """x behind a layer, and the layer's cache."""
        normed, x_BSD = rms_norm_beside(x_BSD, block.norm_attention_D, self.config.layer_norm_epsilon)
        normed = self.tokens.tensor.of("heads").enter(normed)
        return self.behind_norm(block, (normed, normed, normed), x_BSD, block.mlp, kept)

    def behind_norm(
        self,
        block: Any,
        inputs: tuple[Array, Array, Array],
        x_BSD: Array,
        mlp: Mlp,
        kept: Any,
        term: Term | None = None,
    ) -> tuple[Array, Any]:
        """The rest of a layer: attention of what queries, keys and values are made of, added to x, and the MLP.

        Args:
            term: of x, whose gradient is made here.
        """
        config, epsilon, heads = self.config, self.config.layer_norm_epsilon, self.tokens.tensor.of("heads")
        qkv = block.attention.project(*inputs, self.rotary, epsilon, heads)
        mixed, kept = attend_after(
            self.past, kept, qkv, self.tokens, backend=config.attn_backend, is_upcast=config.upcast_attn
        )
        attended = block.attention.output(mixed, heads)
        if config.hybrid_norm:
            attended = rms_norm(attended, block.norm_after_attention_D, epsilon)
        normed, x_BSD = rms_norm_beside(x_BSD + attended, block.norm_mlp_D, epsilon, term)
        made = mlp(normed, config.activation_function, self.tokens.tensor.of("mlp"), self.behind_gate)
        if config.hybrid_norm:
            made = rms_norm(made, block.norm_after_mlp_D, epsilon)
        return x_BSD + made, kept

    def behind_gate(self, gate: Array, up: Array, activation: Activation, weight: Array | Fp8Weight) -> Array:
        """The last product of an MLP."""
        return linear(gated(gate, up, activation), weight)


class Llama(Decoder):
    """The whole model; its layers are stacked."""

    embed_VD: Array
    norm_embed_D: Array | None
    blocks: Block
    norm_D: Array | None
    w_head_DV: Array | None  # None: tied to the embeddings
    config: LlamaConfig = eqx.field(static=True)

    @classmethod
    def of(cls, config: LlamaConfig, vocab_size: int) -> "Llama":
        vocabulary, width = {"vocab": vocab_size}, {"embed": config.hidden_dim}
        embed: Any = Parameter(vocabulary | width, std=config.initializer_range)
        head: Any = None if config.tie_word_embeddings else Parameter(width | vocabulary, std=config.initializer_range)
        norm = norm_of(config)
        return cls(
            embed_VD=embed,
            norm_embed_D=norm if config.input_embedding_norm else None,
            blocks=stacked(Block.of(config), config.num_layers),
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
        run = Pass(config=config, tokens=tokens, past=past, rotary=rotary)
        x_BSD, kept = fold_layers(
            self.blocks,
            x_BSD,
            lambda block, x_BSD, _, kept: run.layer(block, x_BSD, kept),
            None if past is None else (past.keys, past.values),
            is_scanned=config.scan_layers,
            checkpointing=False if past is not None else config.gradient_checkpointing,
        )
        return rms_norm(x_BSD, whole(self.norm_D), epsilon), kept


def norm_of(config: LlamaConfig) -> Any:
    """The weight of a norm over the width, if there is one."""
    return Parameter({"embed": config.hidden_dim}, mean=1.0) if config.use_layer_norm_weight else None


def _plus(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias
