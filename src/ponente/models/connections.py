"""Connections over depth, for layers of any family: keys of a config, small networks that weigh states, mixtures.

In: the embedding and the outputs of all layers so far. Out: what the next layer's queries, keys and values are made of
and what it adds to (up to four ways, each a mixture of its own), weighed anew for each token. At first all weight is on
the last state: the model is that without connections.
B batch, S sequence, D width, C ways, M states, I inner width of a weighing network.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ponente.config.errors import RefusedError
from ponente.models.activations import LayerActivations
from ponente.models.decoding import Decoder
from ponente.models.lm import ACTIVATIONS, ActivationName, KeyValues
from ponente.models.parameters import Parameter
from ponente.models.stack import fold_growing
from ponente.ops.linear import linear
from ponente.ops.mesh import whole
from ponente.ops.mixing import Debt, Mixture, Turn, Way, Ways, mix
from ponente.ops.norm import rms_norm, rms_norm_beside

_WAYS = "qkvm"
_SINGLE = "l"  # the type with one mixture for all ways
_ROUND = 64  # inner widths are multiples of it
_MLP_ROUND = 128
_NORMED_FROM = 20  # layers, from which on models were seen to diverge without norms around mixtures
_AFTER = 1e-3  # the first weight of the norm behind a mixture
_OWES_FROM = 6  # layers; fewer states' gradients cost less to add to than it costs to leave them to another


@dataclass(frozen=True, kw_only=True)
class ConnectedConfig:
    """Keys of connections, beside those of a family: its authors' release has them, and `mudd_…` are ours."""

    divides_streams: ClassVar[bool] = True  # whether layers want streams divided by their root mean squares

    num_layers: int
    hidden_dim: int
    intermediate_dim: int
    layer_norm_epsilon: float
    scan_layers: bool
    gradient_checkpointing: bool | str
    dense_conn: bool = True  # false: the same model without connections
    dynamic_dense_type: str = _WAYS  # the ways with mixtures of their own; others take the last state. l: one for all
    dynamic_dense_act_cls: ActivationName = "gelu"
    dynamic_dense_fix_last_layer: bool = True  # behind the last layer there is one mixture, the residual's
    dynamic_dense_hidden_expand: tuple[int, ...] | None = None  # of each layer's inner width; None: 1, the last 4
    dynamic_dense_hidden_round: bool = True
    mudd_prenorm: bool | None = None  # states are normed before they are mixed; None: from 20 layers on
    mudd_postnorm: bool | None = None  # so is the residual's mixture, behind
    mudd_static: bool = True  # weights have a part that is the same for all tokens
    mudd_dynamic: bool = True  # and one that is made of the token's state
    mudd_dilation: int = 1  # mixtures are made of each so-manieth state, counted back from the last
    mudd_period: int = 1  # and behind each so-manieth layer, and the last
    dynamic_mlp_dim: bool = False  # MLPs grow with depth, from half the width to one and a half

    def check_connections(self) -> None:
        """Refuses keys that do not go together."""
        self._check_ways()
        expand = self.dynamic_dense_hidden_expand
        if expand is not None and (len(expand) != self.num_layers or min(expand) < 1):
            raise RefusedError(
                f"found dynamic_dense_hidden_expand: {list(expand)}; needed {self.num_layers} numbers, one for each "
                "layer, all 1 or more. Change it, or leave it out."
            )
        for key in ("mudd_dilation", "mudd_period"):
            if getattr(self, key) < 1:
                raise RefusedError(f"found {key}: {getattr(self, key)}; needed 1 (every one) or more. Change it.")
        if self.dense_conn and not (self.mudd_static or self.mudd_dynamic):
            raise RefusedError(
                "found mudd_static: false and mudd_dynamic: false; needed one of them, for weights that learn. Set "
                "one, or dense_conn: false for a model without connections."
            )
        if self.dynamic_mlp_dim and not self.dense_conn:
            raise RefusedError(
                "found dynamic_mlp_dim: true with dense_conn: false; needed connections for it. Remove one of them."
            )
        if self.scan_layers and self.dense_conn:
            raise RefusedError(
                "found scan_layers: true for a model with connections, each of whose layers has another number of "
                "states; needed layers in a row. Set scan_layers: false."
            )
        if self.gradient_checkpointing == "offload" and self.dense_conn:
            raise RefusedError(
                "found gradient_checkpointing: offload for a model with connections, which has its layers in a row; "
                "needed what can be kept of such. Set gradient_checkpointing: true."
            )

    def _check_ways(self) -> None:
        given = self.dynamic_dense_type
        if given != _SINGLE and (not given or given != "".join(way for way in _WAYS if way in given)):
            raise RefusedError(
                f"found dynamic_dense_type: {given!r}; needed some of the ways {_WAYS}, in this order, or {_SINGLE} "
                "for one mixture that all ways take. Change it."
            )

    @property
    def has_prenorm(self) -> bool:
        return self.num_layers >= _NORMED_FROM if self.mudd_prenorm is None else self.mudd_prenorm

    @property
    def has_postnorm(self) -> bool:
        return self.num_layers >= _NORMED_FROM if self.mudd_postnorm is None else self.mudd_postnorm

    @property
    def adds_to_state(self) -> bool:
        """Whether mixtures are added to the last state, instead of weighing it like the others."""
        return self.has_prenorm or self.has_postnorm or not self.mudd_static

    @property
    def is_single(self) -> bool:
        return self.dynamic_dense_type == _SINGLE

    @property
    def mixes_residuals(self) -> bool:
        return self.is_single or _WAYS[-1] in self.dynamic_dense_type

    @property
    def each_way(self) -> Ways:
        """What is done to the mixtures of a layer that does not take one on all ways."""
        of_attention = Way(has_base=self.adds_to_state, is_normed=self.divides_streams)
        return tuple(self.residual_way if way == _WAYS[-1] else of_attention for way in self.dynamic_dense_type)

    @property
    def residual_way(self) -> Way:
        if self.has_postnorm:
            return Way(is_normed=True, is_behind=True)
        return Way(has_base=self.adds_to_state)

    @property
    def mlp_widths(self) -> tuple[int, ...]:
        """Of each layer."""
        count, width = self.num_layers, self.intermediate_dim
        if not self.dynamic_mlp_dim:
            return (width,) * count
        shares = [layer / max(1, count - 1) + 0.5 for layer in range(count)]
        return tuple(max(1, round(width * share / _MLP_ROUND)) * _MLP_ROUND for share in shares)

    def ways(self, number: int) -> int:
        """How many mixtures there are behind so many layers."""
        is_fixed = number == self.num_layers and self.dynamic_dense_fix_last_layer
        return 1 if is_fixed else len(self.dynamic_dense_type)

    def sources(self, number: int) -> tuple[int, ...]:
        """Of the states 0 (the embedding) to `number`, those that are mixed behind so many layers; none: no mixture."""
        is_last = number == self.num_layers
        if (number % self.mudd_period and not is_last) or (is_last and not self.mixes_residuals):
            return ()
        return tuple(range(number % self.mudd_dilation, number + 1, self.mudd_dilation))

    def turn(self, number: int) -> Turn:
        """Of the mixture behind so many layers, among all: each second one leaves gradients to the one before it."""
        is_last = number == self.num_layers
        if not self._owes(number + 1):
            return Turn(owes=self._owes(number), is_last=is_last)
        return Turn(owed_ways=self.ways(number + 1), is_last=number + 1 == self.num_layers)

    def _owes(self, number: int) -> bool:
        is_dense = self.mudd_dilation == self.mudd_period == 1 and (number < self.num_layers or self.mixes_residuals)
        return is_dense and _OWES_FROM <= number <= self.num_layers and (self.num_layers - number) % 2 == 0

    def inner_width(self, number: int) -> int:
        """Of the network that weighs states behind so many layers."""
        expand = self.dynamic_dense_hidden_expand
        factor = expand[number - 1] if expand is not None else 4 if number == self.num_layers else 1
        width = self.ways(number) * len(self.sources(number)) * factor
        return (width // _ROUND + 1) * _ROUND if self.dynamic_dense_hidden_round else width

    def weighing_products(self) -> int:
        """Of all mixtures and the networks that weigh them, for each token."""
        return sum(self._weighing(number) for number in range(1, self.num_layers + 1)) if self.dense_conn else 0

    def connected(self, made: LayerActivations, residual: int) -> LayerActivations:
        """What a layer makes that is given streams, of what it makes without; weights count twice, for their 32 bits.

        Args:
            residual: how many numbers of the residual's mixture the layer keeps.
        """
        width, numbers = self.hidden_dim, range(1, self.num_layers)
        weights = 2 * sum(self.ways(number) * len(self.sources(number)) for number in numbers) // self.num_layers
        inner = sum(self.inner_width(number) for number in numbers if self.sources(number)) // self.num_layers
        inner = inner if self.mudd_dynamic else 0
        named = 0 if self.is_single else len(set(self.dynamic_dense_type) & {*"qkv"})
        streams = named + (named < 3) if self.divides_streams else named + (1 if self.is_single else 3)
        behind = width if self.has_postnorm and self.mixes_residuals else 0
        return replace(
            made,
            input=made.input + (width if self.has_prenorm else 0),
            product_of_width=made.product_of_width + (inner + weights if self.mudd_dynamic else 0),
            norms=made.norms + (streams - 1) * width + behind + residual + (inner if self.mudd_dynamic else weights),
            shared=width,
        )

    def _weighing(self, number: int) -> int:
        if not (count := self.ways(number) * len(self.sources(number))):
            return 0
        inner = self.inner_width(number) if self.mudd_dynamic else 0
        return self.hidden_dim * inner + inner * count + count * self.hidden_dim


class Connection(eqx.Module):
    """Weights of all states so far, for each way."""

    norm_state_D: Array | None  # of the last state, before it is mixed
    w_in_DI: Array | None
    w_out_ICM: Array | None
    static_CM: Array | None
    norm_after_D: Array | None

    @classmethod
    def of(cls, config: ConnectedConfig, number: int) -> "Connection":
        """Behind so many layers."""
        is_mixed = number < config.num_layers or config.mixes_residuals  # here, or behind a later layer
        norm: Any = Parameter({"embed": config.hidden_dim}, mean=1.0) if config.has_prenorm and is_mixed else None
        if not config.sources(number):
            return cls(norm, None, None, None, None)
        width, inner = {"embed": config.hidden_dim}, {"inner": config.inner_width(number)}
        sums = {"ways": config.ways(number), "states": len(config.sources(number))}
        into: Any = Parameter(width | inner, std=config.hidden_dim**-0.5) if config.mudd_dynamic else None
        out: Any = Parameter(inner | sums) if config.mudd_dynamic else None
        static: Any = Parameter(sums, last=0.0 if config.adds_to_state else 1.0) if config.mudd_static else None
        after: Any = Parameter(width, mean=_AFTER) if config.has_postnorm and config.mixes_residuals else None
        return cls(norm, into, out, static, after)

    def weights(self, state_BSD: Array, config: ConnectedConfig) -> Array:
        """The weights of the states for each token: [B, S, C, M], in float32.

        A norm without a weight divides each row by a number, which is as well done behind the product with the row.
        """
        made: Any = 0.0 if self.static_CM is None else self.static_CM.astype(jnp.float32)
        if self.w_in_DI is not None and self.w_out_ICM is not None:
            inner_BSI = linear(state_BSD, self.w_in_DI).astype(jnp.float32)
            if self.norm_state_D is None:
                exact = state_BSD.astype(jnp.float32)
                mean = jnp.mean(exact * exact, axis=-1, keepdims=True)
                inner_BSI = inner_BSI * jax.lax.rsqrt(mean + config.layer_norm_epsilon)
            active_BSI = ACTIVATIONS[config.dynamic_dense_act_cls](inner_BSI).astype(state_BSD.dtype)
            made = made + jnp.einsum("BSI,ICM->BSCM", active_BSI, self.w_out_ICM, preferred_element_type=jnp.float32)
        whole_shape = (*state_BSD.shape[:-1], *self._sums())
        return jnp.broadcast_to(made, whole_shape)

    def _sums(self) -> tuple[int, ...]:
        found = self.static_CM if self.static_CM is not None else self.w_out_ICM
        assert found is not None
        return found.shape[-2:]


class States(NamedTuple):
    """What layers pass on: the last state, and all that may be mixed, normed where they are to be."""

    x_BSD: Array
    sources: tuple[Array, ...]
    debt: Debt | None = None


class Streams(NamedTuple):
    """What queries, keys and values are made of, and what is added to."""

    q_BSD: Array
    k_BSD: Array
    v_BSD: Array
    residual_BSD: Array


@dataclass(frozen=True)
class Mixer:
    """What mixes the states of a pass through the layers."""

    config: ConnectedConfig

    def first(self, x_BSD: Array, norm_D: Array | None) -> States:
        """The embedding, as the one state before all layers."""
        return States(x_BSD, (x_BSD if norm_D is None else rms_norm(x_BSD, norm_D, self.config.layer_norm_epsilon),))

    def single(self, connection: Connection | None, states: States, number: int) -> tuple[Array, States]:
        """The one mixture that all ways of a layer take; the first layer has no connection before it."""
        states = self._with_last(connection, states)
        if connection is None or not self.config.sources(number):
            return states.x_BSD, states
        (mixture,), states = self._mixed(connection, states, (self.config.residual_way,), number)
        return mixture, states

    def streams(self, connection: Connection | None, states: States, number: int) -> tuple[Streams, States]:
        """What each way of a layer takes; queries', keys' and values' as the config's `divides_streams` says."""
        config, made = self.config, dict[str, Array]()
        states = self._with_last(connection, states)
        if connection is not None and config.sources(number):
            mixtures, states = self._mixed(connection, states, config.each_way, number)
            made = dict(zip(config.dynamic_dense_type, mixtures, strict=True))
        if not {"q", "k", "v"} <= made.keys():
            x_BSD = states.x_BSD
            last = rms_norm(x_BSD, None, config.layer_norm_epsilon) if config.divides_streams else x_BSD
            made = {"q": last, "k": last, "v": last} | made
        return Streams(made["q"], made["k"], made["v"], made.get("m", states.x_BSD)), states

    def last(self, connection: Connection, states: States) -> Array:
        """What the model's last norm takes."""
        config, count = self.config, self.config.num_layers
        states = self._with_last(connection, states)
        if not config.sources(count):
            return states.x_BSD
        ways = (*[Way()] * (config.ways(count) - 1), config.residual_way)
        mixtures, _ = self._mixed(connection, states, ways, count)
        return mixtures[-1]

    def _with_last(self, connection: Connection | None, states: States) -> States:
        """The states with the last one among those that may be mixed."""
        if connection is None:  # before the first layer, where it is already
            return states
        last = x_BSD = states.x_BSD
        if connection.norm_state_D is not None:
            last, x_BSD = rms_norm_beside(x_BSD, connection.norm_state_D, self.config.layer_norm_epsilon)
        return States(x_BSD, (*states.sources, last), states.debt)

    def _mixed(
        self, connection: Connection, states: States, ways: Ways, number: int
    ) -> tuple[tuple[Array, ...], States]:
        """A mixture for each way, and the states for whoever mixes them next."""
        config, sources = self.config, list(states.sources)
        chosen = config.sources(number)
        mixture = Mixture(
            connection.weights(sources[-1], config),
            tuple(sources[one] for one in chosen),
            states.x_BSD if any(way.has_base or way.is_behind for way in ways) else None,
            connection.norm_after_D,
        )
        mixed = mix(mixture, ways, config.layer_norm_epsilon, states.debt, config.turn(number))
        for one, state in zip(chosen, mixed.states, strict=True):
            sources[one] = state
        return mixed.streams, States(states.x_BSD, tuple(sources), mixed.debt)


def connections_of(config: ConnectedConfig) -> tuple[Connection, ...]:
    """Behind the first layer, the second, …"""
    return tuple(Connection.of(config, number) for number in range(1, config.num_layers + 1))


def norm_of_embedding(config: ConnectedConfig) -> Any:
    """The weight of the norm of the embedding as a state, if it has one."""
    return Parameter({"embed": config.hidden_dim}, mean=1.0) if config.has_prenorm else None


class ConnectedDecoder(Decoder):
    """A model whose layers are stacked; its connections are not, for each has more states than the last."""

    norm_state_D: eqx.AbstractVar[Array | None]  # of the embedding as a state
    blocks: eqx.AbstractVar[Any]
    mlps: eqx.AbstractVar[tuple[Any, ...] | None]  # None: they are in the blocks
    connections: eqx.AbstractVar[tuple[Connection, ...]]
    config: eqx.AbstractVar[Any]

    def _behind_layers(
        self,
        x_BSD: Array,
        layer: Callable[[Any, tuple[Connection | None, Any], States, int, Any], tuple[States, Any]],
        past: KeyValues | None,
    ) -> tuple[Array, Any]:
        """What the last norm takes, of embeddings, and what layers keep for decoding.

        Args:
            layer: `states, kept = layer(block, (the connection before it, its MLP), states, its number, its cache)`.
        """
        mixer, mlps = Mixer(self.config), self.mlps or (None,) * len(self.connections)
        states, kept = fold_growing(
            self.blocks,
            list(zip((None, *self.connections[:-1]), mlps, strict=True)),
            mixer.first(x_BSD, whole(self.norm_state_D)),
            layer,
            None if past is None else (past.keys, past.values),
            checkpointing=False if past is not None else self.config.gradient_checkpointing,
        )
        return mixer.last(whole(self.connections[-1]), states), kept
