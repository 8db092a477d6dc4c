"""Weights of states for each token: a small network of the last one, which may be normed before it is used.

In: the last state [B, S, D]. Out: it as it is mixed, and weights [B, S, C, M] in float32; or, where no gradient is
made, the streams that are mixed by them. In decoding, where there are few tokens, it is not what is read that takes
time but the number of kernels: two of ours weigh and mix.
B batch, S sequence, D width, C ways, M states, I inner width.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ponente.ops.gated import Activation
from ponente.ops.gpu import has_triton
from ponente.ops.kept import PRODUCT
from ponente.ops.linear import input_gradient, linear, scaled, weight_gradient
from ponente.ops.mixing import Arrays, Mixture, Norms, RowNorm, Ways, mix_for_good, takes_base
from ponente.ops.norm import gradients_beside, rms_norm_beside, rms_scale


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
    """The last state as it is mixed, it as it was, for what goes past the norm, and the weights of all states.

    With a norm, whoever mixes makes the last state by it: only gradients of the one that is here have values.
    """

    last_BSD: Array
    x_BSD: Array
    weights_BSCM: Array
    norm: RowNorm | None = None


def weigh_unnormed(x_BSD: Array, network: Network, activation: Activation, epsilon: float) -> Weighed:
    """As `weigh` does, but it leaves the norm of the last state to who mixes, for whom it is no pass of its own."""
    assert network.norm_D is not None
    last_BSD, inner_BSI, x_BSD, scale_BS1 = _product_behind_norm(x_BSD, network.norm_D, network.w_in_DI, epsilon)
    inner_BSI = checkpoint_name(inner_BSI, PRODUCT)
    norm = RowNorm(*jax.lax.stop_gradient((scale_BS1, network.norm_D)))  # what it makes has its gradients here
    return Weighed(last_BSD, x_BSD, _rest(inner_BSI, network, activation, x_BSD.dtype), norm)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _product_behind_norm(
    x_BSD: Array, norm_D: Array, w_in_DI: Array, epsilon: float
) -> tuple[Array, Array, Array, Array]:
    """A place for the gradient by what the norm makes, which is not made; its product; x; what its rows are scaled by.

    The norm's weight is taken into the product's, and rows are scaled behind the product.
    """
    scale_BS1 = rms_scale(x_BSD, epsilon)
    product_BSI = jnp.einsum("BSD,DI->BSI", x_BSD, scaled(w_in_DI, norm_D), preferred_element_type=jnp.float32)
    return jnp.zeros_like(x_BSD), (product_BSI * scale_BS1).astype(x_BSD.dtype), x_BSD, scale_BS1


def _product_forward(x_BSD: Array, norm_D: Array, w_in_DI: Array, epsilon: float) -> tuple[Any, Any]:
    made = _product_behind_norm(x_BSD, norm_D, w_in_DI, epsilon)
    return made, (x_BSD, norm_D, w_in_DI, made[-1])


def _product_backward(epsilon: float, kept: Any, by: tuple[Array, ...]) -> tuple[Array, Array, Array]:
    x_BSD, norm_D, w_in_DI, scale_BS1 = kept
    by_last, by_inner, by_x, _ = by
    by_product = (by_inner.astype(jnp.float32) * scale_BS1).astype(x_BSD.dtype)
    by_w_in = scaled(weight_gradient(x_BSD, w_in_DI, by_product), norm_D)
    by_normed = by_last, input_gradient(w_in_DI, by_inner)
    by_x, by_norm, _ = gradients_beside(x_BSD, norm_D, by_normed, by_x, epsilon)
    return by_x, by_norm, by_w_in


_product_behind_norm.defvjp(_product_forward, _product_backward)


def weigh(x_BSD: Array, network: Network, activation: Activation, epsilon: float) -> Weighed:
    """The weights of all states, by the last of them."""
    last_BSD = x_BSD
    if network.norm_D is not None:
        last_BSD, x_BSD = rms_norm_beside(x_BSD, network.norm_D, epsilon)
    return Weighed(last_BSD, x_BSD, _weights(last_BSD, network, activation, epsilon))


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
    weighed = weigh(x_BSD, network, activation, epsilon)
    whole = Mixture(weighed.weights_BSCM, (*earlier, weighed.last_BSD), base_BSD, after_D)
    return weighed.last_BSD, mix_for_good(whole, ways, epsilon, norms)


def _weights(last_BSD: Array, network: Network, activation: Activation, epsilon: float) -> Array:
    """The weights, by the last state as it is mixed.

    A norm without a weight divides each row by a number, which is as well done behind the product with the row.
    """
    inner_BSI = linear(last_BSD, network.w_in_DI)
    if network.norm_D is None:
        inner_BSI = inner_BSI.astype(jnp.float32) * rms_scale(last_BSD, epsilon)
    return _rest(inner_BSI, network, activation, last_BSD.dtype)


def _rest(inner_BSI: Array, network: Network, activation: Activation, dtype: Any) -> Array:
    """The weights, by the first product."""
    active_BSI = activation(inner_BSI.astype(jnp.float32)).astype(dtype)
    made = jnp.einsum("BSI,ICM->BSCM", active_BSI, network.w_out_ICM, preferred_element_type=jnp.float32)
    return made if network.static_CM is None else made + network.static_CM.astype(jnp.float32)
