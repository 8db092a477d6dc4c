"""Weights of states for each token: a small network of the last one, which may be normed before it is used.

In: the last state [B, S, D]. Out: it as it is mixed, and weights [B, S, C, M] in float32. In decoding, where there are
few tokens, it is not what is read that takes time but the number of kernels: two of ours do it all.
B batch, S sequence, D width, C ways, M states, I inner width.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ponente.ops.gated import Activation
from ponente.ops.gpu import has_triton
from ponente.ops.linear import linear
from ponente.ops.norm import rms_norm, rms_norm_beside


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
    if has_triton():
        from ponente.ops.weighing_kernel import has_kernel

        if has_kernel(x_BSD, network):
            last_BSD, weights_BSCM = _weigh_by_kernel(x_BSD, network, activation, epsilon)
            return Weighed(last_BSD, x_BSD, weights_BSCM)
    last_BSD = x_BSD
    if network.norm_D is not None:
        last_BSD, x_BSD = rms_norm_beside(x_BSD, network.norm_D, epsilon)
    return Weighed(last_BSD, x_BSD, _weights(last_BSD, network, activation, epsilon))


def weigh_plain(x_BSD: Array, network: Network, activation: Activation, epsilon: float) -> tuple[Array, Array]:
    """The last state as it is mixed, and the weights; kernels compute the same."""
    last_BSD = x_BSD if network.norm_D is None else rms_norm(x_BSD, network.norm_D, epsilon)
    return last_BSD, _weights(last_BSD, network, activation, epsilon)


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


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _weigh_by_kernel(x_BSD: Array, network: Network, activation: Activation, epsilon: float) -> tuple[Array, Array]:
    from ponente.ops.weighing_kernel import weigh_few

    return weigh_few(x_BSD, network, activation, epsilon)


def _forward(
    x_BSD: Array, network: Network, activation: Activation, epsilon: float
) -> tuple[tuple[Array, Array], tuple[Array, Network]]:
    return _weigh_by_kernel(x_BSD, network, activation, epsilon), (x_BSD, network)


def _backward(
    activation: Activation, epsilon: float, kept: tuple[Array, Network], by: tuple[Array, Array]
) -> tuple[Array, Network]:
    _, pull = jax.vjp(lambda x, network: weigh_plain(x, network, activation, epsilon), *kept)
    by_x, by_network = pull(by)
    return by_x, by_network


_weigh_by_kernel.defvjp(_forward, _backward)
