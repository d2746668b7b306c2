"""Tests that the numbers from the paper cover every result that we compare with."""

from __future__ import annotations

from fastshapley.paper import printed
from fastshapley.paper.image_settings import METHODS
from fastshapley.paper.table_experiments import ESTIMATORS, FULL
from fastshapley.paper.table_run import pieces
from fastshapley.paper.table_settings import TABLES


def test_every_game_has_a_printed_error_and_printed_evaluations() -> None:
    games, _ = pieces(list(TABLES), FULL.samples)
    for game in games:
        error, half_width = printed.L2[game.table, game.kind]
        assert 0 < half_width < error
        assert set(printed.EVALUATIONS[game.table, game.kind]) == set(ESTIMATORS) - {"kernel, leverage"}


def test_every_table_has_a_printed_surrogate_loss() -> None:
    assert set(printed.SURROGATE_LOSS) == set(TABLES)


def test_the_ablation_contains_the_main_result() -> None:
    for table in TABLES:
        assert printed.ABLATION[table, "always", 0.0][0] == printed.L2[table, "surrogate"][0]


def test_every_image_method_has_areas_and_times() -> None:
    methods = {name for name in METHODS if name != "Random"}
    assert {key[0] for key in printed.AUC} == set(printed.MINUTES_TO_EXPLAIN) == methods
    assert len(printed.AUC) == len(methods) * 2 * 2 * 2  # image sets, ways and scores
