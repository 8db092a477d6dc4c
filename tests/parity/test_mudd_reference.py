"""MUDDFormers against plain formulas of the paper in numpy, in double precision: logits, and gradients of every array.

numpy does not differentiate. But where a function is made of analytic ones, its slope along a direction is its
imaginary part at `weights + i·h·direction`, over h: exact, for h may be so small that its square is nothing.
T tokens of one row, D width, N heads, H head size, C ways, n states so far.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ponente.models.lm import LmConfig, Tokens, logits
from ponente.models.mudd import MuddConfig
from ponente.models.mudd_pythia import MuddPythiaConfig
from ponente.models.parameters import Parameter, is_parameter
from ponente.train.state import named_arrays

VOCABULARY, ROWS, LENGTH, TINY = 11, 3, 7, 1e-30
SIZES: dict[str, Any] = {
    "max_seq_len": 8, "hidden_dim": 16, "intermediate_dim": 24, "num_layers": 3, "num_heads": 4,
    "dynamic_dense_hidden_round": False, "gradient_checkpointing": False,
}  # fmt: skip
NORMS, TWO = {"mudd_prenorm": True, "mudd_postnorm": True}, {"num_layers": 2}
EVERY_SECOND = {"mudd_dilation": 2, "mudd_period": 2, "dynamic_mlp_dim": True, "intermediate_dim": 128}
MODELS: dict[str, LmConfig] = {
    "four ways": MuddConfig(**SIZES, num_kv_heads=2),
    "four ways, normed": MuddConfig(**SIZES | NORMS | TWO | {"gradient_checkpointing": True}),
    "one way": MuddConfig(**SIZES | TWO, dynamic_dense_type="l"),
    "two ways of every second, growing MLPs": MuddConfig(**SIZES | EVERY_SECOND, dynamic_dense_type="km"),
    "norm behind alone": MuddConfig(**SIZES | TWO, mudd_postnorm=True, dynamic_dense_type="vm"),
    "dynamic alone": MuddConfig(**SIZES | TWO, mudd_static=False, dynamic_dense_type="l"),
    "static alone, normed before": MuddConfig(**SIZES | TWO, mudd_dynamic=False, mudd_prenorm=True),
    "Pythia": MuddPythiaConfig(**SIZES | TWO, rotary_pct=0.5),
}
Weights = dict[str, np.ndarray]


def rms_norm(x: np.ndarray, epsilon: float, weight: np.ndarray | float = 1.0) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def gelu(x: np.ndarray) -> np.ndarray:
    """That of the error function, to the first order in the imaginary part."""
    erf = np.vectorize(math.erf)(x.real / math.sqrt(2))
    slope = np.exp(-x.real * x.real / 2) * math.sqrt(2 / math.pi)
    return x * (1 + erf + 1j * slope * x.imag) / 2


def rotated(x_TNH: np.ndarray, size: int) -> np.ndarray:
    """The first numbers of each head turned by their positions, the first half of them against the second."""
    angles = np.arange(len(x_TNH))[:, None, None] * 10000.0 ** (-np.arange(size // 2) * 2 / size)
    one, other, rest = x_TNH[..., : size // 2], x_TNH[..., size // 2 : size], x_TNH[..., size:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([one * cos - other * sin, other * cos + one * sin, rest], -1)


def attended(q_TNH: np.ndarray, k_TNH: np.ndarray, v_TNH: np.ndarray) -> np.ndarray:
    groups = q_TNH.shape[1] // k_TNH.shape[1]
    k_TNH, v_TNH = k_TNH.repeat(groups, 1), v_TNH.repeat(groups, 1)
    scores = np.einsum("tnh,snh->nts", q_TNH, k_TNH) / math.sqrt(q_TNH.shape[-1])
    scores = np.where(np.tri(len(q_TNH)) > 0, scores, -1e9)
    shares = np.exp(scores - scores.real.max(-1, keepdims=True))
    return np.einsum("nts,snh->tnh", shares / shares.sum(-1, keepdims=True), v_TNH)


@dataclass(frozen=True)
class Reference:
    """The model's formulas, with weights by name."""

    config: Any
    weights: Weights

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        """The logits of a row."""
        config, of = self.config, self.weights
        states = [of["embed_VD"][ids]]  # X_0
        for number in range(config.num_layers):
            layer = {name: one[number] for name, one in self.part("blocks.").items()}
            layer |= {f"mlp.{name}": one for name, one in self.part(f"mlps.{number}.").items()}
            streams = self.streams(states) if number else dict.fromkeys("qkvm", states[0])
            states.append(self.layer(layer, streams))
        return self.norm(self.streams(states)["m"], of, "norm", "norm_bias") @ of["w_head_DV"]

    def streams(self, states: list[np.ndarray]) -> dict[str, np.ndarray]:
        """What each way takes behind the layer that made the last state."""
        config, number, last = self.config, len(states) - 1, states[-1]
        is_last, way_names = number == config.num_layers, config.dynamic_dense_type
        taken = dict.fromkeys("qkvm", last)
        if number % config.mudd_period and not is_last:
            return taken
        of = self.part(f"connections.{number - 1}.")
        names = ["norm_state_D", *(f"connections.{before}.norm_state_D" for before in range(number))]
        chosen, names = (list(every)[:: -config.mudd_dilation][::-1] for every in (states, names))
        generator = rms_norm(last, config.layer_norm_epsilon)
        if config.mudd_prenorm:
            chosen = [
                rms_norm(one, config.layer_norm_epsilon, self.weights[name])
                for one, name in zip(chosen, names, strict=True)
            ]
            generator = chosen[-1]
        made_TCn = np.zeros((len(last), 1, len(chosen)))
        if config.mudd_static:
            made_TCn = made_TCn + of["static_CM"]
        if config.mudd_dynamic:
            made_TCn = made_TCn + np.einsum("tk,kcn->tcn", gelu(generator @ of["w_in_DI"]), of["w_out_ICM"])
        mixtures = np.einsum("tcn,ntd->ctd", made_TCn, np.stack(chosen))
        if config.mudd_postnorm:
            mixtures[-1] = rms_norm(mixtures[-1], config.layer_norm_epsilon, of["norm_after_D"])
        if config.mudd_prenorm or config.mudd_postnorm or not config.mudd_static:
            mixtures = last + mixtures
        if way_names == "l":
            return dict.fromkeys("qkvm", mixtures[0])
        return taken | dict(zip("m" if is_last else way_names, mixtures, strict=True))

    def layer(self, of: Weights, streams: dict[str, np.ndarray]) -> np.ndarray:
        config, is_single = self.config, self.config.dynamic_dense_type == "l"
        kv = "N" if isinstance(config, MuddPythiaConfig) else "K"
        q, k, v = (
            np.einsum(
                "td,dnh->tnh", self.attention_norm(of, streams[way], way, is_single), of[f"attention.w_{way}_{axes}"]
            )
            + of.get(f"attention.b_{way}_{axes[1:]}", 0.0)
            for way, axes in zip("qkv", ("DNH", f"D{kv}H", f"D{kv}H"), strict=True)
        )
        turning = int(q.shape[-1] * getattr(config, "rotary_pct", 1.0))
        mixed = attended(rotated(q, turning), rotated(k, turning), v)
        out = np.einsum("tnh,nhd->td", mixed, of["attention.w_out_NHD"]) + of.get("attention.b_out_D", 0.0)
        residual = streams["m"]
        after = residual + out
        if isinstance(config, MuddPythiaConfig):  # side by side
            normed = self.norm(residual, of, "norm_mlp", "norm_mlp_bias")
            inner = gelu(normed @ of["mlp.w_up_DF"] + of["mlp.b_up_F"])
            return after + inner @ of["mlp.w_down_FD"] + of["mlp.b_down_D"]
        normed = self.norm(after, of, "norm_mlp", "")
        gate = normed @ of["mlp.w_gate_DF"]
        return after + (gate / (1 + np.exp(-gate)) * (normed @ of["mlp.w_up_DF"])) @ of["mlp.w_down_FD"]

    def attention_norm(self, of: Weights, x: np.ndarray, way: str, is_single: bool) -> np.ndarray:
        if isinstance(self.config, MuddPythiaConfig):
            part = "norm_attention" if is_single else f"norm_{way}"
            return self.norm(x, {"w_D": of[f"{part}.weight_D"], "b_D": of[f"{part}.bias_D"]}, "w", "b")
        return self.norm(x, of, "norm_attention" if is_single else f"norm_{way}", "")

    def norm(self, x: np.ndarray, of: Weights, weight: str, bias: str) -> np.ndarray:
        if isinstance(self.config, MuddPythiaConfig):
            centred = x - x.mean(-1, keepdims=True)
            return rms_norm(centred, self.config.layer_norm_epsilon, of[f"{weight}_D"]) + of[f"{bias}_D"]
        return rms_norm(x, self.config.layer_norm_epsilon, of[f"{weight}_D"])

    def part(self, prefix: str) -> Weights:
        return {name.removeprefix(prefix): one for name, one in self.weights.items() if name.startswith(prefix)}

    def loss(self, ids: np.ndarray) -> complex:
        """The mean loss of the next tokens of all rows."""
        losses = []
        for row in ids:
            found = self(row)[:-1]
            losses.append(np.log(np.exp(found).sum(-1)) - found[np.arange(LENGTH - 1), row[1:]])
        return complex(np.mean(losses))


def random_model(config: LmConfig) -> Any:
    """None of its parts does nothing, as most do at first."""
    random = np.random.default_rng(0)

    def values(one: Parameter) -> np.ndarray:
        mean = 0.4 if one.last is not None else round(one.mean)  # states that cancel out would leave rounding alone
        return np.float32(random.normal(mean, 0.2, one.shape))

    return jax.tree.map(values, config.parameters(VOCABULARY), is_leaf=is_parameter)


def our_loss(model: Any, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    found = logits(model, model.hidden(Tokens.plain(ids)))
    shares = jax.nn.log_softmax(found[:, :-1])
    return -jnp.take_along_axis(shares, ids[:, 1:, None], axis=-1).mean(), found


@pytest.mark.parametrize("config", MODELS.values(), ids=list(MODELS))
def test_logits_and_gradients_are_those_of_the_paper_s_formulas(config: LmConfig) -> None:
    random, model = np.random.default_rng(1), random_model(config)
    ids = random.integers(0, VOCABULARY, (ROWS, LENGTH))
    (_, found), gradients = jax.jit(jax.value_and_grad(our_loss, has_aux=True))(model, jnp.asarray(ids))
    weights = {name: np.asarray(array, np.complex128) for name, array in named_arrays(model).items()}
    reference = Reference(config, weights)
    expected = np.stack([reference(row).real for row in ids])
    assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
    gradients = named_arrays(gradients)
    largest = max(np.linalg.norm(one) for one in gradients.values())
    for name, gradient in gradients.items():
        direction = random.normal(size=gradient.shape)
        moved = weights | {name: weights[name] + 1j * TINY * direction}
        slope = Reference(config, moved).loss(ids).imag / TINY
        near = 1e-4 * np.linalg.norm(gradient) + 1e-7 * largest
        assert abs(np.sum(np.asarray(gradient) * direction) - slope) <= near, name
        assert np.linalg.norm(gradient) > 1e-3 * largest, f"{name} is hardly used"
