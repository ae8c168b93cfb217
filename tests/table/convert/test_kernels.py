"""Kernels where pyarrow's cast is not right: long texts, decimals and floats; and that the cast would be caught."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lockprovider.table.convert import READ, compile_plan, kernels, plan
from lockprovider.table.convert.kernels import elements_of, equal_keys, lengths_of
from lockprovider.table.errors import Corrupt, DoesNotFit

MIB = 1 << 20


def convert(values: Any, column: pa.DataType, **more: Any) -> pa.ChunkedArray:
    rows = pa.table({"c": values})
    return compile_plan(rows.schema, pa.schema([("c", column)]), **more)(rows)["c"]


def long_texts(count: int) -> pa.Array:
    """Texts of 1 MiB each, of zeros that take no memory."""
    data = pa.py_buffer(np.zeros(count * MIB, dtype=np.uint8))
    return pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(np.arange(count + 1) * MIB), data])


def test_texts_of_more_than_2_gib_become_several_arrays_without_a_copy() -> None:
    before = pa.total_allocated_bytes()
    found = convert(long_texts(2300), pa.string())
    assert [len(chunk) for chunk in found.chunks] == [1150, 1150]
    assert convert(long_texts(2300).slice(2200), pa.string()).num_chunks == 1, "by where they lie in the whole"
    assert pa.total_allocated_bytes() - before < MIB


def test_one_value_longer_than_2_gib_is_refused() -> None:
    data = pa.py_buffer(np.zeros(2200 * MIB, dtype=np.uint8))
    ends = pa.py_buffer(np.array([0, 2200 * MIB]))
    with pytest.raises(Exception, match="one value is longer than 2147483647 bytes"):
        convert(pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, data]), pa.binary())


def test_views_of_more_than_2_gib_are_cut_before_they_are_copied() -> None:
    views = np.zeros((2100, 4), dtype="<i4")
    views[:, 0] = MIB  # their length; all of one buffer
    parts = [None, pa.py_buffer(views), pa.py_buffer(np.zeros(MIB, dtype=np.uint8))]
    given = pa.Array.from_buffers(pa.string_view(), 2100, parts)
    with pytest.raises(kernels.TooLong):
        kernels.kernel_for(pa.string_view(), pa.string(), "L")(given, pa.string())
    assert len(kernels.kernel_for(pa.string_view(), pa.string(), "L")(given.slice(5, 3), pa.string())[0].as_py()) == MIB


@pytest.mark.parametrize("digits", [5, 10, 15, 17, 38])
def test_decimals_and_floats_are_as_python_has_them(digits: int, seed: int) -> None:
    random, scale = Random(seed), digits // 2
    kind = pa.decimal128(digits, scale)
    numbers = [Decimal(random.randrange(-(10**digits), 10**digits)).scaleb(-scale) for _ in range(2000)]
    numbers = [number for number in numbers if len(number.as_tuple().digits) <= digits]
    short = [number for number in numbers if Decimal(repr(float(number))) == number]
    floats = convert(pa.array([*short, None], kind), pa.float64())
    assert floats.to_pylist() == [*(float(number) for number in short), None]
    assert convert(floats, kind).to_pylist() == [*short, None]
    assert convert(pa.array([None, *short], kind)[1:].cast(kind), pa.float64()).to_pylist() == floats.to_pylist()[:-1]
    for number in numbers[:20]:
        if number not in short:
            with pytest.raises(DoesNotFit):
                convert(pa.array([number], kind), pa.float64())


def test_plain_cast_of_pyarrow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: each kernel is `cast`."""
    monkeypatch.setattr(plan, "kernel_for", lambda *_: lambda values, kind: values.cast(kind))
    assert convert(pa.array([1.004]), pa.decimal128(10, 2)).to_pylist() == [Decimal("1.00")]
    assert convert(pa.array([Decimal("46980911.48")]), pa.float64()).to_pylist() != [46980911.48]
    assert convert(pa.array([1e300]), pa.float32()).to_pylist() == [float("inf")]


# -- maps and lists ----------------------------------------------------------------------------------------------------


def test_duplicate_keys_are_found_only_within_one_map(seed: int) -> None:
    random = Random(seed)
    for _ in range(300):
        maps = [
            random.choices("abcdefghijklmnop", k=random.choice([0, 1, 2, 3, 9]))
            for _ in range(random.choice([0, 1, 6]))
        ]
        flat, lengths = [key for keys in maps for key in keys], np.array([len(keys) for keys in maps], dtype=np.int64)
        place = equal_keys(pa.array(flat, pa.string()), lengths)
        assert (place is not None) == any(len(set(keys)) < len(keys) for keys in maps)
        if place is not None:
            start = max(end for end in (0, *np.cumsum(lengths)) if end <= place)
            assert flat[place] in flat[start:place]


def test_elements_are_those_of_lists_that_are_not_null() -> None:
    lists = pa.ListArray.from_arrays([0, 2, 3, 5], pa.array([1, 2, 99, 3, 4]), mask=pa.array([False, True, False]))
    assert elements_of(lists, lengths_of(lists)).to_pylist() == [1, 2, 3, 4]
    assert elements_of(lists[2:], lengths_of(lists[2:])).to_pylist() == [3, 4]


def test_values_below_a_null_struct_are_ignored() -> None:
    below = pa.StructArray.from_arrays([pa.array([2**40, 1])], ["x"], mask=pa.array([True, False]))
    assert convert(below, pa.struct([("x", pa.int32())])).to_pylist() == [None, {"x": 1}]


def test_unused_dictionary_entries_are_ignored() -> None:
    given = pa.DictionaryArray.from_arrays(pa.array([1, None], pa.int8()), pa.array([2**40, 7]))
    assert convert(given, pa.int32()).to_pylist() == [7, None]


def test_null_in_a_required_element_is_refused_by_its_path() -> None:
    column = pa.list_(pa.field("element", pa.int64(), nullable=False))
    assert convert(pa.array([[1], None]), column).to_pylist() == [[1], None]
    with pytest.raises(DoesNotFit, match="^c.element: null does not fit int64 not null, in row 1; give it a value"):
        convert(pa.array([[1], [2, None]]), column)
    inside = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    assert convert(pa.array([{"x": 1}, None, {"x": 2}]), inside).to_pylist() == [{"x": 1}, None, {"x": 2}]
    with pytest.raises(DoesNotFit, match=r"^c\.x: null does not fit int64 not null, in row 2"):
        convert(pa.array([{"x": 1}, None, {"x": None}]), inside)


@pytest.mark.parametrize("encoding", ["dictionary", "runs"])
def test_null_among_encoded_values_is_refused_in_a_required_field(encoding: str) -> None:
    """arrow-rs #4690: a writer ignored the nulls of a dictionary; pyarrow's `null_count` does not count them."""
    values = pa.array(["a", None])
    if encoding == "dictionary":
        given = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), values)
        maps = pa.MapArray.from_arrays([0, 1, 2], given, values)
        with pytest.raises(DoesNotFit, match=r"^c\.key: null does not fit string not null, in row 1"):
            convert(maps, pa.map_(pa.string(), pa.string()))
    else:
        given = pa.RunEndEncodedArray.from_arrays([1, 2], values)
    inside = pa.struct([pa.field("x", pa.string(), nullable=False)])
    with pytest.raises(DoesNotFit, match=r"^c\.x: null does not fit string not null, in row 1"):
        convert(pa.StructArray.from_arrays([given], ["x"]), inside)
    below = pa.StructArray.from_arrays([given], ["x"], mask=pa.array([False, True]))
    assert convert(below, inside).to_pylist() == [{"x": "a"}, None]


# -- old files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "column", "expected"),
    [
        (pa.array([0.1], pa.float32()), pa.float64(), 0.1),
        (pa.array([[0.1]], pa.list_(pa.float32())), pa.list_(pa.float64()), [0.1]),
        (pa.array([{"x": 0.1}], pa.struct([("x", pa.float32())])), pa.struct([("x", pa.float64()), ("y", pa.int32())]),
         {"x": 0.1, "y": None}),
        (pa.array([2**53 + 1]), pa.float64(), float(2**53)),
        (pa.array([7], pa.int32()), pa.string(), "7"),
        (pa.array([[7]], pa.list_(pa.int32())), pa.list_(pa.string()), ["7"]),
        (pa.array([1e10]), pa.string(), "1.0E10"),
        (pa.array([Decimal("1.50")]), pa.string(), "1.50"),
        (pa.array([b"a"]), pa.string(), "a"),
        (pa.array(["a"]), pa.binary(), b"a"),
        (pa.array([{"x": 1, "gone": 2}]), pa.struct([("x", pa.int64())]), {"x": 1}),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())), pa.map_(pa.string(), pa.int64()),
         [("a", 1), ("a", 2)]),
    ],
)  # fmt: skip
def test_old_files_are_read_as_the_jvm_reads_them(values: pa.Array, column: pa.DataType, expected: Any) -> None:
    assert convert(values, column, rules=READ).to_pylist() == [expected]


def test_old_floats_become_the_texts_of_java() -> None:
    """As `Double.toString` is documented."""
    texts = {
        0.0: "0.0", 1.0: "1.0", -1.5: "-1.5", 0.001: "0.001", 0.00099: "9.9E-4", 123456.789: "123456.789",
        9999999.0: "9999999.0", 1e7: "1.0E7", 12345678.9: "1.23456789E7", 1e300: "1.0E300",
        float("inf"): "Infinity", float("-inf"): "-Infinity",
    }  # fmt: skip
    assert convert(pa.array([*texts]), pa.string(), rules=READ).to_pylist() == [*texts.values()]
    short = convert(pa.array([float("nan"), None, 0.1], pa.float32()), pa.string(), rules=READ)
    assert short.to_pylist() == ["NaN", None, "0.1"]


@pytest.mark.parametrize(
    ("values", "column"),
    [(pa.array(["1"]), pa.int32()), (pa.array([True]), pa.int32()), (pa.array([b"\xff"]), pa.string()),
     (pa.array([[1]]), pa.struct([("x", pa.int64())]))],
)  # fmt: skip
def test_old_files_that_no_promotion_explains_are_corrupt(values: pa.Array, column: pa.DataType) -> None:
    with pytest.raises(Corrupt, match="an old file does not fit the table: c: "):
        convert(values, column, rules=READ)


@pytest.mark.parametrize("word", [MIB * "x", [MIB * "x"], {"a": MIB * "x"}], ids=["text", "list", "struct"])
@pytest.mark.parametrize("encoding", ["dictionary", "runs"])
def test_repeated_value_of_more_than_2_gib_in_all_becomes_several_arrays(word: Any, encoding: str) -> None:
    words, count = pa.array([word]), 2100
    if encoding == "dictionary":
        values = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), words)
    else:
        values = pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), words)
    column = convert(values, words.type if pa.types.is_struct(words.type) else pa.array([word]).type)
    assert column.num_chunks > 1
    assert len(column) == count
    assert column[-1].as_py() == word


def test_repeated_value_beside_a_misfit_that_no_row_uses_becomes_several_arrays() -> None:
    values = pa.DictionaryArray.from_arrays(np.zeros(2100, np.int32), pa.array([MIB * b"x", b"\xff"]))
    assert len(convert(values, pa.string(), rules=READ)) == 2100


@pytest.mark.parametrize("row", [0, 5, 6, 11])
def test_misfit_beside_values_too_long_for_one_array_is_refused_with_its_row(
    monkeypatch: pytest.MonkeyPatch, row: int
) -> None:
    monkeypatch.setattr(kernels, "ARRAY_BYTES", 10)
    texts = pa.DictionaryArray.from_arrays(np.zeros(12, np.int32), pa.array(["abc"]))
    numbers = pa.array([2**40 if number == row else number for number in range(12)])
    with pytest.raises(DoesNotFit, match=rf"^c\.x: int64 does not fit int32: {2**40}, in row {row};"):
        convert(
            pa.StructArray.from_arrays([texts, numbers], ["s", "x"]), pa.struct([("s", pa.string()), ("x", pa.int32())])
        )


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()], ids=str)
def test_empty_array_may_have_no_offsets(kind: pa.DataType) -> None:
    empty = pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    assert len(convert(empty, pa.string() if kind == pa.large_string() else pa.binary())) == 0


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (pa.array([0, 2**62], pa.timestamp("s", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([0, 2**62], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([0, 2**62 // 86_400_000 * 86_400_000], pa.date64()), pa.date32()),
    ],
    ids=["moment", "time", "day"],
)
def test_misfit_that_python_cannot_hold_is_refused_with_its_row(values: pa.Array, column: pa.DataType) -> None:
    with pytest.raises(DoesNotFit, match=r"does not fit .* in row 1"):
        convert(values, column)
