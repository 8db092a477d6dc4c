"""Running stacked layers: one after the other, scanned or unrolled, with what is kept for the backward pass chosen."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from ponente.config.errors import RefusedError
from ponente.models.activations import LayerActivations
from ponente.ops import cudnn
from ponente.ops.kept import ATTENTION, INPUT, PRODUCT, WHOLE
from ponente.ops.mesh import is_any_split, whole

Layer = TypeVar("Layer")

_PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable, jax.checkpoint_policies.save_only_these_names(PRODUCT)
)


def _all_but_whole(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Everything but weights that were made whole; JAX's own policy of exceptions by name excepts nothing."""
    called = getattr(parameters.get("call_jaxpr"), "eqns", ())
    makes_whole = any(equation.primitive.name == "all_gather" for equation in called)
    return not makes_whole and parameters.get("name") != WHOLE


_POLICIES: dict[str, Any] = {
    "full": None,  # keep only the input of each layer
    "recompute": None,
    "dots": _PRODUCTS,
    "dots_and_attention": jax.checkpoint_policies.save_from_both_policies(
        _PRODUCTS, jax.checkpoint_policies.save_only_these_names(ATTENTION)
    ),
    "attention": jax.checkpoint_policies.save_only_these_names(ATTENTION),
    "save_all": _all_but_whole,
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),  # only the input of each layer, in the host's memory
}


def check_checkpointing(checkpointing: bool | str, *, is_scanned: bool) -> None:
    """Refuses a policy that is not known, or not for layers that are run like this."""
    if isinstance(checkpointing, str) and checkpointing not in _POLICIES:
        raise RefusedError(
            f"found model.gradient_checkpointing: {checkpointing}; needed true, false or {', '.join(_POLICIES)}. "
            "Change it."
        )
    if checkpointing == "offload" and not is_scanned:  # the compilers of GPUs and TPUs then use more memory, not less
        raise RefusedError(
            "found model.gradient_checkpointing: offload with model.scan_layers: false; needed scanned layers. "
            "Set scan_layers: true."
        )


def kept_numbers(made: LayerActivations, checkpointing: bool | str, parts: int = 1) -> int:
    """Of one layer, how many numbers are kept for each token until its backward pass.

    Args:
        parts: of heads and MLPs, where several devices split them.
    """
    name = checkpointing if isinstance(checkpointing, str) else "full" if checkpointing else "save_all"
    numbers = 0 if name == "offload" else made.input
    if name in ("dots", "dots_and_attention", "save_all"):
        numbers += made.product_of_width + made.products // parts
    if name in ("attention", "dots_and_attention", "save_all"):
        numbers += made.attention // parts
    if name == "save_all":
        numbers += made.norms + made.rest // parts
    return numbers


def fold_layers(
    layers: Layer,
    x: Array,
    apply: Callable[[Layer, Array, Array, Any], tuple[Array, Any]],
    extras: Any = None,
    *,
    is_scanned: bool,
    checkpointing: bool | str,
) -> tuple[Array, Any]:
    """x through all layers: `x, kept = apply(layer, x, its number, its part of extras)`.

    Args:
        layers: modules whose arrays have the layers as their first axis; those that are split over devices are made
            whole for their layer, and again in the backward pass.
        extras: arrays of which each layer gets its part, such as caches; what layers keep is stacked the same way.
        is_scanned: one compiled layer in a loop, or all of them in a row.
        checkpointing: false keeps everything for the backward pass, true only the input of each layer; or a policy.
    """
    count = jax.tree.leaves(layers)[0].shape[0]

    def made() -> Callable[..., Any]:
        return _checkpointed(
            lambda layer, *rest: apply(whole(layer), *rest),
            _policy(layers, checkpointing),
            is_scanned=is_scanned,
        )

    step = made()
    if is_scanned:
        numbers = jnp.arange(count)
        return jax.lax.scan(lambda x, part: step(part[0], x, part[1], part[2]), x, (layers, numbers, extras))
    kept = []
    for number, (layer, extra) in enumerate(_unstacked((layers, extras), count)):
        one_step = made() if cudnn.tells_calls_apart() else step  # calls of one function share what is traced
        x, one = one_step(layer, x, jnp.asarray(number), extra)
        kept.append(one)
    return x, jax.tree.map(lambda *parts: jnp.stack(parts), *kept)


def fold_growing(
    layers: Layer,
    own: Sequence[Any],
    states: Any,
    apply: Callable[[Layer, Any, Any, int, Any], tuple[Any, Any]],
    extras: Any = None,
    *,
    checkpointing: bool | str,
) -> tuple[Any, Any]:
    """States through all layers in a row, where each may add to them: as `fold_layers`, but what is passed on grows.

    Args:
        own: what each layer has besides its part of the stack, of any shape.
        apply: `states, kept = apply(layer, its own, states, its number, its part of extras)`. What is kept for the
            backward pass grows with the number of states, not with its square: a layer keeps those that it was given.
    """
    kept = []
    for number, (layer, extra) in enumerate(_unstacked((layers, extras), len(own))):

        def step(layer: Any, own: Any, states: Any, extra: Any, number: int = number) -> tuple[Any, Any]:
            return apply(whole(layer), whole(own), states, number, extra)

        parts = layer, own[number]
        states, one = _checkpointed(step, _policy(parts, checkpointing), is_scanned=False)(*parts, states, extra)
        kept.append(one)
    return states, jax.tree.map(lambda *parts: jnp.stack(parts), *kept)


def _policy(layers: Any, checkpointing: bool | str) -> bool | str:
    """What is kept: weights that were made whole never are."""
    return "save_all" if checkpointing is False and is_any_split(layers) else checkpointing


def _unstacked(tree: Any, count: int) -> list[Any]:
    """The parts of a stack of trees.

    The gradient of unstacking is a stack. That of an index is the part among zeros, and their sum over all layers,
    which reads each of them for every number.
    """
    parts: list[Any] = jax.tree.transpose(
        jax.tree.structure(tree), jax.tree.structure([0] * count), jax.tree.map(lambda leaf: [*jnp.unstack(leaf)], tree)
    )
    return parts


def _checkpointed(apply: Callable[..., Any], checkpointing: bool | str, *, is_scanned: bool) -> Callable[..., Any]:
    if checkpointing is False:
        return apply
    name = "full" if checkpointing is True else checkpointing
    check_checkpointing(checkpointing, is_scanned=is_scanned)
    named = apply
    if name == "offload":

        def named(layer: Any, x: Array, *rest: Any) -> Any:
            return apply(layer, checkpoint_name(x, INPUT), *rest)

    return jax.checkpoint(named, policy=_POLICIES[name], prevent_cse=not is_scanned)
