"""Tests of TableSchema: tables survive encoding and decoding, and other data is refused with a reason."""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastshapley.data.table_schema import Table, TableSchema
from fastshapley.errors import InputError

NAN = float("nan")
SPARSE: Any = pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])})


def round_trip(X: Table) -> Any:
    """Encode and decode the table with a schema that has been saved and loaded."""
    schema = TableSchema.from_dict(json.loads(json.dumps(TableSchema.of(X).to_dict())))
    return schema.decode(schema.encode(X))


def people() -> pd.DataFrame:
    return pd.DataFrame({"age": [39, 50, 28], "pay": [1.5, NAN, 3.0], "job": ["clerk", None, "chef"]})


def numbers() -> pd.DataFrame:
    return people()[["age", "pay"]]


COLUMNS: dict[str, Any] = {
    **{dtype: np.array([1, 0, 7], dtype) for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint64")},
    **{dtype: np.array([1.1, NAN, -3.0], dtype) for dtype in ("float16", "float32", "float64")},
    "largest integers": np.array([2**53 - 1, 1 - 2**53]),
    "bool": np.array([True, False]),
    "Int64 with gaps": pd.array([1, None, 3], "Int64"),
    "UInt8": pd.array([1, 255], "UInt8"),
    "Float32 with gaps": pd.array([1.5, None], "Float32"),
    "Float64 with gaps": pd.array([1.1, None], "Float64"),
    "boolean with gaps": pd.array([True, None, False], "boolean"),
    "category with gaps": pd.Categorical(["b", None, "a"]),
    "category never met": pd.Categorical(["b"], categories=["a", "b", "c"]),
    "category, ordered": pd.Categorical(["low", "high"], categories=["low", "high"], ordered=True),
    "category of integers": pd.Categorical([30, 10, None]),
    "category of int8": pd.Categorical([3, 1], categories=np.array([3, 1], "int8")),
    "category of floats": pd.Categorical([0.5, None]),
    "category of booleans": pd.Categorical([True, None, False]),
    "category of objects": pd.Categorical(["a"], categories=pd.Index(["a", "b"], dtype=object)),
    "category, all gaps": pd.Categorical([None, None]),
    "str": pd.Series(["b", "a"], dtype="str"),
    "str with gaps": pd.Series(["b", None], dtype="str"),
    "string with gaps": pd.Series(["b", pd.NA], dtype="string"),
    **{f"strings and {gap}": pd.Series(["b", gap, "a"], dtype=object) for gap in (None, NAN, pd.NA)},
    "object, all gaps": pd.Series([None, None], dtype=object),
    "object integers": pd.Series([1, None, 3], dtype=object),
    "object floats": pd.Series([1.5, NAN], dtype=object),
    "object integers and floats": pd.Series([1, 2.5], dtype=object),
    "object booleans": pd.Series([True, None, False], dtype=object),
    "object of several types": pd.Series(["a", 1, None, 2.5, np.int64(7)], dtype=object),
}


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS.keys())
def test_a_frame_column_keeps_its_values_gaps_and_dtype(values: Any) -> None:
    frame = pd.DataFrame({"before": np.ones(len(values)), "column": values})
    back = round_trip(frame)
    pd.testing.assert_frame_equal(back, frame)
    gaps = frame["column"].isna()
    assert [repr(gap) for gap in back["column"][gaps]] == [repr(gap) for gap in frame["column"][gaps]]


def test_decimals_are_numbers() -> None:
    frame = pd.DataFrame({"pay": [Decimal("1.50"), None, Decimal("2.25")]})
    schema = TableSchema.of(frame)
    assert schema.columns[0].categories is None
    np.testing.assert_array_equal(schema.encode(frame)[:, 0], [1.5, np.nan, 2.25])
    decoded: Any = schema.decode(schema.encode(frame))
    assert list(decoded["pay"]) == [1.5, None, 2.25]


def test_object_integers_stay_integers() -> None:
    back = round_trip(pd.DataFrame({"zip": pd.Series([10115, None], dtype=object)}))
    assert str(back["zip"][0]) == "10115"


@pytest.mark.parametrize("names", [[0, 1], ["a", 1], [np.int64(3), np.int64(5)], [0.5, 1.5], ["a b", ""]], ids=repr)
def test_column_names_are_restored(names: list[Any]) -> None:
    frame = pd.DataFrame([[1.0, 2], [3.0, 4]], columns=names)
    assert list(round_trip(frame).columns) == names
    assert TableSchema.of(frame).names == tuple(str(name) for name in names)


ARRAYS: dict[str, NDArray[Any]] = {
    "int32": np.array([[1, 2], [3, -4]], "int32"),
    "bool": np.array([[True, False], [False, True]]),
    "float32": np.array([[0.1, NAN], [3, 4]], "float32"),
    "big-endian": np.array([[0.1, 2], [3, 4]], ">f8"),
    "Fortran order": np.asfortranarray([[0.1, 2.0], [3, 4]]),
    "strings": np.array([["clerk", "x"], ["chef", "y"]]),
    "bytes as numbers": np.array([[1, 255]], "uint8"),
    "mixed objects": np.array([["clerk", 1.5, 3], [None, NAN, 4]], dtype=object),
    "object numbers": np.array([[1, 2.5], [3, 4.5]], dtype=object),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_is_restored(array: NDArray[Any]) -> None:
    back = round_trip(array)
    assert isinstance(back, np.ndarray)
    assert back.dtype == array.dtype
    pd.testing.assert_frame_equal(pd.DataFrame(back), pd.DataFrame(array))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str
)
def test_a_tensor_is_restored(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 0], [0, 1]]).to(dtype)
    back = round_trip(tensor)
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


texts = st.none() | st.text(max_size=3)
tables = st.integers(0, 5).flatmap(
    lambda rows: st.fixed_dictionaries(
        {
            "float": st.lists(st.floats(allow_infinity=False), min_size=rows, max_size=rows),
            "integer": st.lists(st.integers(1 - 2**53, 2**53 - 1), min_size=rows, max_size=rows),
            "nullable": st.lists(st.none() | st.integers(-(2**31), 2**31), min_size=rows, max_size=rows),
            "text": st.lists(texts, min_size=rows, max_size=rows),
            "category": st.lists(texts, min_size=rows, max_size=rows),
        }
    )
)


@settings(deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(tables)
def test_any_frame_is_restored(columns: dict[str, list[Any]]) -> None:
    dtypes = {"float": "float64", "integer": "int64", "nullable": "Int64", "text": "object", "category": "category"}
    frame = pd.DataFrame({name: pd.Series(values, dtype=dtypes[name]) for name, values in columns.items()})
    pd.testing.assert_frame_equal(round_trip(frame), frame)


def test_a_table_is_encoded_as_numbers_codes_and_nan() -> None:
    encoded = TableSchema.of(people()).encode(people())
    expected = torch.tensor([[39, 1.5, 1], [50, NAN, NAN], [28, 3, 0]], dtype=torch.float64)
    torch.testing.assert_close(encoded, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("X", [numbers(), np.ones((3, 2)), torch.ones(3, 2)], ids=["frame", "array", "tensor"])
def test_tables_and_encoded_tensors_share_no_memory(X: Table) -> None:
    schema = TableSchema.of(X)
    encoded = schema.encode(X)
    before = encoded.clone()
    rows: Any = schema.decode(encoded)
    rows[:] = 0
    assert torch.equal(encoded.nan_to_num(), before.nan_to_num())
    encoded[:] = 0
    assert TableSchema.of(X).encode(X).count_nonzero() > 0


@pytest.mark.parametrize("dtype", ["int64", "bool", "Int64", "boolean", "int8", "uint8", "UInt8"])
@pytest.mark.parametrize("value", [0.5, NAN, -1000.0])
def test_a_value_that_the_dtype_cannot_hold_is_kept(dtype: str, value: float) -> None:
    schema = TableSchema.of(pd.DataFrame({"a": pd.array([1, 0], dtype)}))  # type: ignore[call-overload]
    back: Any = schema.decode(torch.tensor([[1.0], [value]], dtype=torch.float64))
    np.testing.assert_array_equal(back["a"].to_numpy(dtype=float, na_value=np.nan), [1, value])


@pytest.mark.parametrize("like", [np.array([[1, 0]]), np.array([[True, False]]), torch.tensor([[1, 0]])], ids=repr)
def test_decoded_arrays_become_float_if_their_dtype_cannot_hold_a_value(like: Table) -> None:
    back = TableSchema.of(like).decode(torch.tensor([[0.5, NAN]], dtype=torch.float64))
    np.testing.assert_array_equal(np.asarray(back), [[0.5, NAN]])


def test_decoded_object_integers_may_become_fractions() -> None:
    schema = TableSchema.of(pd.DataFrame({"a": pd.Series([1, 2], dtype=object)}))
    back: Any = schema.decode(torch.tensor([[1.5], [2.0]], dtype=torch.float64))
    assert back["a"].tolist() == [1.5, 2]


def test_unseen_category_is_missing_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    frame = people()
    schema = TableSchema.of(frame)
    with caplog.at_level(logging.WARNING, "fastshapley"):
        encoded = schema.encode(frame.assign(job=pd.Series(["clerk", None, "astronaut"])))
    assert encoded[:, 2].isnan().tolist() == [False, True, True]
    assert "'job'" in caplog.text
    assert "'astronaut'" in caplog.text


def test_gaps_are_not_logged_as_unseen(caplog: pytest.LogCaptureFixture) -> None:
    TableSchema.of(people()).encode(people())
    assert not caplog.records


def test_unseen_string_of_an_array_is_decoded_as_missing() -> None:
    schema = TableSchema.of(np.array([["y"], ["n"]]))
    assert pd.isna(np.asarray(schema.decode(torch.tensor([[NAN]])))[0, 0])


def test_frame_is_accepted_where_an_array_was_fitted() -> None:
    frame = numbers()
    assert torch.equal(TableSchema.of(np.ones((2, 2))).encode(frame[:1]), torch.tensor([[39, 1.5]]).double())


@pytest.mark.parametrize("dtype", [float, object, str])
def test_array_is_accepted_where_a_frame_was_fitted(dtype: type) -> None:
    encoded = TableSchema.of(numbers()).encode(np.array([[39, 1.5]]).astype(dtype))
    assert encoded.tolist() == [[39, 1.5]]


def test_object_array_is_accepted_where_a_frame_with_text_was_fitted() -> None:
    frame = people()
    schema = TableSchema.of(frame)
    array = frame.to_numpy(dtype=object)
    torch.testing.assert_close(schema.encode(array), schema.encode(frame), equal_nan=True)


def test_list_of_rows_is_accepted_as_an_array() -> None:
    assert TableSchema.of(numbers()).encode([[39, 1.5]]).tolist() == [[39, 1.5]]


@pytest.mark.parametrize("X", [people(), np.ones((3, 2)), torch.ones(3, 2)], ids=["frame", "array", "tensor"])
def test_a_table_without_rows_is_encoded(X: Table) -> None:
    schema = TableSchema.of(X)
    encoded = schema.encode(X[:0])
    assert encoded.shape == (0, X.shape[1])
    assert schema.decode(encoded).shape == (0, X.shape[1])


def test_encode_cell_agrees_with_encode() -> None:
    schema = TableSchema.of(people())
    cells = [schema.encode_cell(j, value) for j, value in enumerate([39, None, "clerk"])]
    np.testing.assert_array_equal(cells, [39, NAN, 1])
    with pytest.raises(InputError, match="infinite"):
        schema.encode_cell(1, float("inf"))


def test_text_booleans_and_categories_are_discrete() -> None:
    schema = TableSchema.of(people().assign(member=True, tier=pd.Categorical([1, 2, 3])))
    assert [column.discrete for column in schema.columns] == [False, False, True, True, True]


DECIMAL = pd.ArrowDtype(pa.decimal128(5, 2))
BATCH = pa.RecordBatch.from_pandas(people())
UNFIT: dict[str, tuple[Any, str]] = {
    "one dimension": (np.ones(3), r"shape \(3,\).*reshape\(1, -1\)"),
    "three dimensions": (np.ones((3, 2, 2)), r"shape \(3, 2, 2\)"),
    "one-dimensional tensor": (torch.ones(3), r"shape \(3,\)"),
    "no columns": (np.ones((3, 0)), "no columns"),
    "Series": (pd.Series([1.0]), "Series.*table"),
    "sparse matrix": (SPARSE.sparse.to_coo(), r"sparse matrix of shape \(2, 1\).* 1\.6e-08 GB.*X\.toarray"),
    "sparse column": (SPARSE, "'a' has dtype Sparse"),
    "duplicate columns": (pd.DataFrame([[1, 2]], columns=["a", "a"]), r"duplicate columns: \['a'\]"),
    "same names as text": (pd.DataFrame([[1, 2]], columns=[1, "1"]), r"duplicate columns: \['1'\]"),
    "MultiIndex": (pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), "MultiIndex"),
    "datetime column": (pd.DataFrame({"t": pd.to_datetime(["2020-01-01"])}), "'t' has dtype datetime64"),
    "complex column": (pd.DataFrame({"z": [1j]}), "'z' has dtype complex"),
    "column of lists": (pd.DataFrame({"a": [[1], [2]]}), r"'a' holds objects such as \[1\]"),
    "complex array": (np.ones((1, 1), complex), "complex"),
    "complex tensor": (torch.ones(1, 1, dtype=torch.complex64), "complex"),
    "datetime array": (np.array([["2020-01-01"]], "M8[D]"), "datetime64"),
    "decimals of Arrow": (
        pd.DataFrame({"a": pd.Series([1], dtype=DECIMAL)}),
        "'a' has dtype decimal.*plain numbers",
    ),
    "masked array": (np.ma.masked_equal([[1.0, 2.0], [3.0, 4.0]], 2.0), r"masked array: pass X\.filled"),
    "table of another package": (BATCH, r"pyarrow\.lib\.RecordBatch: pass X\.to_pandas\(\)"),
    "rows of several lengths": ([[1.0, 2.0], [3.0]], "X is not a table"),
}


@pytest.mark.parametrize(("X", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_unsupported_tables_are_refused_at_fit(X: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TableSchema.of(X)


WRONG: dict[str, tuple[Any, str]] = {
    "missing column": (people()[["age", "job"]], "lacks the column 'pay'"),
    "missing columns": (people()[["job"]], "lacks the columns 'age', 'pay'"),
    "renamed column": (people().rename(columns={"pay": "Pay"}), r"'pay' \(renamed to 'Pay'\?\)"),
    "extra column": (people().assign(extra=1), r"not fitted on: \['extra'\].*feature_names_in_"),
    "column twice": (people()[["age", "pay", "job", "pay"]], r"duplicate columns: \['pay'\]"),
    "other width": (np.ones((1, 2)), "2 features, but FastSHAP is expecting 3"),
    "one row as a Series": (people().iloc[0], "Series"),
    "one-dimensional": (np.ones(3), "shape"),
    "sparse matrix": (SPARSE.sparse.to_coo(), r"sparse matrix.*X_val\.toarray"),
    "table of another package": (BATCH, r"pyarrow\.lib\.RecordBatch: pass X_val\.to_pandas\(\)"),
    "not in memory": (pl.from_pandas(people()).lazy(), r"X_val is a polars LazyFrame.*call \.collect\(\) first"),
    "infinite value": (people().assign(pay=[1, np.inf, 2]), "infinite values in column 'pay'"),
    "negative infinite value": (people().assign(pay=-np.inf), "infinite values in column 'pay'"),
    "text for numbers": (people().assign(pay=["1", "two", "3"]), "'pay' that are not numbers, such as 'two'"),
    "times for numbers": (people().assign(pay=pd.Timestamp("2020-01-01")), "'pay' that are not numbers"),
    "durations for numbers": (people().assign(pay=pd.Timedelta("1h")), "'pay' that are not numbers"),
    "complex for numbers": (people().assign(pay=1j), "'pay' that are not numbers"),
    "large integers": (people().assign(age=2**53 + 1), r"integers from 2\*\*53 in column 'age'"),
    "smallest integer": (people().assign(age=-(2**63)), r"integers from 2\*\*53 in column 'age'"),
    "large Python integers": (people().assign(age=pd.Series([2**80] * 3, dtype=object)), "integers from"),
}


@pytest.mark.parametrize(("X", "message"), WRONG.values(), ids=WRONG.keys())
def test_the_error_for_a_later_table_that_does_not_fit_names_the_argument(X: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        TableSchema.of(people()).encode(X, "X_val")
    assert "X_val" in str(caught.value)


def test_columns_are_found_by_their_names_in_any_order() -> None:
    schema = TableSchema.of(people())
    reordered = schema.encode(people()[["pay", "job", "age"]])
    torch.testing.assert_close(reordered, schema.encode(people()), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "X",
    [np.array([[2**53 + 1]]), torch.tensor([[-(2**60)]]), np.array([[2**53 + 1]], dtype=object)],
    ids=["array", "tensor", "objects"],
)
def test_integers_that_float64_would_round_are_refused(X: Table) -> None:
    with pytest.raises(InputError, match="integers from"):
        TableSchema.of(X).encode(X)


def test_large_floats_are_accepted() -> None:
    assert round_trip(np.array([[1e300]])).item() == 1e300


@pytest.mark.parametrize("frame", [pd.DataFrame({"c": pd.cut([1, 5], 2)}), pd.DataFrame({"c": [b"x"]})])
def test_categories_that_json_cannot_hold_are_refused_when_saved(frame: pd.DataFrame) -> None:
    schema = TableSchema.of(frame)
    pd.testing.assert_frame_equal(schema.decode(schema.encode(frame)), frame)
    with pytest.raises(InputError, match=r"'c' .* cannot be saved"):
        schema.to_dict()
