"""What all batches of a run have in common."""

from dataclasses import dataclass
from typing import Literal

Positions = Literal["document", "row"]


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """What all batches of a run have in common."""

    length: int  # S
    max_documents: int  # M, a row: what would be more belongs to the last
    blocks_documents: bool = True  # else a row is one document
    positions: Positions = "document"
