"""Tests of how a bulk job calls an explainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Exported
from problems import people_chances

from fastshapley import FastSHAP
from fastshapley.errors import InputError

pa = pytest.importorskip("pyarrow", reason="needs the bulk extra")

from fastshapley.bulk.row_explainer import (  # noqa: E402
    batch_rows,
    column_fields,
    explain_columns,
    sample_outputs,
    table_schema,
    warn_of_missing_model,
    weights_of,
)


def test_value_columns_match_the_explainer(exported: Exported) -> None:
    explainer, X = exported.explainer, exported.X[:7]
    table = pa.Table.from_pandas(X, preserve_index=False)
    unseen: set[str] = set()
    columns = explain_columns(explainer, [table[name] for name in X.columns], [1], "it", unseen)
    names = [field.name for field in column_fields(explainer, [1])]
    assert names[:-1] == [*(f"shap_{player}" for player in explainer.player_names_), "base_value", "prediction"]
    assert names[-1] == "outside_range"
    assert explainer.errors_ is not None
    assert columns[-1].to_pylist() == explainer.errors_.outside(explainer.schema_.encode(X)[:]).tolist()
    values = explainer.shap_values(X)[..., 1]
    found = np.stack([column.to_numpy() for column in columns[: values.shape[1]]], axis=1)
    np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
    assert unseen == set()


def test_an_explainer_of_images_has_no_table_schema(image_explainer: FastSHAP) -> None:
    with pytest.raises(InputError, match="fitted to images"):
        table_schema(image_explainer)


def test_a_batch_has_fewer_rows_if_rows_have_many_values(exported: Exported) -> None:
    class Wide:
        schema_ = exported.explainer.schema_

        class value_function_:
            players, outputs = 1000, 1000

    wide: Any = Wide()
    assert batch_rows(wide, range(1000)) == (1 << 21) // 1_000_000
    assert batch_rows(wide, [3]) == (1 << 21) // 1000
    assert batch_rows(exported.explainer, [0]) == 1 << 15


def test_a_surrogate_is_not_identified_by_calls_of_the_model(exported: Exported) -> None:
    assert sample_outputs(exported.explainer) is None


def test_a_conditional_game_is_identified_by_its_surrogate_and_by_its_model(conditional: Exported) -> None:
    fitted, alone = conditional.explainer, FastSHAP.load(conditional.saved)
    game = fitted.value_function_
    parts = [*fitted.network_.state_dict().values(), *game.surrogate_.network_.state_dict().values(), game.null]
    found = weights_of(fitted)
    assert len(found) == len(parts)
    assert all(left is right or left.equal(right) for left, right in zip(found, parts, strict=True))
    assert sample_outputs(alone) is None
    outputs = sample_outputs(fitted)
    assert outputs is not None
    np.testing.assert_allclose(outputs, game.donors_.outputs[:32])
    assert sample_outputs(FastSHAP.load(conditional.saved, people_chances)) == outputs


def test_a_conditional_game_warns_once_that_it_has_no_model(
    conditional: Exported, exported: Exported, caplog: pytest.LogCaptureFixture
) -> None:
    for fitted in (exported.explainer, conditional.explainer):
        warn_of_missing_model(fitted)
    assert caplog.text == ""
    alone = FastSHAP.load(conditional.saved)
    warn_of_missing_model(alone)
    warn_of_missing_model(alone)
    assert caplog.text.count("The explainer has no model") == 1
