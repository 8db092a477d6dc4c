"""MUDDFormer and MUDDPythia in PyTorch, for `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`.

In: a folder that Ponente exported, which has this file beside the weights. Out: a model of transformers 5 with cache,
`generate` and loss. Layers are Llama's or Pythia's; what their queries, keys and values are made of, and what they add
to, are mixtures of all states before them, weighed for each token. Ponente itself never imports this.
B batch, S sequence, D width, C ways, M states.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import can_return_tuple


class ConnectedConfig(PreTrainedConfig):
    """What both kinds of layers have, and the connections between them."""

    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 32000
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: Any = None  # a number; None: as many as heads
    head_dim: Any = None  # a number; None: hidden_size / num_attention_heads
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.006
    tie_word_embeddings: bool = False
    use_cache: bool = True
    attention_bias: bool = False
    use_qk_norm: bool = False
    input_embedding_norm: bool = False
    rope_parameters: Any = None  # as transformers has them; None: of type default
    dynamic_dense_type: str = "qkvm"  # the ways with mixtures of their own; l: one for all
    dynamic_dense_act_cls: str = "gelu"
    dynamic_dense_fix_last_layer: bool = True  # behind the last layer there is one mixture, the residual's
    dynamic_dense_hidden_expand: list[int] | None = None  # of each layer's inner width; None: 1, the last 4
    dynamic_dense_hidden_round: bool = True
    mudd_prenorm: bool = False  # states are normed before they are mixed
    mudd_postnorm: bool = False  # so is the residual's mixture, behind
    mudd_static: bool = True  # weights have a part that is the same for all tokens
    mudd_dynamic: bool = True  # and one that is made of the token's state
    mudd_dilation: int = 1  # mixtures are made of each so-manieth state, counted back from the last
    mudd_period: int = 1  # and behind each so-manieth layer, and the last
    dynamic_mlp_dim: bool = False  # MLPs grow with depth, from half the width to one and a half

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        if not self.rope_parameters:
            self.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
        self.ignore_keys_at_rope_validation = {"partial_rotary_factor"}
        super().__post_init__(**kwargs)

    @property
    def adds_to_state(self) -> bool:
        """Whether mixtures are added to the last state, instead of weighing it like the others."""
        return self.mudd_prenorm or self.mudd_postnorm or not self.mudd_static

    @property
    def mixes_residuals(self) -> bool:
        return self.dynamic_dense_type[-1] in "ml"

    def mlp_width(self, layer: int) -> int:
        """Of a layer, counted from 0."""
        if not self.dynamic_mlp_dim:
            return self.intermediate_size
        share = layer / max(1, self.num_hidden_layers - 1) + 0.5
        return max(1, round(self.intermediate_size * share / 128)) * 128

    def ways(self, number: int) -> str:
        """Those with mixtures behind so many layers."""
        is_fixed = number == self.num_hidden_layers and self.dynamic_dense_fix_last_layer
        return self.dynamic_dense_type[-1:] if is_fixed else self.dynamic_dense_type

    def sources(self, number: int) -> range:
        """Of the states 0 (the embedding) to `number`, those that are mixed behind so many layers."""
        is_last = number == self.num_hidden_layers
        if (number % self.mudd_period and not is_last) or (is_last and not self.mixes_residuals):
            return range(0)
        return range(number % self.mudd_dilation, number + 1, self.mudd_dilation)

    def has_norm(self, number: int) -> bool:
        """Whether the state behind so many layers is normed, for it is mixed there or behind a later one."""
        mixing = range(max(1, number), self.num_hidden_layers + 1)
        return self.mudd_prenorm and any(number in self.sources(later) for later in mixing)

    def inner_width(self, number: int) -> int:
        """Of the network that weighs states behind so many layers."""
        expand = self.dynamic_dense_hidden_expand
        factor = expand[number - 1] if expand else 4 if number == self.num_hidden_layers else 1
        width = len(self.ways(number)) * len(self.sources(number)) * factor
        return (width // 64 + 1) * 64 if self.dynamic_dense_hidden_round else width


class MuddConfig(ConnectedConfig):
    """Llama's layers with connections."""

    model_type = "mudd"

    rms_norm_eps: float = 1e-6
    mlp_bias: bool = False
    hybrid_norm: bool = False  # what attention and MLP give is normed too
    use_layer_norm_weight: bool = True

    @property
    def epsilon(self) -> float:
        return self.rms_norm_eps


class MuddPythiaConfig(ConnectedConfig):
    """Pythia's layers with connections."""

    model_type = "mudd_pythia"

    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    attention_bias: bool = True
    use_parallel_residual: bool = True  # false: the MLP comes after attention, and sees what it added

    def __post_init__(self, **kwargs: Any) -> None:
        rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
        self.rope_parameters = {**rotary, **(self.rope_parameters or {})}
        super().__post_init__(**kwargs)

    @property
    def epsilon(self) -> float:
        return self.layer_norm_eps


def inverse_root_mean_square(x: Tensor, epsilon: float) -> Tensor:
    """Of the last axis, in float32."""
    return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)


class MuddRMSNorm(nn.Module):
    """x divided by its root mean square, in float32, times the weight where there is one."""

    def __init__(self, width: int, epsilon: float, *, has_weight: bool = True, first: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), first)) if has_weight else None
        self.epsilon, self.first = epsilon, first

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float() * inverse_root_mean_square(x, self.epsilon)
        return (exact if self.weight is None else exact * self.weight.float()).to(x.dtype)


def in_float32(x: Tensor) -> AbstractContextManager[Any]:
    """Where products of numbers in float32 stay so under autocast."""
    return torch.autocast(x.device.type, enabled=False)


class InwardLinear(nn.Linear):
    """The first product of a network that weighs."""


class OutwardLinear(nn.Linear):
    """The last product of a network that weighs, in float32; at first it gives 0."""

    def forward(self, input: Tensor) -> Tensor:
        with in_float32(input):
            return nn.functional.linear(input.float(), self.weight.float())


class MuddRotaryEmbedding(nn.Module):
    """Cosines and sines of positions; transformers knows the class by its name and fills its buffers."""

    def __init__(self, config: ConnectedConfig) -> None:
        super().__init__()
        self.config = config
        self.rope_type = config.rope_parameters["rope_type"]
        known = {**ROPE_INIT_FUNCTIONS, "default": self.compute_default_rope_parameters}
        frequencies, self.attention_scaling = known[self.rope_type](config)
        self.inv_freq = nn.Buffer(frequencies, persistent=False)
        self.original_inv_freq = nn.Buffer(frequencies.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config: ConnectedConfig, *_: Any, **__: Any) -> tuple[Tensor, float]:
        """Radians a position for each pair of numbers that turn, and by what queries and keys grow."""
        size = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, size, 2, dtype=torch.float) / size
        return config.rope_parameters["rope_theta"] ** -exponents, 1.0

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[:, None, :, None].float() * self.inv_freq.float()
        twice = torch.cat((angles, angles), dim=-1)
        return (twice.cos() * self.attention_scaling).to(x.dtype), (twice.sin() * self.attention_scaling).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads whose first numbers, as many as there are cosines, are turned by their positions."""
    turning, still = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turning.chunk(2, dim=-1)
    quarter = torch.cat((-second, first), dim=-1)
    return torch.cat((turning * cos + quarter * sin, still), dim=-1)


def eager_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention in plain formulas; `attn_implementation` chooses others."""
    key, value = (one.repeat_interleave(module.num_key_value_groups, dim=1) for one in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class Attention(nn.Module):
    """Attention whose queries, keys and values are made of different inputs."""

    def __init__(self, config: ConnectedConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer
        self.is_causal, self.scaling = True, config.head_dim**-0.5
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        heads, kv_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, heads, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads, bias=config.attention_bias)
        self.o_proj = nn.Linear(heads, config.hidden_size, bias=config.attention_bias)
        self.q_norm = MuddRMSNorm(config.head_dim, config.epsilon) if config.use_qk_norm else nn.Identity()
        self.k_norm = MuddRMSNorm(config.head_dim, config.epsilon) if config.use_qk_norm else nn.Identity()

    def forward(
        self, inputs: tuple[Tensor, Tensor, Tensor], turns: tuple[Tensor, Tensor], attention_mask: Tensor | None,
        past_key_values: Cache | None, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        projections = zip((self.q_proj, self.k_proj, self.v_proj), inputs, strict=True)
        query, key, value = (self._heads(projection(x)) for projection, x in projections)
        query, key = turned(self.q_norm(query), *turns), turned(self.k_norm(key), *turns)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        mixed, _ = attend(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.o_proj(mixed.flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)


class GatedMlp(nn.Module):
    """Llama's MLP."""

    def __init__(self, config: MuddConfig, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, width, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, width, bias=config.mlp_bias)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class PlainMlp(nn.Module):
    """Pythia's MLP."""

    def __init__(self, config: MuddPythiaConfig, width: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, width)
        self.down_proj = nn.Linear(width, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


class Layer(GradientCheckpointingLayer):
    """What both kinds of layers have: a norm for each input of attention, or one for all ways together."""

    mlp_class: ClassVar[Callable[..., nn.Module]]

    def __init__(self, config: ConnectedConfig, layer: int) -> None:
        super().__init__()
        self.is_single = config.dynamic_dense_type == "l"
        if self.is_single:
            self.input_layernorm = self.norm(config)
        else:
            self.q_layernorm, self.k_layernorm, self.v_layernorm = (self.norm(config) for _ in "qkv")
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = self.norm(config)
        self.mlp = self.mlp_class(config, config.mlp_width(layer))

    @staticmethod
    def norm(config: Any) -> nn.Module:
        """One over the width, as this kind of layer has them."""
        raise NotImplementedError

    def attended(self, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        """What attention gives for its inputs, which are normed here."""
        if self.is_single:
            inputs = (self.input_layernorm(q),) * 3
        else:
            inputs = self.q_layernorm(q), self.k_layernorm(k), self.v_layernorm(v)
        return self.self_attn(inputs, **kwargs)


class LlamaLayer(Layer):
    """Attention, then a gated MLP."""

    mlp_class = GatedMlp

    def __init__(self, config: MuddConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.after_attention_layernorm = self.norm(config) if config.hybrid_norm else nn.Identity()
        self.after_mlp_layernorm = self.norm(config) if config.hybrid_norm else nn.Identity()

    @staticmethod
    def norm(config: MuddConfig) -> nn.Module:
        return MuddRMSNorm(config.hidden_size, config.epsilon, has_weight=config.use_layer_norm_weight)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, residual: Tensor, **kwargs: Any) -> Tensor:
        x = residual + self.after_attention_layernorm(self.attended(q, k, v, **kwargs))
        return x + self.after_mlp_layernorm(self.mlp(self.post_attention_layernorm(x)))


class PythiaLayer(Layer):
    """Attention and an MLP beside it, or behind it."""

    mlp_class = PlainMlp

    def __init__(self, config: MuddPythiaConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.is_parallel = config.use_parallel_residual

    @staticmethod
    def norm(config: MuddPythiaConfig) -> nn.Module:
        return nn.LayerNorm(config.hidden_size, eps=config.epsilon)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, residual: Tensor, **kwargs: Any) -> Tensor:
        x = residual + self.attended(q, k, v, **kwargs)
        return x + self.mlp(self.post_attention_layernorm(residual if self.is_parallel else x))


class Connection(GradientCheckpointingLayer):
    """Weighs and mixes the states behind so many layers."""

    def __init__(self, config: ConnectedConfig, number: int) -> None:
        super().__init__()
        width, self.epsilon, self.adds_to_state = config.hidden_size, config.epsilon, config.adds_to_state
        self.ways, self.sources = config.ways(number), config.sources(number)
        self.sums = len(self.ways), len(self.sources)
        self.activation = ACT2FN[config.dynamic_dense_act_cls]
        self.norm_state = MuddRMSNorm(width, config.epsilon) if config.has_norm(number) else None
        has_dynamic, has_static = self.sources and config.mudd_dynamic, self.sources and config.mudd_static
        inner = config.inner_width(number)
        self.w_in = InwardLinear(width, inner, bias=False) if has_dynamic else None
        self.w_out = OutwardLinear(inner, self.sums[0] * self.sums[1], bias=False) if has_dynamic else None
        self.static = nn.Parameter(torch.zeros(self.sums)) if has_static else None
        has_after = self.sources and config.mudd_postnorm and config.mixes_residuals
        self.norm_after = MuddRMSNorm(width, config.epsilon, first=1e-3) if has_after else None

    def forward(self, x: Tensor, *earlier: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The last state as it may be mixed later, and what the next layer takes.

        Args:
            x: what the last layer gave.
            earlier: states of the embedding and the layers before it.
        """
        state = x if self.norm_state is None else self.norm_state(x)
        if not self.sources:
            return state, x, x, x, x
        states = *earlier, state
        chosen_BSMD = torch.stack([states[one] for one in self.sources], dim=2).float()
        weights_BSCM = self._weights(state)
        with in_float32(x):
            mixed_BSCD = weights_BSCM @ chosen_BSMD
        made = dict(zip(self.ways, mixed_BSCD.unbind(2), strict=True))
        if "l" in made:
            single = self._residual(x, made["l"])
            return state, single, single, single, single
        q, k, v = (self._stream(x, made[way]) if way in made else x for way in "qkv")
        return state, q, k, v, self._residual(x, made["m"]) if "m" in made else x

    def _weights(self, state: Tensor) -> Tensor:
        """Of the states for each way and token [B, S, C, M], in float32; a norm without weight comes after w_in."""
        made = torch.zeros(self.sums, device=state.device) if self.static is None else self.static.float()
        if self.w_in is not None and self.w_out is not None:
            inner = self.w_in(state).float()
            if self.norm_state is None:
                inner = inner * inverse_root_mean_square(state, self.epsilon)
            made = made + self.w_out(self.activation(inner).to(state.dtype)).unflatten(-1, self.sums)
        return made.expand(*state.shape[:-1], *self.sums)

    def _stream(self, x: Tensor, mixture: Tensor) -> Tensor:
        return (x.float() + mixture if self.adds_to_state else mixture).to(x.dtype)

    def _residual(self, x: Tensor, mixture: Tensor) -> Tensor:
        return self._stream(x, mixture if self.norm_after is None else self.norm_after(mixture))


class ConnectedPreTrainedModel(PreTrainedModel):
    """What transformers wants to know of the models."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LlamaLayer", "PythiaLayer", "Connection"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_attention_backend = True

    def _init_weights(self, module: nn.Module) -> None:
        """First values, with which the model is that without connections.

        Each module begins by itself: transformers passes over modules that have no parameters of their own.
        """
        super()._init_weights(module)
        if isinstance(module, InwardLinear):
            init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, OutwardLinear):
            init.zeros_(module.weight)
        elif isinstance(module, MuddRMSNorm) and module.weight is not None:
            init.constant_(module.weight, module.first)
        elif isinstance(module, Connection) and module.static is not None:
            first = torch.zeros(module.sums)
            first[:, -1] = 0.0 if module.adds_to_state else 1.0
            init.copy_(module.static, first)


class ConnectedModel(ConnectedPreTrainedModel):
    """Tokens to hidden states."""

    layer_class: ClassVar[type[Layer]]

    def __init__(self, config: ConnectedConfig) -> None:
        super().__init__(config)
        count, norm = config.num_hidden_layers, self.layer_class.norm
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_norm = norm(config) if config.input_embedding_norm else nn.Identity()
        self.norm_state = MuddRMSNorm(config.hidden_size, config.epsilon) if config.has_norm(0) else nn.Identity()
        self.layers = nn.ModuleList([self.layer_class(config, layer) for layer in range(count)])
        self.connections = nn.ModuleList([Connection(config, number) for number in range(1, count + 1)])
        self.norm = norm(config)
        self.rotary_emb = MuddRotaryEmbedding(config)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("found input_ids and inputs_embeds both or neither; needed one of them. Give one.")
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError("found output_attentions: true; needed false: weights of attention are not kept. Drop it.")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            use_cache = False
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            past = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = torch.arange(past, past + x.shape[1], device=x.device)[None]
        mask = create_causal_mask(
            config=self.config, inputs_embeds=x, attention_mask=attention_mask, past_key_values=past_key_values,
            position_ids=position_ids,
        )  # fmt: skip
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        every = self._run(
            self.embed_norm(x),
            keeps_every=output_hidden_states,
            turns=self.rotary_emb(x, position_ids),
            attention_mask=mask,
            past_key_values=past_key_values,
            **kwargs,
        )
        hidden_states = tuple(every) if output_hidden_states else None
        return BaseModelOutputWithPast(every[-1], past_key_values=past_key_values, hidden_states=hidden_states)

    def _run(self, x: Tensor, *, keeps_every: bool | None, **kwargs: Any) -> list[Tensor]:
        """What the model gives; before it, where they are kept, the embedding and what each layer but the last gave."""
        every, states = [], [self.norm_state(x)]
        streams = [x, x, x, x]
        for layer, connection in zip(self.layers, self.connections, strict=True):
            if keeps_every:
                every.append(x)
            x = layer(*streams, **kwargs)
            state, *streams = connection(x, *states)
            states.append(state)
        return [*every, self.norm(streams[-1])]


class MuddModel(ConnectedModel):
    """MUDDFormer without its head."""

    config_class = MuddConfig
    layer_class = LlamaLayer


class MuddPythiaModel(ConnectedModel):
    """MUDDPythia without its head."""

    config_class = MuddPythiaConfig
    layer_class = PythiaLayer


class ConnectedForCausalLM(ConnectedPreTrainedModel, GenerationMixin):
    """Tokens to logits."""

    model_class: ClassVar[type[ConnectedModel]]
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: ConnectedConfig) -> None:
        super().__init__(config)
        self.model = self.model_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss, logits, outputs.past_key_values, outputs.hidden_states)


class MuddForCausalLM(ConnectedForCausalLM):
    """MUDDFormer."""

    config_class = MuddConfig
    model_class = MuddModel


class MuddPythiaForCausalLM(ConnectedForCausalLM):
    """MUDDPythia."""

    config_class = MuddPythiaConfig
    model_class = MuddPythiaModel
