"""Arrow columns to the values of wanted fields: for Parquet files and Hugging Face datasets.

A column of the wrong kind is an error before its rows are read; a null, or a value that does not fit, is a bad row.
"""

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import pyarrow as pa

from ponente.store.sources.rows import SourceError
from ponente.store.sources.wanted import Wanted, admits_none, is_numbers, without_none

Faults = dict[int, str]  # index of a bad row -> what is wrong


def check_columns(place: str, schema: pa.Schema, fields: Mapping[str, Any]) -> list[str]:
    """The columns to read.

    Raises:
        SourceError: a wanted column is missing, or is text and should not be, or the other way round.
    """
    there = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for name, type_ in fields.items():
        if name not in schema.names:
            if admits_none(type_):
                continue
            raise SourceError(
                f"found no column {name!r} in {place}; needed {Wanted(fields).describe()}. "
                f"Name one of its columns in the format's config: {there}."
            )
        if not _may_hold(schema.field(name).type, type_):
            raise SourceError(
                f"found column {name!r} of type {schema.field(name).type} in {place}; needed "
                f"{Wanted(fields).describe()}. Name another of its columns in the format's config: {there}."
            )
    return [name for name in fields if name in schema.names]


def _may_hold(found: pa.DataType, wanted: Any) -> bool:
    plain = without_none(wanted)
    if pa.types.is_null(found) or plain is Any:
        return True
    if plain is str:
        return _is_text(found)
    if is_numbers(plain):
        return _is_list_of_numbers(found)
    return not _is_text(found) or str in get_args(plain)


def _is_text(found: pa.DataType) -> bool:
    if isinstance(found, pa.DictionaryType):
        found = found.value_type
    return pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)


def _is_list_of_numbers(found: pa.DataType) -> bool:
    if not isinstance(found, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return False
    return pa.types.is_integer(found.value_type) or pa.types.is_floating(found.value_type)


def column_values(batch: pa.RecordBatch, wanted: Wanted) -> tuple[dict[str, list[Any]], list[int], Faults]:
    """The values of the rows that have all wanted fields, the indices of these rows, and what is wrong with others."""
    values: dict[str, list[Any]] = {}
    faults: Faults = {}
    for name, type_ in wanted.fields.items():
        if name in batch.schema.names:
            values[name] = _values(batch.column(name), name, type_, wanted, faults)
        else:
            values[name] = [None] * batch.num_rows
    good = [index for index in range(batch.num_rows) if index not in faults]
    if faults:
        values = {name: [some[index] for index in good] for name, some in values.items()}
    return values, good, faults


def _values(column: "pa.Array[Any]", name: str, type_: Any, wanted: Wanted, faults: Faults) -> list[Any]:
    plain = without_none(type_)
    if column.null_count and not admits_none(type_) and plain is not Any:
        for index, is_null in enumerate(column.is_null().to_pylist()):
            if is_null:
                faults.setdefault(index, wanted.misfit(name, "null"))
    if is_numbers(plain) and not pa.types.is_null(column.type):
        from ponente.store.sources.arrays import number_lists

        arrays = number_lists(column)
        for index, array in enumerate(arrays):
            if array is None and (column[index].is_valid or not admits_none(type_)):
                faults.setdefault(index, wanted.misfit(name, "a list with null in it"))
        return arrays
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_decoded(value, index, name, wanted, faults) for index, value in enumerate(_as_bytes(column))]
    if plain is str or plain is Any:
        return values
    return [_fitted(value, index, name, type_, wanted, faults) for index, value in enumerate(values)]


def _as_bytes(column: "pa.Array[Any]") -> list[bytes | None]:
    """The values of a column of text as they are, without looking whether they are UTF-8."""
    large = pa.types.is_large_string(column.type)
    found: list[bytes | None] = column.cast(pa.large_binary() if large else pa.binary()).to_pylist()
    return found


def _decoded(value: bytes | None, index: int, name: str, wanted: Wanted, faults: Faults) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as error:
        faults.setdefault(
            index, wanted.misfit(name, f"bytes that are not UTF-8 ({error.reason} at byte {error.start})")
        )
        return None


def _fitted(value: Any, index: int, name: str, type_: Any, wanted: Wanted, faults: Faults) -> Any:
    if index in faults:
        return None
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        faults[index] = wanted.misfit(name, f"{error}")
        return None
