"""Tests of the schema interface, for tables and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from fastshapley.data.image_schema import ImageSchema
from fastshapley.data.players import Players
from fastshapley.data.schema import Schema
from fastshapley.data.table_schema import TableSchema, require_table
from fastshapley.errors import InputError
from fastshapley.explanation import Values
from fastshapley.players import Features, Groups, Superpixels

FRAME = pd.DataFrame({"age": [39.0, 50, 20, 31], "job": ["clerk", None, "chef", "clerk"], "old": [True, False] * 2})
IMAGES = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
KINDS: list[tuple[Any, Players]] = [(FRAME, Groups({"both": ["age", "job"]})), (IMAGES, Superpixels(grid=2))]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def schema_for(X: Any) -> Schema:
    return TableSchema.of(X) if isinstance(X, pd.DataFrame) else ImageSchema.of(X)


def encoded(X: Any) -> Tensor:
    return schema_for(X).encode(X)[:]


@pytest.mark.parametrize(("X", "players"), KINDS, ids=["table", "images"])
def test_players_are_restored_from_a_partition(X: Any, players: Players) -> None:
    schema = schema_for(X)
    partition = schema.bind(players)
    again = schema.players_of(partition)
    assert type(again) is type(players)
    assert schema.bind(again) == partition


def test_one_player_per_column_is_restored_as_the_default() -> None:
    schema = schema_for(FRAME)
    assert schema.players_of(schema.bind(None)) is None


@pytest.mark.parametrize(
    ("X", "players", "message"),
    [
        (FRAME, Superpixels(grid=2), "fitted to a table"),
        (IMAGES, Features(), "fitted to images"),
        (IMAGES, None, r"pass players=Superpixels\(grid=14\)"),
    ],
    ids=["superpixels for a table", "features for images", "no superpixels"],
)
def test_players_for_another_kind_of_data_are_refused(X: Any, players: Players | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        schema_for(X).bind(players)


@pytest.mark.parametrize(("X", "players"), KINDS, ids=["table", "images"])
def test_augmented_rows_have_the_shape_and_dtype_of_the_rows(X: Any, players: Players) -> None:
    schema, x = schema_for(X), encoded(X)
    owner = schema.bind(players).owner
    rows = schema.augment(x, 50, generator(), owner)
    assert rows.shape == (50, *x.shape[1:])
    assert rows.dtype == x.dtype
    assert torch.equal(schema.augment(x, 50, generator(), owner).nan_to_num(), rows.nan_to_num())
    if isinstance(schema, TableSchema):
        assert set(rows[:, 2].tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("X", "players"), KINDS, ids=["table", "images"])
def test_summaries_have_names_and_kinds(X: Any, players: Players) -> None:
    schema, x = schema_for(X), encoded(X)
    summary = schema.summarise(x)
    assert summary.shape == (len(x), len(schema.summary_names))
    assert len(schema.summary_discrete) == len(schema.summary_names)


def test_images_are_summarised_by_mean_and_standard_deviation_per_channel() -> None:
    schema = schema_for(IMAGES)
    summary = schema.summarise(IMAGES)
    assert schema.summary_names[1] == "mean of channel 1"
    assert schema.summary_names[4] == "spread of channel 1"
    torch.testing.assert_close(summary[:, 1], IMAGES[:, 1].flatten(1).mean(1))
    torch.testing.assert_close(summary[:, 4], IMAGES[:, 1].flatten(1).std(1))


@pytest.mark.parametrize(("X", "players"), KINDS, ids=["table", "images"])
def test_examples_are_encoded_rows(X: Any, players: Players) -> None:
    schema, x = schema_for(X), encoded(X)
    assert schema.examples(schema.summarise(x), 5).shape == (5, *x.shape[1:])


def test_only_columns_have_ranges() -> None:
    sample = torch.tensor([[1.0, torch.nan], [2.0, torch.nan], [3.0, torch.nan]], dtype=torch.float64)
    ranges = TableSchema.of(np.zeros((2, 2))).ranges(sample)
    assert ranges[0] == pytest.approx([1.02, 2.0, 2.98])
    assert ranges[1] is None
    assert schema_for(IMAGES).ranges(sample) is None


def test_the_baseline_of_a_table_is_its_means_and_modes_or_the_given_values() -> None:
    schema, x = schema_for(FRAME), encoded(FRAME)
    partition = schema.bind(None)
    assert schema.baseline_row(x, partition, None).tolist() == [[35.0, 1.0, 0.0]]
    assert schema.baseline_row(x, partition, {"job": "chef"}).tolist() == [[35.0, 0.0, 0.0]]


def test_the_baseline_of_images_is_the_fill() -> None:
    schema = schema_for(IMAGES)
    partition = schema.bind(Superpixels(grid=2, fill=(0.1, 0.2, 0.3)))
    row = schema.baseline_row(IMAGES, partition, None)
    assert row.shape == (1, 3, 4, 4)
    torch.testing.assert_close(row[0, :, 2, 3], torch.tensor([0.1, 0.2, 0.3]))
    with pytest.raises(InputError, match="X has images: pass one image"):
        schema.baseline_row(IMAGES, partition, {"red": 1})


def test_table_entries_can_be_missing_but_pixels_cannot() -> None:
    assert schema_for(FRAME).missing_row(encoded(FRAME)).isnan().tolist() == [[True] * 3]
    with pytest.raises(InputError, match="pixels cannot be missing"):
        schema_for(IMAGES).missing_row(IMAGES)


def test_columns_with_new_gaps_are_named() -> None:
    schema, x = schema_for(FRAME), encoded(FRAME)
    x[0, 0] = torch.nan
    assert schema.new_gaps(x, {1}) == ["age"]
    assert schema.missing_categories(x) == ["job"]
    assert schema_for(IMAGES).new_gaps(IMAGES, set()) == []
    assert schema_for(IMAGES).missing_categories(IMAGES) == []


def test_only_frames_have_one_hot_columns() -> None:
    frame = pd.get_dummies(pd.DataFrame({"job": ["clerk", "chef", "nurse"] * 10}), dtype=float)
    found = {"job": ["job_chef", "job_clerk", "job_nurse"]}
    assert schema_for(frame).one_hot_groups(encoded(frame)) == found
    assert TableSchema.of(frame.to_numpy()).one_hot_groups(encoded(frame)) == {}
    assert schema_for(IMAGES).one_hot_groups(IMAGES) == {}


def test_require_table_refuses_images() -> None:
    table = schema_for(FRAME)
    assert require_table(table, "background is") is table
    with pytest.raises(InputError, match="background is for tables, and the explainer was fitted to images"):
        require_table(schema_for(IMAGES), "background is")


def values_for(x: Tensor, players: int) -> Values:
    return Values(torch.ones(len(x), players, 2), torch.zeros(len(x), 2), None, ["a", "b"])


def test_an_explanation_of_a_table_has_player_names_and_display_text() -> None:
    schema, x = schema_for(FRAME), encoded(FRAME)
    partition = schema.bind(Groups({"both": ["age", "job"]}))
    found = schema.explanation(x, values_for(x, 2), partition)
    assert found.values.shape == (4, 2, 2)
    assert found.feature_names == ["both", "old"]
    assert found.display_data[0].tolist() == ["age=39, job=clerk", "True"]
    assert schema.shaped_values(torch.ones(4, 2, 1), partition).shape == (4, 2)
    with pytest.raises(InputError, match="upsample is for images"):
        schema.explanation(x, values_for(x, 2), partition, upsample=True)
    with pytest.raises(InputError, match="upsample is for images"):
        schema.shaped_values(torch.ones(4, 2, 1), partition, upsample=True)


def test_an_explanation_of_images_has_maps() -> None:
    schema = schema_for(IMAGES)
    partition = schema.bind(Superpixels(grid=2))
    assert schema.explanation(IMAGES, values_for(IMAGES, 4), partition).values.shape == (4, 2, 2, 1, 2)
    found = schema.explanation(IMAGES, values_for(IMAGES, 4), partition, upsample=True)
    assert found.values.shape == (4, 4, 4, 1, 2)
    np.testing.assert_allclose(found.values, 0.25)  # each patch has four pixels
    np.testing.assert_array_equal(found.data, IMAGES.movedim(1, -1).numpy())
    assert schema.shaped_values(torch.ones(4, 4, 1), partition).shape == (4, 2, 2, 1)


def test_images_in_an_explanation_are_scaled_to_0_to_1() -> None:
    schema = schema_for(2 * IMAGES - 1)
    partition = schema.bind(Superpixels(grid=2))
    data = schema.explanation(2 * IMAGES - 1, values_for(IMAGES, 4), partition).data
    assert (data.min(), data.max()) == (0, 1)


@pytest.mark.parametrize(("X", "players"), KINDS, ids=["table", "images"])
def test_a_single_process_keeps_its_schema(X: Any, players: Players) -> None:
    schema = schema_for(X)
    assert schema.agreed([schema]) is schema


def test_processes_with_different_layouts_are_refused() -> None:
    table, images = TableSchema.of(FRAME), ImageSchema.of(IMAGES)
    with pytest.raises(InputError, match="other columns in other processes"):
        table.agreed([table, TableSchema.of(FRAME[["age", "old"]])])
    with pytest.raises(InputError, match="another shape or type in other processes"):
        images.agreed([images, ImageSchema.of(IMAGES[:, :1])])


def test_processes_agree_on_the_union_of_their_categories() -> None:
    first, second = TableSchema.of(FRAME[:2]), TableSchema.of(FRAME[2:])
    agreed = first.agreed([first, second])
    assert agreed.columns[1].categories == ("chef", "clerk")
    assert second.agreed([first, second]) == agreed
