"""What training minimises and evaluation measures: the weighted cross-entropy of a model on a batch, as sums."""

from collections.abc import Callable
from dataclasses import replace

from jax import Array
from jax.typing import DTypeLike

from ponente.batches.batch import Batch
from ponente.models.lm import Dropout, LanguageModel, LmConfig, Tokens
from ponente.ops.attention import Mask, takes_tables
from ponente.ops.loss import LossSums, cross_entropy_sums
from ponente.ops.mesh import UNSPLIT, Tensor


def loss_sums(
    model: LanguageModel,
    batch: Batch,
    *,
    vocab_size: int,
    blocks_documents: bool,
    dropout: Dropout | None = None,
    z_loss: float = 0.0,
    tensor: Tensor = UNSPLIT,
) -> LossSums:
    """Sums over the tokens of a batch, each times its weight; who has all of them divides.

    Args:
        vocab_size: how many ids there are; the head may have more columns, which then count for nothing.
        blocks_documents: whether rows hold documents that must not see each other.
        tensor: over which heads and columns are split, in a device's part of a step.
    """
    tokens = tokens_of(batch, blocks_documents=blocks_documents, dropout=dropout)
    hidden_BSD = model.hidden(replace(tokens, tensor=tensor))
    return cross_entropy_sums(
        hidden_BSD.reshape(-1, hidden_BSD.shape[-1]),
        model.head_DV(),
        batch.targets_BS.reshape(-1),
        batch.loss_weights_BS.reshape(-1),
        z_loss=z_loss,
        vocab_size=vocab_size,
        tensor=tensor.of("vocab"),
    )


def rows_together(
    model: LmConfig, compute: DTypeLike, microbatch: int | None, parts: int = 1, *, blocks_documents: bool
) -> Callable[[int], int] | None:
    """For the loader: of a batch of so many rows, how many need common tables; None where the kernel takes none.

    Args:
        compute: the type that is computed with.
        microbatch: rows of a device at once; None for all.
        parts: into how many a batch is split.
    """
    if not blocks_documents or not model.has_plain_attention or not takes_tables(model.attn_backend, compute):
        return None
    return lambda rows: microbatch or rows // parts


def tokens_of(batch: Batch, *, blocks_documents: bool, dropout: Dropout | None = None) -> Tokens:
    """What a model is given of a batch."""
    mask = Mask()
    if blocks_documents:
        tables = batch.document_starts_BM, batch.document_lengths_BM
        starts, lengths = tables if tables[0].shape[1] else (None, None)
        mask = Mask(segment_ids_BS=batch.segment_ids_BS, document_starts_BM=starts, document_lengths_BM=lengths)
    ids_BS: Array = batch.tokens_BS
    return Tokens(ids_BS=ids_BS, positions_BS=batch.positions_BS, mask=mask, dropout=dropout)
