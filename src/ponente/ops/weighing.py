"""Weights of states for each token: a small network of the last one, which may be normed before it is used.

In: the last state [B, S, D]. Out: it as it is mixed, and weights [B, S, C, M] in float32; or, where no gradient is
made, the streams that are mixed by them. In decoding, where there are few tokens, it is not what is read that takes
time but the number of kernels: two of ours weigh and mix.
B batch, S sequence, D width, C ways, M states, I inner width.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gated import Activation
from ponente.ops.gpu import has_triton
from ponente.ops.linear import linear
from ponente.ops.mixing import Arrays, Mixture, Norms, Ways, mix_for_good, takes_base
from ponente.ops.norm import rms_norm_twice_beside


def gelu(x: Array) -> Array:
    """Without approximation; as a function of a name, by which the kernel knows it."""
    return jax.nn.gelu(x, approximate=False)


class Network(NamedTuple):
    """What makes the weights."""

    norm_D: Array | None  # None: rows are divided by their root mean squares here, and mixed as they are
    w_in_DI: Array
    w_out_ICM: Array
    static_CM: Array | None


class Weighed(NamedTuple):
    """The last state as it is mixed, it as it was, for what goes past the norm, and the weights of all states."""

    last_BSD: Array
    x_BSD: Array
    weights_BSCM: Array


def weigh(x_BSD: Array, network: Network, activation: Activation, epsilon: float) -> Weighed:
    """The weights of all states, by the last of them."""
    last_BSD = weighing_BSD = x_BSD
    if network.norm_D is not None:
        last_BSD, weighing_BSD, x_BSD = rms_norm_twice_beside(x_BSD, network.norm_D, epsilon)
    return Weighed(last_BSD, x_BSD, _weights(weighing_BSD, network, activation, epsilon))


class Unweighed(NamedTuple):
    """What is mixed by weights that a network makes of the last state."""

    x_BSD: Array  # which is last, once it is normed
    earlier: Arrays
    after_D: Array | None  # the weight of sums that `x_BSD` is added behind


def weigh_and_mix(
    mixture: Unweighed, network: Network, activation: Activation, ways: Ways, epsilon: float, norms: Norms
) -> tuple[Array, Arrays]:
    """The last state as it is mixed, and the streams of `mix_for_good`, in passes that no gradient is made of."""
    x_BSD, earlier, after_D = mixture
    base_BSD = x_BSD if takes_base(ways) else None
    if has_triton():
        from ponente.ops import mixing_kernel, weighing_kernel

        if weighing_kernel.has_kernel(x_BSD, network) and mixing_kernel.has_kernel(x_BSD):
            last_BSD, inside = weighing_kernel.weigh_inside(x_BSD, network, epsilon)
            states = (*earlier, last_BSD)
            half = mixing_kernel.HalfWeighed(inside, activation, states, base_BSD, after_D)
            return last_BSD, mixing_kernel.mixed(half, ways, epsilon, norms=norms).streams
    last_BSD, _, weights_BSCM = weigh(x_BSD, network, activation, epsilon)
    return last_BSD, mix_for_good(Mixture(weights_BSCM, (*earlier, last_BSD), base_BSD, after_D), ways, epsilon, norms)


def _weights(last_BSD: Array, network: Network, activation: Activation, epsilon: float) -> Array:
    """The weights, by the last state as it is mixed.

    A norm without a weight divides each row by a number, which is as well done behind the product with the row.
    """
    inner_BSI = linear(last_BSD, network.w_in_DI).astype(jnp.float32)
    if network.norm_D is None:
        exact = last_BSD.astype(jnp.float32)
        mean = jnp.mean(exact * exact, axis=-1, keepdims=True)
        inner_BSI = inner_BSI * jax.lax.rsqrt(mean + epsilon)
    active_BSI = activation(inner_BSI).astype(last_BSD.dtype)
    made = jnp.einsum("BSI,ICM->BSCM", active_BSI, network.w_out_ICM, preferred_element_type=jnp.float32)
    return made if network.static_CM is None else made + network.static_CM.astype(jnp.float32)
