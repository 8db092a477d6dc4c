"""Connections over depth, for layers of any family: small networks that weigh states, mixtures, a decoder of both.

In: the embedding and the outputs of all layers so far. Out: what the next layer's queries, keys and values are made of
and what it adds to (up to four ways, each a mixture of its own), weighed anew for each token. At first all weight is on
the last state: the model is that without connections.
B batch, S sequence, D width, C ways, M states, I inner width of a weighing network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ponente.models.connection_keys import ConnectedConfig
from ponente.models.decoding import Decoder
from ponente.models.lm import ACTIVATIONS, KeyValues
from ponente.models.parameters import Parameter
from ponente.models.stack import fold_growing
from ponente.ops.gated import Activation
from ponente.ops.mesh import whole
from ponente.ops.mixing import Arrays, Debt, Mixture, Norms, Way, Ways, has_kernel_for, mix, mix_for_good, takes_base
from ponente.ops.norm import Term, rms_norm, rms_norm_beside
from ponente.ops.weighing import Network, Unweighed, Weighed, gelu, weigh, weigh_and_mix, weigh_unnormed

_AFTER = 1e-3  # the first weight of the norm behind a mixture
_ACTIVATIONS = ACTIVATIONS | {"gelu": gelu}


def _activation(config: ConnectedConfig) -> Activation:
    return _ACTIVATIONS[config.dynamic_dense_act_cls]


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
        norm = norm_of_state(config, number)
        if not config.sources(number):
            return cls(norm, None, None, None, None)
        width, inner = {"embed": config.hidden_dim}, {"inner": config.inner_width(number)}
        sums = {"ways": config.ways(number), "states": len(config.sources(number))}
        into: Any = Parameter(width | inner, std=config.hidden_dim**-0.5) if config.mudd_dynamic else None
        out: Any = Parameter(inner | sums) if config.mudd_dynamic else None
        static: Any = Parameter(sums, last=0.0 if config.adds_to_state else 1.0) if config.mudd_static else None
        after: Any = Parameter(width, mean=_AFTER) if config.has_postnorm and config.mixes_residuals else None
        return cls(norm, into, out, static, after)

    @property
    def network(self) -> Network | None:
        """What weighs each token's states; None: they are weighed alike."""
        if self.w_in_DI is None or self.w_out_ICM is None:
            return None
        return Network(self.norm_state_D, self.w_in_DI, self.w_out_ICM, self.static_CM)

    def weighed(self, x_BSD: Array, config: ConnectedConfig) -> Weighed:
        """The last state as it is mixed, and the weights of all of them for each token."""
        if self.network is not None:
            is_left = self.norm_state_D is not None and has_kernel_for(x_BSD)
            made = weigh_unnormed if is_left else weigh
            return made(x_BSD, self.network, _activation(config), config.layer_norm_epsilon)
        assert self.static_CM is not None
        last_BSD, x_BSD = self.normed(x_BSD, config)
        weights = self.static_CM.astype(jnp.float32)
        return Weighed(last_BSD, x_BSD, jnp.broadcast_to(weights, (*x_BSD.shape[:-1], *weights.shape)))

    def normed(self, x_BSD: Array, config: ConnectedConfig) -> tuple[Array, Array]:
        """The last state as it may be mixed later, and it as it was."""
        if self.norm_state_D is None:
            return x_BSD, x_BSD
        return rms_norm_beside(x_BSD, self.norm_state_D, config.layer_norm_epsilon)


class States(NamedTuple):
    """What layers pass on: the last state, and all that may be mixed, normed where they are to be."""

    x_BSD: Array
    sources: tuple[Array, ...]
    debts: tuple[Debt, ...] = ()  # of those that mix next, in their order, and leave gradients to one before them


class Streams(NamedTuple):
    """What queries, keys and values are made of, and what is added to.

    Who takes the last makes the gradient of its term, if it has one.
    """

    q_BSD: Array
    k_BSD: Array
    v_BSD: Array
    residual_BSD: Array
    term: Term | None


@dataclass(frozen=True)
class Mixer:
    """What mixes the states of a pass through the layers."""

    config: ConnectedConfig
    is_for_good: bool = False  # no gradient is made of the pass, such as one of decoding

    def first(self, x_BSD: Array, norm_D: Array | None) -> States:
        """The embedding, as the one state before all layers."""
        return States(x_BSD, (x_BSD if norm_D is None else rms_norm(x_BSD, norm_D, self.config.layer_norm_epsilon),))

    def single(self, connection: Connection | None, states: States, number: int) -> tuple[Array, States]:
        """The one mixture that all ways of a layer take; the first layer has no connection before it."""
        mixtures, states, _ = self._mixed(connection, states, (self.config.residual_way,), number)
        return mixtures[0] if mixtures else states.x_BSD, states

    def streams(
        self,
        connection: Connection | None,
        states: States,
        number: int,
        norms: Mapping[str, Array | None] | None = None,
    ) -> tuple[Streams, States]:
        """What each way of a layer takes; queries', keys' and values' as the config's `divides_streams` says.

        Args:
            norms: in a pass for good, weights of the streams of q, k and v; None: there are none, or they are taken
                into what streams are multiplied with.
        """
        assert norms is None or self.is_for_good
        config, norms = self.config, norms or {}
        each = tuple(norms.get(way) for way in config.dynamic_dense_type)
        mixtures, states, term = self._mixed(connection, states, config.each_way, number, each, leaves_after=True)
        made = dict(zip(config.dynamic_dense_type, mixtures, strict=True)) if mixtures else {}
        last = self._of_last(states.x_BSD, [way for way in "qkv" if way not in made], norms)
        made = last | made
        return Streams(made["q"], made["k"], made["v"], made.get("m", states.x_BSD), term), states

    def _of_last(self, x_BSD: Array, ways: list[str], norms: Mapping[str, Array | None]) -> dict[str, Array]:
        """What ways without a mixture take: the last state, as the others have their streams."""
        if not ways or not self.config.divides_streams:
            return dict.fromkeys(ways, x_BSD)
        if not self.is_for_good:  # one for all of them, for the sake of its gradient
            return dict.fromkeys(ways, rms_norm(x_BSD, None, self.config.layer_norm_epsilon))
        return {way: rms_norm(x_BSD, norms.get(way), self.config.layer_norm_epsilon) for way in ways}

    def last(self, connection: Connection, states: States) -> Array:
        """What the model's last norm takes."""
        config, count = self.config, self.config.num_layers
        ways = (*[Way()] * (config.ways(count) - 1), config.residual_way)
        mixtures, states, _ = self._mixed(connection, states, ways, count)
        return mixtures[-1] if mixtures else states.x_BSD

    def _mixed(
        self,
        connection: Connection | None,
        states: States,
        ways: Ways,
        number: int,
        norms: Norms | None = None,
        *,
        leaves_after: bool = False,
    ) -> tuple[Arrays, States, Term | None]:
        """A mixture for each way, or none where nothing is mixed, and the states for whoever mixes them next.

        Args:
            leaves_after: whether the gradient by the weight behind a norm may be left to who takes that mixture, which
                then has the term that is given.
        """
        config = self.config
        if connection is None:  # before the first layer, where there is one state
            return (), states, None
        chosen = config.sources(number)
        if not chosen:
            last_BSD, x_BSD = connection.normed(states.x_BSD, config)
            return (), States(x_BSD, (*states.sources, last_BSD), states.debts), None
        if self.is_for_good:
            return *self._mixed_for_good(connection, states, ways, chosen, norms or (None,) * len(ways)), None
        weighed = connection.weighed(states.x_BSD, config)
        sources = [*states.sources, weighed.last_BSD]
        mixture = _mixture(connection, weighed, [sources[one] for one in chosen], ways)
        turn = replace(config.turn(number), leaves_after=leaves_after and any(way.is_behind for way in ways))
        mixed = mix(mixture, ways, config.layer_norm_epsilon, states.debts, turn)
        for one, state in zip(chosen, mixed.states, strict=True):
            sources[one] = state
        term = None
        if mixed.unit_BSD is not None and mixture.after_D is not None:
            term = Term(mixed.unit_BSD, mixture.after_D)
        return mixed.streams, States(weighed.x_BSD, tuple(sources), mixed.debts), term

    def _mixed_for_good(
        self, connection: Connection, states: States, ways: Ways, chosen: tuple[int, ...], norms: Norms
    ) -> tuple[Arrays, States]:
        """The same without what gradients need; the last of those that are chosen is the state that is not yet one."""
        epsilon, earlier = self.config.layer_norm_epsilon, tuple(states.sources[one] for one in chosen[:-1])
        if connection.network is not None:
            unweighed = Unweighed(states.x_BSD, earlier, connection.norm_after_D)
            activation = _activation(self.config)
            last_BSD, streams = weigh_and_mix(unweighed, connection.network, activation, ways, epsilon, norms)
        else:
            weighed = connection.weighed(states.x_BSD, self.config)
            last_BSD = weighed.last_BSD
            mixture = _mixture(connection, weighed, [*earlier, last_BSD], ways)
            streams = mix_for_good(mixture, ways, epsilon, norms)
        return streams, States(states.x_BSD, (*states.sources, last_BSD))


def _mixture(connection: Connection, weighed: Weighed, states: list[Array], ways: Ways) -> Mixture:
    base_BSD = weighed.x_BSD if takes_base(ways) else None
    return Mixture(weighed.weights_BSCM, tuple(states), base_BSD, connection.norm_after_D, weighed.norm)


def connections_of(config: ConnectedConfig) -> tuple[Connection, ...]:
    """Behind the first layer, the second, …"""
    return tuple(Connection.of(config, number) for number in range(1, config.num_layers + 1))


def norm_of_state(config: ConnectedConfig, number: int) -> Any:
    """The weight of the norm of the state behind so many layers, if it has one; 0: of the embedding."""
    return Parameter({"embed": config.hidden_dim}, mean=1.0) if config.has_prenorm and config.is_mixed(number) else None


class ConnectedDecoder(Decoder):
    """A model whose layers are stacked; its connections are not, for each has more states than the last."""

    norm_state_D: eqx.AbstractVar[Array | None]  # of the embedding as a state
    blocks: eqx.AbstractVar[Any]
    mlps: eqx.AbstractVar[tuple[Any, ...] | None]  # None: they are in the blocks
    connections: eqx.AbstractVar[tuple[Connection, ...]]
    config: eqx.AbstractVar[Any]

    def _behind_layers(
        self,
        blocks: Any,
        x_BSD: Array,
        layer: Callable[[Any, tuple[Connection | None, Any], States, int, Any], tuple[States, Any]],
        mixer: Mixer,
        past: KeyValues | None,
    ) -> tuple[Array, Any]:
        """What the last norm takes, of embeddings, and what layers keep for decoding.

        Args:
            layer: `states, kept = layer(block, (the connection before it, its MLP), states, its number, its cache)`.
        """
        mlps = self.mlps or (None,) * len(self.connections)
        states, kept = fold_growing(
            blocks,
            list(zip((None, *self.connections[:-1]), mlps, strict=True)),
            mixer.first(x_BSD, whole(self.norm_state_D)),
            layer,
            None if past is None else (past.keys, past.values),
            checkpointing=False if past is not None else self.config.gradient_checkpointing,
        )
        return mixer.last(whole(self.connections[-1]), states), kept
