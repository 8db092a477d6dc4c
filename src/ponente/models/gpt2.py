"""GPT-2: learned positions, layer norms with biases, a plain MLP, tied embeddings, dropout.

In: tokens. Out: hidden states [B, S, D]. B batch, S sequence, P positions, D width, N heads, H head size, F MLP width,
V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
from jax import Array

from ponente.config.errors import RefusedError
from ponente.models.activations import LayerActivations
from ponente.models.decoding import Decoder, attend_after
from ponente.models.hf_config import refuse_config
from ponente.models.huggingface import HfWeight
from ponente.models.lm import ACTIVATIONS, ActivationName, KeyValues, LmConfig, Tokens
from ponente.models.parameters import Parameter, stacked
from ponente.models.stack import fold_layers
from ponente.ops.attention import AttentionDropout
from ponente.ops.embedding import lookup, lookup_split
from ponente.ops.linear import linear
from ponente.ops.mesh import whole
from ponente.ops.norm import layer_norm


@LmConfig.register_subclass("gpt2")
@dataclass(frozen=True, kw_only=True)
class Gpt2Config(LmConfig):
    """Sizes of a GPT-2."""

    hf_model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    usual_reference: ClassVar[str | None] = "openai-community/gpt2"

    max_seq_len: int = 1024
    hidden_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_scale: int = 4  # width of the MLP in widths of the model
    activation_function: ActivationName = "gelu_new"
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    embed_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    scale_attn_by_inverse_layer_idx: bool = False
    upcast_attn: bool = False
    use_bias: bool = True
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        if self.hidden_dim % self.num_heads:
            raise RefusedError(
                f"found hidden_dim: {self.hidden_dim} and num_heads: {self.num_heads}; needed heads that divide the "
                "width. Change one."
            )

    @property
    def head_size(self) -> int:
        return self.hidden_dim // self.num_heads

    @property
    def intermediate_dim(self) -> int:
        return self.mlp_scale * self.hidden_dim

    def parameters(self, vocab_size: int) -> "Gpt2":
        return Gpt2.of(self, vocab_size)

    @property
    def has_plain_attention(self) -> bool:
        return not self.upcast_attn and not self.attn_pdrop

    def cache_sizes(self) -> tuple[int, int, int]:
        return self.num_layers, self.num_heads, self.head_size

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "Gpt2Config":
        activation = config.get("activation_function", "gelu_new")
        unlike = {
            "scale_attn_weights: false": config.get("scale_attn_weights") is False,
            "add_cross_attention: true": bool(config.get("add_cross_attention")),
            f"activation_function: {activation}": activation not in ACTIVATIONS,
        }
        refuse_config(config, unlike)
        width, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
        if inner % width:
            raise RefusedError(f"found n_inner: {inner} of a width of {width}; needed a multiple. Use another model.")
        return cls(
            max_seq_len=config["n_positions"],
            hidden_dim=width,
            num_layers=config["n_layer"],
            num_heads=config["n_head"],
            mlp_scale=inner // width,
            activation_function=activation,
            initializer_range=config.get("initializer_range", 0.02),
            layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
            embed_pdrop=config.get("embd_pdrop", 0.1),
            resid_pdrop=config.get("resid_pdrop", 0.1),
            attn_pdrop=config.get("attn_pdrop", 0.1),
            scale_attn_by_inverse_layer_idx=config.get("scale_attn_by_inverse_layer_idx", False),
            tie_word_embeddings=config.get("tie_word_embeddings", True),
        )

    def to_hf(self, vocab_size: int) -> dict[str, Any]:
        if not self.use_bias:
            raise RefusedError(
                "found a GPT-2 without biases, which transformers does not have; needed use_bias: true to export. "
                "Leave hf_save_path out."
            )
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": vocab_size,
            "n_positions": self.max_seq_len,
            "n_embd": self.hidden_dim,
            "n_inner": self.intermediate_dim,
            "n_layer": self.num_layers,
            "n_head": self.num_heads,
            "activation_function": self.activation_function,
            "initializer_range": self.initializer_range,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "embd_pdrop": self.embed_pdrop,
            "resid_pdrop": self.resid_pdrop,
            "attn_pdrop": self.attn_pdrop,
            "scale_attn_by_inverse_layer_idx": self.scale_attn_by_inverse_layer_idx,
            "tie_word_embeddings": self.tie_word_embeddings,
        }

    def hf_weights(self) -> dict[str, HfWeight]:
        layer = "transformer.h.{}"
        table = {
            "embed_VD": HfWeight("transformer.wte.weight", "V,D"),
            "embed_positions_PD": HfWeight("transformer.wpe.weight", "P,D"),
            "norm_D": HfWeight("transformer.ln_f.weight", "D"),
            "norm_bias_D": HfWeight("transformer.ln_f.bias", "D"),
            "w_head_DV": HfWeight("lm_head.weight", "V,D"),
            "blocks.norm_attention_D": HfWeight(f"{layer}.ln_1.weight", "D"),
            "blocks.norm_attention_bias_D": HfWeight(f"{layer}.ln_1.bias", "D"),
            "blocks.norm_mlp_D": HfWeight(f"{layer}.ln_2.weight", "D"),
            "blocks.norm_mlp_bias_D": HfWeight(f"{layer}.ln_2.bias", "D"),
            "blocks.w_out_NHD": HfWeight(f"{layer}.attn.c_proj.weight", "NH,D"),
            "blocks.b_out_D": HfWeight(f"{layer}.attn.c_proj.bias", "D"),
            "blocks.w_up_DF": HfWeight(f"{layer}.mlp.c_fc.weight", "D,F"),
            "blocks.b_up_F": HfWeight(f"{layer}.mlp.c_fc.bias", "F"),
            "blocks.w_down_FD": HfWeight(f"{layer}.mlp.c_proj.weight", "F,D"),
            "blocks.b_down_D": HfWeight(f"{layer}.mlp.c_proj.bias", "D"),
        }
        for part, name in enumerate("qkv"):
            table[f"blocks.w_{name}_DNH"] = HfWeight(f"{layer}.attn.c_attn.weight", "D,NH", (part, 3))
            table[f"blocks.b_{name}_NH"] = HfWeight(f"{layer}.attn.c_attn.bias", "NH", (part, 3))
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
            product_of_width=width,
            attention=width,
            norms=2 * width,
            rest=self.intermediate_dim,
        )


class Block(eqx.Module):
    """One layer."""

    norm_attention_D: Array
    norm_attention_bias_D: Array | None
    w_q_DNH: Array
    w_k_DNH: Array
    w_v_DNH: Array
    w_out_NHD: Array
    b_q_NH: Array | None
    b_k_NH: Array | None
    b_v_NH: Array | None
    b_out_D: Array | None
    norm_mlp_D: Array
    norm_mlp_bias_D: Array | None
    w_up_DF: Array
    w_down_FD: Array
    b_up_F: Array | None
    b_down_D: Array | None

    @classmethod
    def of(cls, config: Gpt2Config) -> "Block":
        width, inner = {"embed": config.hidden_dim}, {"mlp": config.intermediate_dim}
        heads = {"heads": config.num_heads, "head_size": config.head_size}
        std = config.initializer_range
        into_residual = std / (2 * config.num_layers) ** 0.5  # as GPT-2 begins

        def weight(sizes: dict[str, int], std: float = std) -> Any:
            return Parameter(sizes, std=std)

        def bias(sizes: dict[str, int]) -> Any:
            return Parameter(sizes) if config.use_bias else None

        one: Any = Parameter(width, mean=1.0)
        return cls(
            norm_attention_D=one,
            norm_attention_bias_D=bias(width),
            w_q_DNH=weight(width | heads),
            w_k_DNH=weight(width | heads),
            w_v_DNH=weight(width | heads),
            w_out_NHD=weight(heads | width, into_residual),
            b_q_NH=bias(heads),
            b_k_NH=bias(heads),
            b_v_NH=bias(heads),
            b_out_D=bias(width),
            norm_mlp_D=one,
            norm_mlp_bias_D=bias(width),
            w_up_DF=weight(width | inner),
            w_down_FD=weight(inner | width, into_residual),
            b_up_F=bias(inner),
            b_down_D=bias(width),
        )


class Gpt2(Decoder):
    """The whole model; its layers are stacked."""

    embed_VD: Array
    embed_positions_PD: Array
    blocks: Block
    norm_D: Array
    norm_bias_D: Array | None
    w_head_DV: Array | None  # None: tied to the embeddings
    config: Gpt2Config = eqx.field(static=True)

    @classmethod
    def of(cls, config: Gpt2Config, vocab_size: int) -> "Gpt2":
        width, vocabulary, std = {"embed": config.hidden_dim}, {"vocab": vocab_size}, config.initializer_range
        embed: Any = Parameter(vocabulary | width, std=std)
        positions: Any = Parameter({"position": config.max_seq_len} | width, std=std)
        norm: Any = Parameter(width, mean=1.0)
        bias: Any = Parameter(width) if config.use_bias else None
        head: Any = None if config.tie_word_embeddings else Parameter(width | vocabulary, std=std)
        return cls(
            embed_VD=embed,
            embed_positions_PD=positions,
            blocks=stacked(Block.of(config), config.num_layers),
            norm_D=norm,
            norm_bias_D=bias,
            w_head_DV=head,
            config=config,
        )

    def _run(self, tokens: Tokens, past: KeyValues | None) -> tuple[Array, Any]:
        config, epsilon, dropout = self.config, self.config.layer_norm_epsilon, tokens.dropout
        heads, inner = tokens.tensor.of("heads"), tokens.tensor.of("mlp")
        x_BSD = lookup_split(whole(self.embed_VD), tokens.ids_BS, tokens.tensor.of("vocab"))
        x_BSD = x_BSD + lookup(whole(self.embed_positions_PD), tokens.positions_BS)
        if dropout is not None:
            x_BSD = dropout.within(config.num_layers)(x_BSD, config.embed_pdrop)

        def layer(block: Block, x_BSD: Array, number: Array, kept: Any) -> tuple[Array, Any]:
            here = None if dropout is None else dropout.within(number)
            normed = heads.enter(layer_norm(x_BSD, block.norm_attention_D, block.norm_attention_bias_D, epsilon))
            q, k, v = (
                _plus(linear(normed, weight), bias)
                for weight, bias in (
                    (block.w_q_DNH, block.b_q_NH),
                    (block.w_k_DNH, block.b_k_NH),
                    (block.w_v_DNH, block.b_v_NH),
                )
            )
            if config.scale_attn_by_inverse_layer_idx:
                q = q / (number + 1).astype(q.dtype)
            dropped = None if here is None else AttentionDropout(here.within(0).keys_B(), config.attn_pdrop, heads)
            mixed, kept = attend_after(
                past,
                kept,
                (q, k, v),
                tokens,
                backend=config.attn_backend,
                is_upcast=config.upcast_attn,
                dropout=dropped,
            )
            attended = _plus(heads.leave(linear(mixed, block.w_out_NHD, 2)), block.b_out_D)
            x_BSD = x_BSD + (attended if here is None else here.within(1)(attended, config.resid_pdrop))
            normed = inner.enter(layer_norm(x_BSD, block.norm_mlp_D, block.norm_mlp_bias_D, epsilon))
            up_BSF = _plus(linear(normed, block.w_up_DF), block.b_up_F)
            active_BSF = ACTIVATIONS[config.activation_function](up_BSF)
            made = _plus(inner.leave(linear(active_BSF, block.w_down_FD)), block.b_down_D)
            return x_BSD + (made if here is None else here.within(2)(made, config.resid_pdrop)), kept

        x_BSD, kept = fold_layers(
            self.blocks,
            x_BSD,
            layer,
            None if past is None else (past.keys, past.values),
            is_scanned=config.scan_layers,
            checkpointing=False if past is not None else config.gradient_checkpointing,
        )
        return layer_norm(x_BSD, whole(self.norm_D), whole(self.norm_bias_D), epsilon), kept


def _plus(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias
