"""GPT-NeoX, as Pythia: attention and MLP side by side, rotary positions in the first part of each head, biases.

In: tokens. Out: hidden states [B, S, D]. B batch, S sequence, D width, N heads, H head size, F MLP width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import equinox as eqx
from jax import Array

from ponente.config.errors import RefusedError
from ponente.models.activations import LayerActivations
from ponente.models.decoding import Decoder, attend_after
from ponente.models.hf_config import beyond_rotary, refuse_config
from ponente.models.huggingface import HfWeight
from ponente.models.lm import ACTIVATIONS, ActivationName, KeyValues, LanguageModel, LmConfig, Tokens
from ponente.models.parameters import Parameter, stacked
from ponente.models.stack import fold_layers
from ponente.ops.embedding import lookup_split
from ponente.ops.linear import linear
from ponente.ops.mesh import Tensor, whole
from ponente.ops.norm import layer_norm
from ponente.ops.rotary import DefaultRotary, Rotary, RotaryConfig, rotary_at, rotary_from_hf, rotary_to_hf

_ROTARY_PART, _ROTARY_THETA = 0.25, 10000.0  # where a config.json does not say
_SAME_ACTIVATION = {"gelu_fast": "gelu_new"}  # of GPT-NeoX 20B: the same but for rounding


@LmConfig.register_subclass("gpt_neox")
@dataclass(frozen=True, kw_only=True)
class GptNeoxConfig(LmConfig):
    """Sizes of a GPT-NeoX."""

    hf_model_types: ClassVar[tuple[str, ...]] = ("gpt_neox",)
    usual_reference: ClassVar[str | None] = "EleutherAI/pythia-1.4b"

    hidden_dim: int = 2048
    intermediate_dim: int = 8192
    num_layers: int = 24
    num_heads: int = 16
    activation_function: ActivationName = "gelu"
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    use_parallel_residual: bool = True  # false: the MLP comes after attention, and sees what it added
    upcast_attn: bool = False
    rotary_pct: float = 0.25  # of each head, which part turns with its position
    rope: RotaryConfig = field(default_factory=DefaultRotary)

    def __post_init__(self) -> None:
        if self.hidden_dim % self.num_heads:
            raise RefusedError(
                f"found hidden_dim: {self.hidden_dim} and num_heads: {self.num_heads}; needed heads that divide the "
                "width. Change one."
            )
        if not 2 <= self.rotary_size <= self.head_size or self.rotary_size % 2:
            raise RefusedError(
                f"found rotary_pct: {self.rotary_pct}, which is {self.rotary_size} of a head's {self.head_size} "
                "numbers; needed an even number of them, at least 2. Change rotary_pct."
            )

    @property
    def head_size(self) -> int:
        return self.hidden_dim // self.num_heads

    @property
    def rotary_size(self) -> int:
        """How many numbers of each head turn."""
        return int(self.head_size * self.rotary_pct)

    def parameters(self, vocab_size: int) -> LanguageModel:
        return GptNeox.of(self, vocab_size)

    @property
    def has_plain_attention(self) -> bool:
        return not self.upcast_attn

    def cache_sizes(self) -> tuple[int, int, int]:
        return self.num_layers, self.num_heads, self.head_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        stored = config.get("hidden_act", "gelu")
        activation: Any = _SAME_ACTIVATION.get(stored, stored)
        rotary_pct, plain = _rotary_apart(config)
        unlike = {
            "attention_bias: false": config.get("attention_bias") is False,
            f"hidden_act: {activation}": activation not in ACTIVATIONS,
        }
        refuse_config(config, unlike | beyond_rotary(plain))
        return cls(
            max_seq_len=config["max_position_embeddings"],
            hidden_dim=config["hidden_size"],
            intermediate_dim=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            activation_function=activation,
            initializer_range=config.get("initializer_range", 0.02),
            layer_norm_epsilon=config.get("layer_norm_eps", 1e-5),
            tie_word_embeddings=config.get("tie_word_embeddings", False),
            use_parallel_residual=config.get("use_parallel_residual", True),
            rotary_pct=rotary_pct,
            rope=rotary_from_hf(plain),
        )

    def to_hf(self, vocab_size: int) -> dict[str, Any]:
        rotary = rotary_to_hf(self.rope)["rope_parameters"]
        return {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": vocab_size,
            "max_position_embeddings": self.max_seq_len,
            "hidden_size": self.hidden_dim,
            "intermediate_size": self.intermediate_dim,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "hidden_act": self.activation_function,
            "initializer_range": self.initializer_range,
            "layer_norm_eps": self.layer_norm_epsilon,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_parallel_residual": self.use_parallel_residual,
            "attention_bias": True,
            "rotary_pct": self.rotary_pct,  # as older versions of transformers read it
            "rotary_emb_base": self.rope.theta,
            "rope_parameters": {**rotary, "partial_rotary_factor": self.rotary_pct},
        }

    def hf_weights(self) -> dict[str, HfWeight]:
        layer = "gpt_neox.layers.{}"
        attention, mlp = f"{layer}.attention", f"{layer}.mlp"
        table = {
            "embed_VD": HfWeight("gpt_neox.embed_in.weight", "V,D"),
            "norm_D": HfWeight("gpt_neox.final_layer_norm.weight", "D"),
            "norm_bias_D": HfWeight("gpt_neox.final_layer_norm.bias", "D"),
            "w_head_DV": HfWeight("embed_out.weight", "V,D"),
            "blocks.norm_attention_D": HfWeight(f"{layer}.input_layernorm.weight", "D"),
            "blocks.norm_attention_bias_D": HfWeight(f"{layer}.input_layernorm.bias", "D"),
            "blocks.norm_mlp_D": HfWeight(f"{layer}.post_attention_layernorm.weight", "D"),
            "blocks.norm_mlp_bias_D": HfWeight(f"{layer}.post_attention_layernorm.bias", "D"),
            "blocks.attention.w_out_NHD": HfWeight(f"{attention}.dense.weight", "D,NH"),
            "blocks.attention.b_out_D": HfWeight(f"{attention}.dense.bias", "D"),
            "blocks.mlp.w_up_DF": HfWeight(f"{mlp}.dense_h_to_4h.weight", "F,D"),
            "blocks.mlp.b_up_F": HfWeight(f"{mlp}.dense_h_to_4h.bias", "F"),
            "blocks.mlp.w_down_FD": HfWeight(f"{mlp}.dense_4h_to_h.weight", "D,F"),
            "blocks.mlp.b_down_D": HfWeight(f"{mlp}.dense_4h_to_h.bias", "D"),
        }
        for part, name in enumerate("qkv"):  # head by head, each with its query, key and value
            table[f"blocks.attention.w_{name}_DNH"] = HfWeight(
                f"{attention}.query_key_value.weight", "N*H,D", (part, 3)
            )
            table[f"blocks.attention.b_{name}_NH"] = HfWeight(f"{attention}.query_key_value.bias", "N*H", (part, 3))
        return table

    def flops_per_token(self, length: int, vocab_size: int) -> float:
        width = self.hidden_dim
        layer = 4 * width * width + 2 * width * self.intermediate_dim + width * length
        return 6 * (self.num_layers * layer + width * vocab_size)

    def activations(self) -> LayerActivations:
        width = self.hidden_dim
        return LayerActivations(
            input=width,
            products=3 * width + self.intermediate_dim,
            product_of_width=0 if self.use_parallel_residual else width,  # side by side, nothing is made of it
            attention=width,
            norms=2 * width,
            rest=self.intermediate_dim,
        )


def _rotary_apart(config: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Which part of a head turns, and the config without that, its rotary positions as other families store them."""
    stored = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    part = stored.pop("partial_rotary_factor", config.get("rotary_pct", _ROTARY_PART))
    return part, {**config, "rope_parameters": {"rope_theta": config.get("rotary_emb_base", _ROTARY_THETA), **stored}}


class Attention(eqx.Module):
    """Attention with rotary positions and biases; queries, keys and values may be made of different inputs."""

    w_q_DNH: Array
    w_k_DNH: Array
    w_v_DNH: Array
    w_out_NHD: Array
    b_q_NH: Array
    b_k_NH: Array
    b_v_NH: Array
    b_out_D: Array

    @classmethod
    def of(cls, *, width: int, num_heads: int, head_size: int, std: float) -> "Attention":
        outer, heads = {"embed": width}, {"heads": num_heads, "head_size": head_size}
        into: Any = Parameter(outer | heads, std=std)
        back: Any = Parameter(heads | outer, std=std)
        bias: Any = Parameter(heads)
        last_bias: Any = Parameter(outer)
        return cls(into, into, into, back, bias, bias, bias, last_bias)

    def project(
        self, for_q_BSD: Array, for_k_BSD: Array, for_v_BSD: Array, rotary: Rotary
    ) -> tuple[Array, Array, Array]:
        """Queries, keys and values; of the same in most models."""
        q_BSNH = linear(for_q_BSD, self.w_q_DNH) + self.b_q_NH
        k_BSNH = linear(for_k_BSD, self.w_k_DNH) + self.b_k_NH
        v_BSNH = linear(for_v_BSD, self.w_v_DNH) + self.b_v_NH
        return rotary(q_BSNH), rotary(k_BSNH), v_BSNH

    def output(self, mixed_BSNH: Array, tensor: Tensor) -> Array:
        return tensor.leave(linear(mixed_BSNH, self.w_out_NHD, 2)) + self.b_out_D


class Mlp(eqx.Module):
    """MLP with biases."""

    w_up_DF: Array
    w_down_FD: Array
    b_up_F: Array
    b_down_D: Array

    @classmethod
    def of(cls, *, width: int, inner_width: int, std: float) -> "Mlp":
        outer, inner = {"embed": width}, {"mlp": inner_width}
        into: Any = Parameter(outer | inner, std=std)
        back: Any = Parameter(inner | outer, std=std)
        bias: Any = Parameter(inner)
        last_bias: Any = Parameter(outer)
        return cls(into, back, bias, last_bias)

    def __call__(self, x_BSD: Array, activation: ActivationName, tensor: Tensor) -> Array:
        up_BSF = linear(tensor.enter(x_BSD), self.w_up_DF) + self.b_up_F
        return tensor.leave(linear(ACTIVATIONS[activation](up_BSF), self.w_down_FD)) + self.b_down_D


class Block(eqx.Module):
    """One layer."""

    norm_attention_D: Array
    norm_attention_bias_D: Array
    attention: Attention
    norm_mlp_D: Array
    norm_mlp_bias_D: Array
    mlp: Mlp

    @classmethod
    def of(cls, config: GptNeoxConfig) -> "Block":
        width, std = config.hidden_dim, config.initializer_range
        norm: Any = Parameter({"embed": width}, mean=1.0)
        bias: Any = Parameter({"embed": width})
        attention = Attention.of(width=width, num_heads=config.num_heads, head_size=config.head_size, std=std)
        return cls(norm, bias, attention, norm, bias, Mlp.of(width=width, inner_width=config.intermediate_dim, std=std))


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass through the layers: what all of them are given."""

    config: GptNeoxConfig
    tokens: Tokens
    past: KeyValues | None
    rotary: Rotary

    def layer(self, block: Block, x_BSD: Array, kept: Any) -> tuple[Array, Any]:
        """x behind a layer, and the layer's cache."""
        normed = self.normed(x_BSD, block.norm_attention_D, block.norm_attention_bias_D)
        return self.behind_norm(block, (normed, normed, normed), x_BSD, block.mlp, kept)

    def normed(self, x_BSD: Array, weight_D: Array, bias_D: Array) -> Array:
        """What queries, keys or values are made of; entered once, for one sum of gradients where it is all three."""
        return self.tokens.tensor.of("heads").enter(layer_norm(x_BSD, weight_D, bias_D, self.config.layer_norm_epsilon))

    def behind_norm(
        self, block: Any, inputs: tuple[Array, Array, Array], x_BSD: Array, mlp: Mlp, kept: Any
    ) -> tuple[Array, Any]:
        """The rest of a layer: attention of what queries, keys and values are made of, added to x, and the MLP."""
        config, heads = self.config, self.tokens.tensor.of("heads")
        qkv = block.attention.project(*inputs, self.rotary)
        mixed, kept = attend_after(
            self.past, kept, qkv, self.tokens, backend=config.attn_backend, is_upcast=config.upcast_attn
        )
        after_BSD = x_BSD + block.attention.output(mixed, heads)
        seen_BSD = x_BSD if config.use_parallel_residual else after_BSD
        normed = layer_norm(seen_BSD, block.norm_mlp_D, block.norm_mlp_bias_D, config.layer_norm_epsilon)
        return after_BSD + mlp(normed, config.activation_function, self.tokens.tensor.of("mlp")), kept


class GptNeox(Decoder):
    """The whole model; its layers are stacked."""

    embed_VD: Array
    blocks: Block
    norm_D: Array
    norm_bias_D: Array
    w_head_DV: Array | None  # None: tied to the embeddings
    config: GptNeoxConfig = eqx.field(static=True)

    @classmethod
    def of(cls, config: GptNeoxConfig, vocab_size: int) -> "GptNeox":
        vocabulary, width = {"vocab": vocab_size}, {"embed": config.hidden_dim}
        embed: Any = Parameter(vocabulary | width, std=config.initializer_range)
        norm: Any = Parameter(width, mean=1.0)
        bias: Any = Parameter(width)
        head: Any = None if config.tie_word_embeddings else Parameter(width | vocabulary, std=config.initializer_range)
        return cls(
            embed_VD=embed,
            blocks=stacked(Block.of(config), config.num_layers),
            norm_D=norm,
            norm_bias_D=bias,
            w_head_DV=head,
            config=config,
        )

    def _run(self, tokens: Tokens, past: KeyValues | None) -> tuple[Array, Any]:
        config, epsilon = self.config, self.config.layer_norm_epsilon
        x_BSD = lookup_split(whole(self.embed_VD), tokens.ids_BS, tokens.tensor.of("vocab"))
        rotary = rotary_at(config.rope, tokens.positions_BS, config.rotary_size, x_BSD.dtype)
        run = Pass(config=config, tokens=tokens, past=past, rotary=rotary)
        x_BSD, kept = fold_layers(
            self.blocks,
            x_BSD,
            lambda block, x_BSD, _, kept: run.layer(block, x_BSD, kept),
            None if past is None else (past.keys, past.values),
            is_scanned=config.scan_layers,
            checkpointing=False if past is not None else config.gradient_checkpointing,
        )
        return layer_norm(x_BSD, whole(self.norm_D), whole(self.norm_bias_D), epsilon), kept
