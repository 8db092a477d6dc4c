"""Plain tables for a terminal."""

from collections.abc import Iterator, Sequence


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table whose first row is its head; the first column is text, the others numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  " + "  ".join(cells).rstrip()


def counted(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
