"""How many rows a model's embeddings have: one for each id, and a few more so that matrices are of handy sizes.

The number depends on the tokenizer alone, never on devices, so that a checkpoint fits everywhere. Rows behind the last
id have no probability in loss and sampling, and are cut off when a model is exported.
"""

_MULTIPLE = 128


def padded(vocab_size: int) -> int:
    """The rows of embeddings and head for so many ids."""
    return -(-vocab_size // _MULTIPLE) * _MULTIPLE
