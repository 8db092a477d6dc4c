"""How many numbers one layer of a model makes for each token, for estimates of memory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerActivations:
    """Numbers for each token, apart by what rematerialisation keeps and by what tensor parallelism splits."""

    input: int  # of the layer, which is always kept
    products: int  # with weights, of heads and inner columns
    product_of_width: int  # that of attention's output, which the MLP's norm is made of
    attention: int  # what its kernel made
    norms: int
    rest: int  # what an activation or a gate made
    shared: int = 0  # of its output, what all later layers use too: its gradient is there as long as they are
