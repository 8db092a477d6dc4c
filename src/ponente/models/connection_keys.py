"""Keys of models with connections over depth: which states are mixed where, how they are weighed, and what that costs.

In: keys of a config. Out: sizes of the connection behind each layer, whose turn it is to make which gradients, counts
for estimates. `connections.py` makes the connections.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from ponente.config.errors import RefusedError
from ponente.models.activations import LayerActivations
from ponente.models.lm import ActivationName
from ponente.ops.mixing import Turn, Way, Ways, together

_WAYS = "qkvm"
_SINGLE = "l"  # the type with one mixture for all ways
_ROUND = 64  # inner widths are multiples of it
_MLP_ROUND = 128
_NORMED_FROM = 20  # layers, from which on models were seen to diverge without norms around mixtures
_TOGETHER = 3  # mixtures whose gradients by states are added at once; of more, too little fits into registers
_LEAVES_FROM = 4  # layers; fewer states' gradients cost less to add to than it costs to leave them to another


@dataclass(frozen=True, kw_only=True)
class ConnectedConfig:
    """Keys of connections, beside those of a family.

    The authors' release has them, but for ours: mudd_static, mudd_dynamic, mudd_dilation and mudd_period.
    """

    divides_streams: ClassVar[bool] = True  # whether layers want streams divided by their root mean squares
    usual_speed: ClassVar[float] = 0.9  # of training, as a share of that without connections (docs/performance.md)

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
    mudd_prenorm: bool | None = None  # states are normed, mixed, and added to the last one; None: from 20 layers on
    mudd_postnorm: bool | None = None  # the residual's mixture is normed, and all are added to the last state
    mudd_static: bool = True  # weights have a part that is the same for all tokens; without, mixtures are added as well
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
        if self.dense_conn and all(len(self.sources(number)) < 2 for number in range(1, self.num_layers + 1)):
            raise RefusedError(
                f"found mudd_dilation: {self.mudd_dilation}, mudd_period: {self.mudd_period} and dynamic_dense_type: "
                f"{self.dynamic_dense_type!r} for {self.num_layers} layers, where no state but the last is mixed; "
                "needed a mixture of two. Lower what is too large for so few layers, or set dense_conn: false."
            )
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
            meant = "".join(way for way in _WAYS if way in given)
            raise RefusedError(
                f"found dynamic_dense_type: {given!r}; needed some of the ways {_WAYS}, in this order, or {_SINGLE} "
                f"for one mixture that all ways take. Write {meant or _WAYS} if that is what you mean."
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

    @property
    def mlp_growth(self) -> int:
        """By how much the widths of all MLPs together are more than without `dynamic_mlp_dim`: what rounding makes."""
        return sum(self.mlp_widths) - self.num_layers * self.intermediate_dim

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

    def is_mixed(self, number: int) -> bool:
        """Whether the state behind so many layers is mixed, there or behind a later one."""
        return any(number in self.sources(later) for later in range(max(1, number), self.num_layers + 1))

    def turn(self, number: int) -> Turn:
        """Of the mixture behind so many layers, among all."""
        group = self._group(number)
        ends = group[-1] == self._last_mixture
        return together([self.ways(one) for one in group], ends=ends)[number - group[0]]

    @property
    def _last_mixture(self) -> int:
        return self.num_layers if self.mixes_residuals else self.num_layers - 1

    def _group(self, number: int) -> range:
        """The mixtures, one of them behind so many layers, whose gradients by states are made at once."""
        last = self._last_mixture - (self._last_mixture - number) // _TOGETHER * _TOGETHER
        first = last + 1 - _TOGETHER
        are_dense = self.mudd_dilation == self.mudd_period == 1
        return range(first, last + 1) if are_dense and first >= _LEAVES_FROM else range(number, number + 1)

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
