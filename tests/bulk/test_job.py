"""Tests of explaining files: values, keys, the output folder, and the command ``explain``."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Exported
from problems import numbers, people, people_chances
from sklearn.exceptions import NotFittedError

from fastshapley import FastSHAP, Groups
from fastshapley.cli import main
from fastshapley.errors import InputError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

import pyarrow.parquet as pq  # noqa: E402
from bulks import (  # noqa: E402
    assert_explains,
    chances,
    features,
    keyed,
    only_whole_files,
    parts_in,
    quick,
    read,
    score,
    write_many,
)

from fastshapley.bulk.job import prepare  # noqa: E402


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    """Return an explainer with two outputs."""
    return quick(chances).fit(people()[0])


@pytest.fixture(scope="module")
def grouped() -> FastSHAP:
    """Return an explainer with one output, a player of two columns, and values that need not add up."""
    return quick(score, players=Groups({"work": ["income", "job"]}), normalize="never").fit(people()[0])


@pytest.fixture(scope="module")
def marginal() -> FastSHAP:
    """Return an explainer that is fitted to an array and whose game calls the model."""
    return quick(lambda X: X[:, 0] * X[:, 1] + X[:, 2], value_function="marginal").fit(numbers(100, 3))


@pytest.fixture(scope="module")
def saved(fitted: FastSHAP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "people.fastshap"
    fitted.save(path)
    return path


@pytest.fixture
def frame() -> pd.DataFrame:
    return keyed(50)


@pytest.fixture
def source(frame: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path, row_group_size=8)
    return path


# Values


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_values_match_the_explainer_in_the_order_of_the_rows(
    fitted: FastSHAP, frame: pd.DataFrame, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=8)
    else:
        frame.to_csv(path, index=False)
    found = fitted.explain_to(path, tmp_path / "out", part_rows=8)
    table = read(tmp_path / "out")
    assert list(map(int, table["id"])) == list(frame["id"])  # keys from CSV are text
    assert list(table["name"]) == list(frame["name"])
    assert_explains(fitted, features(frame), table)
    assert (found.rows, found.kept, found.parts) == (50, 0, len(parts_in(tmp_path / "out")))
    assert found.parts == (1 if kind == "csv.gz" else 7 if kind == "parquet" else pytest.approx(7, abs=2))
    assert only_whole_files(tmp_path / "out")
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_values_of_groups_without_normalization_match_the_explainer(
    grouped: FastSHAP, frame: pd.DataFrame, source: Path, tmp_path: Path
) -> None:
    grouped.explain_to(source, tmp_path / "out")
    table = read(tmp_path / "out")
    names = [f"shap_{name}" for name in grouped.player_names_]
    assert list(table) == ["id", "name", *names, "base_value", "prediction"]
    assert "shap_work" in names
    assert_explains(grouped, features(frame), table)
    assert not np.allclose(table[names].sum(axis=1) + table["base_value"], table["prediction"], atol=1e-3)


@pytest.mark.parametrize("names", [["x0", "x1", "x2"], ["a", "b", "c"]], ids=["by name", "by position"])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_match_an_explainer_of_arrays_by_name_or_position(
    marginal: FastSHAP, tmp_path: Path, names: list[str], kind: str
) -> None:
    X = numbers(20, 3, seed=1)
    table = pd.DataFrame({"id": np.arange(20), **dict(zip(names, X.T, strict=True))})
    for number, half in enumerate((table[:10], table[10:])):
        path = tmp_path / f"rows_{number}.{kind}"
        half.to_parquet(path) if kind == "parquet" else half.to_csv(path, index=False)
    marginal.explain_to(f"{tmp_path}/*.{kind}", tmp_path / "out", keys=["id"])
    found = read(tmp_path / "out")
    assert list(map(int, found["id"])) == list(range(20))
    assert_explains(marginal, X, found)


def test_files_with_other_column_names_match_an_explainer_of_arrays(marginal: FastSHAP, tmp_path: Path) -> None:
    """Columns are matched by position in each file, unless they have the names of the first file."""
    X = numbers(6, 3, seed=1)
    pd.DataFrame(X[:2], columns=list("abc")).to_csv(tmp_path / "1.csv", index=False)
    pd.DataFrame(X[2:4], columns=list("def")).to_csv(tmp_path / "2.csv", index=False)
    pd.DataFrame(X[4:], columns=list("abc"))[["c", "a", "b"]].to_csv(tmp_path / "3.csv", index=False)
    marginal.explain_to(f"{tmp_path}/*.csv", tmp_path / "out")
    assert_explains(marginal, X, read(tmp_path / "out"))
    pd.DataFrame(X, columns=list("cde")).to_csv(tmp_path / "4.csv", index=False)
    with pytest.raises(InputError, match=r"4\.csv has the columns \['c'\] of the first file, but not \['a', 'b'\]"):
        marginal.explain_to(f"{tmp_path}/*.csv", tmp_path / "other")


def test_only_the_requested_outputs_are_explained(
    fitted: FastSHAP, frame: pd.DataFrame, source: Path, tmp_path: Path
) -> None:
    names = list(fitted.output_names_)
    fitted.explain_to(source, tmp_path / "one", outputs=[names[1]])
    assert_explains(fitted, features(frame), read(tmp_path / "one"), [1])
    fitted.explain_to(source, tmp_path / "both", outputs=names[::-1])
    assert_explains(fitted, features(frame), read(tmp_path / "both"), [1, 0])
    for outputs in (["none of them"], [], [names[0], names[0]], names[0]):
        with pytest.raises(InputError, match="outputs"):
            fitted.explain_to(source, tmp_path / "none", outputs=outputs)


def test_results_do_not_depend_on_the_number_of_workers(fitted: FastSHAP, source: Path, tmp_path: Path) -> None:
    for workers in (1, 5):
        fitted.explain_to(source, tmp_path / str(workers), part_rows=1, workers=workers)
    one, five = (read(tmp_path / str(workers)) for workers in (1, 5))
    pd.testing.assert_frame_equal(one, five)


def test_categories_not_seen_at_fit_are_logged_once(
    fitted: FastSHAP, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = keyed(20)
    frame.loc[::3, "job"] = "pilot"
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=5)
    with caplog.at_level(logging.WARNING):
        fitted.explain_to(tmp_path / "rows.parquet", tmp_path / "out", part_rows=5)
    assert [text for text in caplog.messages if "'job'" in text] == [
        "column 'job' has values not seen at fit: they are treated as missing"
    ]
    frame.loc[::3, "job"] = None
    assert_explains(fitted, features(frame), read(tmp_path / "out"))


# Keys


def test_keys_are_the_requested_columns_or_all_that_are_not_features(
    fitted: FastSHAP, source: Path, tmp_path: Path
) -> None:
    asked: dict[str, tuple[list[str] | None, list[str]]] = {
        "none": (None, ["id", "name"]),
        "some": (["name"], ["name"]),
        "empty": ([], []),
        "a feature": (["job", "id"], ["job", "id"]),
    }
    for name, (keys, expected) in asked.items():
        fitted.explain_to(source, tmp_path / name, keys=keys)
        table = read(tmp_path / name)
        assert [
            column
            for column in table.columns.map(str)
            if not column.startswith(("shap_", "base_", "prediction", "outside_"))
        ] == expected
        pd.testing.assert_frame_equal(table[expected], pd.read_parquet(source)[expected])


def test_missing_keys_and_duplicate_columns_are_refused(
    fitted: FastSHAP, frame: pd.DataFrame, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"keys \['number'\] are not columns of .*rows\.parquet"):
        fitted.explain_to(source, tmp_path / "out", keys=["id", "number"])
    with pytest.raises(InputError, match=r"keys is 'id': pass a list, such as \['id'\]"):
        fitted.explain_to(source, tmp_path / "out", keys="id")
    with pytest.raises(InputError, match=r"two columns for each of \['id'\]"):
        fitted.explain_to(source, tmp_path / "out", keys=["id", "id"])
    name = f"prediction_{fitted.output_names_[0]}"
    frame.assign(**{name: 1.0}).to_parquet(source)
    with pytest.raises(InputError, match=rf"two columns for each of \['{name}'\]: leave them out of keys, rename"):
        fitted.explain_to(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    fitted.explain_to(source, tmp_path / "out", keys=["id"])


def test_clashing_column_names_of_players_and_outputs_are_refused(tmp_path: Path) -> None:
    """Player a with output b_c and player a_b with output c both give shap_a_b_c. A single output is accepted."""

    class Model:
        classes_ = np.array(["c", "b_c"])

        def predict_proba(self, X: pd.DataFrame) -> Any:
            return np.stack([np.full(len(X), 0.25), np.full(len(X), 0.75)], axis=1)

    X = pd.DataFrame(numbers(40, 2), columns=["a", "a_b"])
    clashing = quick(Model()).fit(X)
    X.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(
        InputError, match=r"two columns for each of \['shap_a_b_c'\].* one of the outputs at a time"
    ):
        clashing.explain_to(tmp_path / "rows.parquet", tmp_path / "out")
    clashing.explain_to(tmp_path / "rows.parquet", tmp_path / "out", outputs=["c"])
    assert_explains(clashing, X, read(tmp_path / "out"), [0])


def test_keys_keep_their_types_in_parquet(fitted: FastSHAP, tmp_path: Path) -> None:
    columns = {
        "small": pa.array([1, None, 3], pa.int16()),
        "word": pa.array(["a", None, "a"]).dictionary_encode(),
        "when": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
        "list": pa.array([[1, 2], None, []]),
        "nothing": pa.nulls(3),
    }
    table = pa.Table.from_pandas(features(keyed(3)), preserve_index=False)
    for name, values in columns.items():
        table = table.append_column(name, values)
    pq.write_table(table, tmp_path / "rows.parquet")
    fitted.explain_to(tmp_path / "rows.parquet", tmp_path / "out")
    found = pq.read_table(tmp_path / "out")
    for name, values in columns.items():
        assert found[name].to_pylist() == values.to_pylist()
        assert found.schema.field(name).type == (pa.string() if name == "nothing" else values.type)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["int32", "int64"], "int64"),
        (["int64", "double"], "double"),
        (["null", "int8"], "int8"),
        (["string", "large_string"], "large_string"),
        (["int64", "string"], "string"),
        (["dictionary", "string"], "string"),
        (["bool", "int64"], "string"),
    ],
)
def test_keys_with_different_types_in_files_get_a_common_type(
    fitted: FastSHAP, tmp_path: Path, kinds: list[str], expected: str
) -> None:
    """The order of the files does not matter."""
    for order, name in ((kinds, "one"), (kinds[::-1], "two")):
        folder = tmp_path / name
        folder.mkdir()
        keys = []
        for number, kind in enumerate(order):
            key = pa.array(["1", "0"]).dictionary_encode() if kind == "dictionary" else pa.nulls(2, pa.int8())
            if kind not in ("dictionary", "null"):
                key = pa.array([1, 0]).cast(
                    getattr(pa, "float64" if kind == "double" else kind.replace("bool", "bool_"))()
                )
            table = pa.Table.from_pandas(features(keyed(2)), preserve_index=False)
            pq.write_table(table.append_column("id", key), folder / f"{number}.parquet")
            keys += key.cast(key.type if expected != "string" else pa.string()).to_pylist()
        fitted.explain_to(folder, tmp_path / f"out_{name}", keys=["id"])
        found = pq.read_table(tmp_path / f"out_{name}")["id"]
        assert str(found.type) == expected
        assert found.to_pylist() == keys


def test_keys_from_csv_are_copied_as_text(fitted: FastSHAP, tmp_path: Path) -> None:
    """Keys that look like numbers, booleans, times or gaps stay as they are."""
    first, second = keyed(5), keyed(4, start=5)
    ids = ["007", "7", "12345678901234567890", "true", "2024-01-01 10:00:00", "NA", "1e3", "0.50", ""]
    first["id"], second["id"] = ids[:5], ids[5:]
    first.to_csv(tmp_path / "1.csv", index=False)
    second.to_csv(tmp_path / "2.csv", index=False)
    fitted.explain_to(f"{tmp_path}/*.csv", tmp_path / "out", keys=["id"])
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == [*ids[:-1], None]


def test_a_key_of_another_kind_far_into_the_file_is_copied(fitted: FastSHAP, tmp_path: Path) -> None:
    frame = keyed(1000).assign(pad="x" * 1000).astype({"id": object})
    frame.loc[999, "id"] = "A1"
    frame.to_csv(tmp_path / "rows.csv", index=False)
    fitted.explain_to(tmp_path / "rows.csv", tmp_path / "out", keys=["id"])
    assert read(tmp_path / "out")["id"].tolist() == [*map(str, range(999)), "A1"]


def test_columns_that_only_some_files_have_are_not_keys(
    fitted: FastSHAP, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = keyed(4)
    frame[:2].assign(note="x").to_parquet(tmp_path / "1.parquet")
    frame[2:][list(frame)[::-1]].to_parquet(tmp_path / "2.parquet")
    fitted.explain_to(f"{tmp_path}/*.parquet", tmp_path / "out")
    assert "columns ['note'] are not in all files: they are not copied" in caplog.text
    table = read(tmp_path / "out")
    assert list(table)[:2] == ["id", "name"]
    assert list(table["id"]) == [0, 1, 2, 3]
    assert_explains(fitted, features(frame), table)


# Text


def test_na_is_a_category_where_it_was_one_at_fit_and_a_gap_elsewhere(tmp_path: Path) -> None:
    """NA is Namibia in one column, a missing number in another, and a key in the last."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"country": rng.choice(["NA", "DE", "None"], 60), "pay": rng.normal(size=60)})
    X.loc[::5, "pay"] = np.nan
    X.loc[::7, "country"] = None
    fitted = quick(lambda rows: (rows["country"] == "NA").to_numpy() + rows["pay"].fillna(0).to_numpy()).fit(X)
    text = X.assign(pay=X["pay"].astype(object).where(X["pay"].notna(), "NA"), key="NA")
    text.to_csv(tmp_path / "rows.csv", index=False)
    X.to_parquet(tmp_path / "rows.parquet")
    fitted.explain_to(tmp_path / "rows.csv", tmp_path / "out")
    table = read(tmp_path / "out")
    assert_explains(fitted, X, table)
    assert set(table["key"]) == {"NA"}
    assert table["shap_country"].nunique() > 3  # as gaps, all of these rows would get the same value


def test_csv_is_explained_like_the_frame_that_pandas_reads_from_it(fitted: FastSHAP, tmp_path: Path) -> None:
    rows = ["age,income,job,city,member", '44,30.5,"chef",Bern,True', " 30,,clerk ,Basel,false", "1e1,nan,NA,,1"]
    (tmp_path / "rows.csv").write_text("\r\n".join(rows))
    fitted.explain_to(tmp_path / "rows.csv", tmp_path / "out")
    nothing: Any = None
    frame = pd.DataFrame(
        {
            "age": [44.0, 30, 10],
            "income": [30.5, np.nan, np.nan],
            "job": ["chef", "clerk ", nothing],
            "city": ["Bern", "Basel", nothing],
            "member": [True, False, True],
        }
    )
    assert_explains(fitted, frame, read(tmp_path / "out"))


def test_categories_that_are_numbers_or_booleans_are_read_from_csv(tmp_path: Path) -> None:
    """The first rows hold only gaps."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "zone": pd.Categorical(rng.choice([3, 10, 20], 80)),
            "half": pd.Categorical(rng.choice([0.5, 1], 80)),
            "truth": pd.Series(rng.choice([True, False], 80), dtype=object),
            "number": rng.normal(size=80),
        }
    )
    X.loc[:60, ["zone", "half", "truth", "number"]] = np.nan
    fitted = quick(lambda rows: 1.0 * (rows["zone"] == 3) + (rows["half"] == 1)).fit(X)
    X.to_csv(tmp_path / "rows.csv", index=False)
    fitted.explain_to(tmp_path / "rows.csv", tmp_path / "out")
    assert_explains(fitted, X, read(tmp_path / "out"))


# Few rows


def test_files_with_one_row_are_explained(fitted: FastSHAP, tmp_path: Path) -> None:
    frame = keyed(1)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    found = fitted.explain_to(f"{tmp_path}/rows.*", tmp_path / "out")
    assert (found.rows, found.parts) == (2, 2)
    assert_explains(fitted, features(pd.concat([frame, frame])), read(tmp_path / "out"))


def test_files_without_rows_are_accepted(fitted: FastSHAP, tmp_path: Path) -> None:
    frame = keyed(6)
    frame[:0].to_csv(tmp_path / "0.csv", index=False)
    frame[:3].to_parquet(tmp_path / "1.parquet")
    frame[:0].to_parquet(tmp_path / "2.parquet")
    frame[3:].to_csv(tmp_path / "3.csv", index=False)
    fitted.explain_to([tmp_path / "0.csv", tmp_path / "2.parquet"], tmp_path / "none")
    assert read(tmp_path / "none").shape == (0, 2 + 2 * (5 + 2))
    found = fitted.explain_to(f"{tmp_path}/*.*", tmp_path / "out")
    assert found.rows == 6
    table = read(tmp_path / "out")
    assert list(map(int, table["id"])) == list(range(6))
    assert_explains(fitted, features(frame), table)


# The output folder


def test_a_second_run_does_nothing(fitted: FastSHAP, source: Path, tmp_path: Path) -> None:
    first = fitted.explain_to(source, tmp_path / "out", part_rows=8)
    before = parts_in(tmp_path / "out")
    again = fitted.explain_to(source, tmp_path / "out", part_rows=8)
    assert (again.rows, again.parts, again.kept) == (0, 0, first.parts)
    assert "nothing left to do" in str(again)
    assert parts_in(tmp_path / "out") == before


def test_a_single_row_group_is_explained_and_resumed_in_parts(
    fitted: FastSHAP, frame: pd.DataFrame, tmp_path: Path
) -> None:
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    source, out = tmp_path / "rows.parquet", tmp_path / "out"
    found = fitted.explain_to(source, out, part_rows=8)
    assert found.parts == -(-len(frame) // 8)
    fitted.explain_to(source, tmp_path / "whole", part_rows=10**6)
    pd.testing.assert_frame_equal(read(out), read(tmp_path / "whole"))
    (out / list(parts_in(out))[1]).unlink()
    assert fitted.explain_to(source, out, part_rows=8).parts == 1
    pd.testing.assert_frame_equal(read(out), read(tmp_path / "whole"))


def test_a_folder_that_an_earlier_version_began_is_not_mixed_with_slices(
    fitted: FastSHAP, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are whole row groups, and would have the names of slices."""
    frame.to_parquet(tmp_path / "rows.parquet", index=False)
    with monkeypatch.context() as earlier:
        earlier.setattr("fastshapley.bulk.job.with_slices", lambda parts, rows: parts)
        fitted.explain_to(tmp_path / "rows.parquet", tmp_path / "out", part_rows=8)
    with pytest.raises(InputError, match="belongs to a run with other files, another explainer or other settings"):
        fitted.explain_to(tmp_path / "rows.parquet", tmp_path / "out", part_rows=8)


def test_only_missing_parts_are_explained_again(fitted: FastSHAP, source: Path, tmp_path: Path) -> None:
    fitted.explain_to(source, tmp_path / "out", part_rows=8)
    before, table = parts_in(tmp_path / "out"), read(tmp_path / "out")
    gone = list(before)[2]
    (tmp_path / "out" / gone).unlink()
    found = fitted.explain_to(source, tmp_path / "out", part_rows=8)
    assert (found.rows, found.parts, found.kept) == (8, 1, len(before) - 1)
    after = parts_in(tmp_path / "out")
    assert {name: time for name, time in after.items() if name != gone} == {
        name: time for name, time in before.items() if name != gone
    }
    pd.testing.assert_frame_equal(read(tmp_path / "out"), table)


def test_unfinished_files_of_this_run_and_old_ones_are_deleted_at_the_end(
    fitted: FastSHAP, source: Path, tmp_path: Path
) -> None:
    run = prepare(fitted, source, tmp_path / "out", keys=None, outputs=None, part_rows=8, progress=False)
    lost = tmp_path / "out" / f"_00000-00000-0.{run.job.folder.token}.1"
    others, old = tmp_path / "out" / "_00000-00000-0.another.1", tmp_path / "out" / "_00000-00001-0.another.2"
    for path in (lost, others, old):
        path.touch()
    os.utime(old, (0, 0))
    run.finish((part, run.job.explain(part, set()), ()) for part in run.parts)
    assert not lost.exists()
    assert others.exists()
    assert not old.exists()


def test_a_folder_of_another_run_is_refused(
    fitted: FastSHAP, grouped: FastSHAP, frame: pd.DataFrame, source: Path, tmp_path: Path
) -> None:
    fitted.explain_to(source, tmp_path / "out")
    before = parts_in(tmp_path / "out")
    other = tmp_path / "other.parquet"
    frame.to_parquet(other)
    settings: list[tuple[FastSHAP, Any, dict[str, Any]]] = [
        (grouped, source, {}),
        (quick(chances, random_state=1).fit(people()[0]), source, {}),
        (fitted, other, {}),
        (fitted, [source, other], {}),
        (fitted, source, {"keys": ["id"]}),
        (fitted, source, {"outputs": list(fitted.output_names_)[:1]}),
        (fitted, source, {"outputs": list(fitted.output_names_)[::-1]}),
        (fitted, source, {"part_rows": 8}),
    ]
    for explainer, files, options in settings:
        with pytest.raises(
            InputError, match="belongs to a run with other files, another explainer or other settings"
        ):
            explainer.explain_to(files, tmp_path / "out", **options)
    frame.astype({"id": "int32"}).to_parquet(source)
    with pytest.raises(InputError, match="belongs to a run with other"):  # the parts would have different columns
        fitted.explain_to(source, tmp_path / "out")
    assert parts_in(tmp_path / "out") == before


@pytest.mark.parametrize("game", ["marginal", "baseline"])
def test_a_run_does_not_resume_with_another_model(tmp_path: Path, game: str) -> None:
    """In these games, the values come from the model itself; everything else may be the same."""
    X = numbers(50, 2)
    pd.DataFrame(X, columns=["x0", "x1"]).to_parquet(tmp_path / "rows.parquet")
    model = quick(lambda X: X.sum(axis=1), value_function=game).fit(X)
    model.save(tmp_path / "it.fastshap")
    model.explain_to(tmp_path / "rows.parquet", tmp_path / "out")
    same, other = (FastSHAP.load(tmp_path / "it.fastshap", f) for f in (lambda X: X @ [1, 1], lambda X: X @ [1, 2]))
    assert same.explain_to(tmp_path / "rows.parquet", tmp_path / "out").kept == 1
    with pytest.raises(InputError, match="belongs to a run with another model"):
        other.explain_to(tmp_path / "rows.parquet", tmp_path / "out")


def test_a_run_does_not_resume_with_another_normalization(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Both explainers have the same weights."""
    inference, never = (quick(score, normalize=when).fit(people()[0]) for when in ("inference", "never"))
    weights, others = (fitted.network_.state_dict() for fitted in (inference, never))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    frame.to_parquet(tmp_path / "rows.parquet")
    inference.explain_to(tmp_path / "rows.parquet", tmp_path / "out")
    with pytest.raises(InputError, match="another explainer"):
        never.explain_to(tmp_path / "rows.parquet", tmp_path / "out")


def test_a_folder_with_other_files_is_refused_and_left_alone(
    fitted: FastSHAP, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match=r"mine is not empty \(\['thesis\.txt'\]\): choose another folder"):
        fitted.explain_to(source, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_empty_folder_hidden_files_and_unfinished_files_are_accepted(
    fitted: FastSHAP, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".DS_Store").write_text("")
    (tmp_path / "out" / "_fastshapley.json.0a1b2c3d").write_text('{"key": ')
    assert fitted.explain_to(source, tmp_path / "out").rows == 50
    (tmp_path / "out" / "_00000-00000-00000000.0a1b2c3d").write_text("PAR1")
    assert fitted.explain_to(source, tmp_path / "out").rows == 0
    assert len(read(tmp_path / "out")) == 50
    left = list((tmp_path / "out").glob("*0a1b2c3d"))
    assert len(left) == 2  # another run may still be writing them
    for path in left:
        os.utime(path, (0, 0))
    fitted.explain_to(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*0a1b2c3d"))


def test_a_manifest_that_cannot_be_read_is_refused(fitted: FastSHAP, source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for text in ("", "[]", "{}"):
        (tmp_path / "out" / "_fastshapley.json").write_text(text)
        with pytest.raises(InputError, match=r"_fastshapley\.json cannot be read: choose another folder"):
            fitted.explain_to(source, tmp_path / "out")


def test_an_output_folder_that_is_a_file_is_refused(fitted: FastSHAP, source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("precious")
    with pytest.raises(InputError, match="out, which is a file: choose a folder"):
        fitted.explain_to(source, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "precious"


def test_an_output_folder_inside_the_source_folder_is_not_explained(fitted: FastSHAP, tmp_path: Path) -> None:
    """A second run skips the output as well."""
    frame = write_many(tmp_path / "data", 3)
    for _ in range(2):
        fitted.explain_to(tmp_path / "data", tmp_path / "data" / "out")
        assert_explains(fitted, features(frame), read(tmp_path / "data" / "out"))
    with pytest.raises(InputError, match=r"data/out/part.* lacks the columns"):
        fitted.explain_to(tmp_path / "data", tmp_path / "elsewhere")


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/*.parquet", "{}/00.parquet", "file://{}"])
def test_an_output_folder_that_holds_the_source_files_is_refused(
    fitted: FastSHAP, tmp_path: Path, form: str
) -> None:
    write_many(tmp_path / "data", 2)
    place = form.format(tmp_path / "data")
    for source in (place, [place]):
        with pytest.raises(InputError, match=r"data.* is inside the output folder .*data: choose another"):
            fitted.explain_to(source, tmp_path / "data")
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_source_and_output_may_be_file_uris(
    fitted: FastSHAP, frame: pd.DataFrame, source: Path, tmp_path: Path
) -> None:
    fitted.explain_to(source.as_uri(), f"{(tmp_path / 'deep' / 'out').as_uri()}/")
    assert_explains(fitted, features(frame), read(tmp_path / "deep" / "out"))


def test_source_and_output_may_be_on_another_file_system(fitted: FastSHAP, frame: pd.DataFrame) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/bulk/rows.csv", frame.to_csv(index=False).encode())
    try:
        found = fitted.explain_to("fsspec+memory://bulk/rows.csv", "fsspec+memory://bulk/out", part_rows=10)
    except InputError as error:
        pytest.skip(f"this pyarrow knows no such address: {error}")
    assert found.rows == 50
    names = sorted(name.split("/")[-1] for name in memory.ls("/bulk/out", detail=False))
    tables = [pq.read_table(memory.open(f"/bulk/out/{name}")) for name in names if name.startswith("part-")]
    assert len(tables) == found.parts > 1
    assert_explains(fitted, features(frame), pa.concat_tables(tables).to_pandas())
    again = fitted.explain_to("fsspec+memory://bulk/rows.csv", "fsspec+memory://bulk/out", part_rows=10)
    assert (again.parts, again.kept) == (0, found.parts)
    memory.rm("/bulk", recursive=True)


# Explainers and options that are refused


def test_explainers_of_images_unfitted_explainers_and_bad_options_are_refused(
    fitted: FastSHAP, image_explainer: FastSHAP, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        InputError, match="fitted to images: files and datasets of rows need an explainer of a table"
    ):
        image_explainer.explain_to(source, tmp_path / "out")
    with pytest.raises(NotFittedError, match=r"call fit\(X\) first"):
        FastSHAP(score).explain_to(source, tmp_path / "out")
    with pytest.raises(InputError, match="part_rows is 0: use 1 or more"):
        fitted.explain_to(source, tmp_path / "out", part_rows=0)


# The command


def test_the_command_explains_files(
    saved: Path, fitted: FastSHAP, frame: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame[:20].to_parquet(tmp_path / "a.parquet")
    frame[20:].to_csv(tmp_path / "b.csv", index=False)
    sources = [str(tmp_path / "a.parquet"), f"{tmp_path}/*.csv"]
    command = ["explain", str(saved), *sources, "-o", str(tmp_path / "out"), "--part-rows", "8", "--workers", "2"]
    name = fitted.output_names_[1]
    assert main([*command, "--keys", "id", "--outputs", name]) == 0
    told = capsys.readouterr()
    assert "50 rows explained" in told.out
    assert str(tmp_path / "out") in told.out
    assert "explaining" in told.err  # the progress bar
    table = read(tmp_path / "out")
    assert list(table)[:2] == ["id", f"shap_{fitted.player_names_[0]}"]
    assert list(map(int, table["id"])) == list(range(50))
    assert_explains(fitted, features(frame), table, [1])
    assert main([*command, "--keys", "id", "--outputs", name, "--quiet"]) == 0
    told = capsys.readouterr()
    assert "nothing left to do" in told.out
    assert told.err == ""


def test_the_command_accepts_an_empty_list_of_keys(saved: Path, source: Path, tmp_path: Path) -> None:
    assert main(["explain", str(saved), str(source), "-o", str(tmp_path / "out"), "--quiet", "--keys"]) == 0
    assert "id" not in read(tmp_path / "out")


def test_the_command_reports_errors_in_one_line(
    saved: Path, frame: pd.DataFrame, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.csv").write_text("id,name,age,income,job,city,member\n1,x,3,4,chef,Bern,1\n2,y,3\n")
    frame.drop(columns="age").to_parquet(tmp_path / "lacking.parquet")
    frame.assign(age="old").to_csv(tmp_path / "text.csv", index=False)
    wrong = {
        "absent.fastshap does not exist": [str(tmp_path / "absent.fastshap"), str(source)],
        "no file at absent.csv": [str(saved), "absent.csv"],
        "lacking.parquet lacks the column 'age'": [str(saved), str(tmp_path / "lacking.parquet")],
        "bad.csv cannot be read": [str(saved), str(tmp_path / "bad.csv")],
        "text.csv, bytes": [str(saved), str(tmp_path / "text.csv")],
        "outputs ['none'] are none of": [str(saved), str(source), "--outputs", "none"],
    }
    for number, (message, arguments) in enumerate(wrong.items()):
        command = ["explain", *arguments[:2], "-o", str(tmp_path / f"out {number}"), "--quiet", *arguments[2:]]
        assert main(command) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("fastshapley explain: ")
        assert message in told.err
        assert told.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--part-rows", "--workers"])
def test_the_command_refuses_zero_rows_per_part_and_zero_workers(
    saved: Path, source: Path, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", str(saved), str(source), "-o", str(tmp_path / "out"), option, "0"])
    assert stop.value.code == 2
    assert option in capsys.readouterr().err


# Conditional games


@pytest.mark.parametrize("model", [None, people_chances], ids=["without model", "with model"])
def test_values_of_a_conditional_game_sum_to_the_model_if_it_is_there(
    conditional: Exported, model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame, loaded = write_many(tmp_path / "rows", 12), FastSHAP.load(conditional.saved, model)
    loaded.progress = False
    found = loaded.explain_to(tmp_path / "rows", tmp_path / "out", workers=4)
    sums_to = "surrogate" if model is None else "model"
    assert found.sums_to == json.loads((tmp_path / "out" / "_fastshapley.json").read_text())["sums_to"] == sums_to
    assert caplog.text.count("values sum to the surrogate's output") == (model is None)
    table = read(tmp_path / "out")
    assert_explains(loaded, features(frame), table)
    last = loaded.output_names_[1]
    total = (
        table[[f"shap_{name}_{last}" for name in loaded.player_names_]].sum(axis=1) + table[f"base_value_{last}"]
    )
    gap = np.abs(total - people_chances(features(frame))[:, 1]).max()
    assert gap > 1e-2 if model is None else gap < 1e-6


def test_a_run_of_a_conditional_game_does_not_mix_sums(conditional: Exported, source: Path, tmp_path: Path) -> None:
    alone, whole = FastSHAP.load(conditional.saved), FastSHAP.load(conditional.saved, people_chances)
    other = FastSHAP.load(conditional.saved, lambda rows: people_chances(rows)[:, ::-1])
    for each in (alone, whole, other):
        each.progress = False
    whole.explain_to(source, tmp_path / "whole")
    alone.explain_to(source, tmp_path / "alone")
    with pytest.raises(InputError, match=r"sum to the output of the model.*load the explainer with its model"):
        alone.explain_to(source, tmp_path / "whole")
    with pytest.raises(
        InputError, match=r"sum to the output of the surrogate.*load the explainer without its model"
    ):
        whole.explain_to(source, tmp_path / "alone")
    with pytest.raises(InputError, match="another model"):
        other.explain_to(source, tmp_path / "whole")
    assert whole.explain_to(source, tmp_path / "whole").parts == 0


def test_the_command_explains_a_conditional_game_without_its_model(
    conditional: Exported, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(conditional.saved), str(source), "-o", str(tmp_path / "out"), "--quiet", "--json"]
    assert main(["explain", *arguments]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["sums_to"] == "surrogate"
