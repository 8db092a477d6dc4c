"""What all batches of a run have in common."""

from dataclasses import dataclass
from typing import Literal

Positions = Literal["document", "row"]


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """What all batches of a run have in common."""

    length: int  # S
    max_documents: int  # packed into a row, padding counted; rows cut from the line of all tokens may have more
    blocks_documents: bool = True  # else a row is one document
    positions: Positions = "document"
