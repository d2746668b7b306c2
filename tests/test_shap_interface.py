"""Tests of FastSHAP in place of shap's explainers: calls, streams, slices and plots."""

from __future__ import annotations

import inspect
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import shap
from games import Additive
from problems import QUICK, explainer, numbers, people, people_model
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression

from fastshapley import FastSHAP, Training
from fastshapley.errors import FileFormatError, InputError
from fastshapley.explainer import ShapOptions

ERRORS = replace(QUICK, errors=Training(steps=30))


def fit_one() -> tuple[FastSHAP, Any]:
    """A model of an array, with one output."""
    X = numbers()
    return explainer(LinearRegression().fit(X, X @ [3.0, -2.0, 1.0, 0.0]), recipe=ERRORS).fit(X), X


def fit_several() -> tuple[FastSHAP, Any]:
    """A model of a frame, with three named classes."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = LogisticRegression(max_iter=1000).fit(X, np.array(["setosa", "versicolor", "virginica"])[y])
    return explainer(model, recipe=ERRORS, link="logit").fit(X), X


def fit_marginal() -> tuple[FastSHAP, Any]:
    """A marginal game, whose file does not contain the model."""
    X = numbers()
    return explainer(LogisticRegression().fit(X, X[:, 0] > 0), value_function="marginal").fit(X), X


def fit_people() -> tuple[FastSHAP, Any]:
    """A model of a frame with categories, booleans and gaps."""
    X, y = people()
    return explainer(people_model(X, y), recipe=ERRORS).fit(X), X


FITS = {"one": fit_one, "several": fit_several, "marginal": fit_marginal, "people": fit_people}


@pytest.fixture(scope="module", params=list(FITS))
def case(request: pytest.FixtureRequest) -> tuple[FastSHAP, Any]:
    return FITS[request.param]()


@pytest.fixture(scope="module")
def several() -> tuple[FastSHAP, Any]:
    return fit_several()


@pytest.fixture(scope="module")
def persons() -> tuple[FastSHAP, Any]:
    return fit_people()


class TestEveryExplainer:
    """Requirements that shap's tests check for each of its explainers."""

    def test_values_of_each_row_sum_to_the_output_of_the_game(self, case: tuple[FastSHAP, Any]) -> None:
        """The expected sums are those of the exact estimator."""
        fitted, X = case
        explanation = fitted(X[:40])
        outputs = len(fitted.output_names_)
        exact = fitted.estimate(X[:40]).values.reshape(40, -1, outputs)
        sums = explanation.values.reshape(exact.shape).sum(1)
        assert np.abs(sums).max() > 0.1  # the sums are not all zero
        np.testing.assert_allclose(sums, exact.sum(1), atol=1e-5)

    def test_anchored_values_sum_to_the_output_of_the_model(self, case: tuple[FastSHAP, Any]) -> None:
        fitted, X = case
        explanation = fitted(X[:40], anchor="model")
        expected = getattr(fitted.model, "predict_proba", fitted.model.predict)(X[:40])
        if fitted.link == "logit":
            expected = scipy.special.logit(expected.clip(1e-7, 1 - 1e-7))
        found = explanation.values.sum(1) + explanation.base_values
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_explanations_have_the_expected_shapes_and_names(self, case: tuple[FastSHAP, Any]) -> None:
        fitted, X = case
        names = list(fitted.output_names_) if len(fitted.output_names_) > 1 else None
        outputs = () if names is None else (len(names),)
        explanation = fitted(X[:7])
        assert explanation.shape == fitted.shap_values(X[:7]).shape == (7, X.shape[1], *outputs)
        assert explanation.base_values.shape == (7, *outputs)
        np.testing.assert_allclose(
            explanation.base_values, np.tile(fitted.expected_value, (7, *[1] * len(outputs)))
        )
        assert np.shape(fitted.expected_value) == outputs
        assert explanation.feature_names == fitted.feature_names
        assert explanation.output_names == names
        assert explanation.data.shape == (7, X.shape[1])

    def test_values_do_not_depend_on_the_batches(self, case: tuple[FastSHAP, Any]) -> None:
        fitted, X = case
        together = fitted(X[:9]).values
        alone = np.concatenate([fitted(X[i : i + 1]).values for i in range(9)])
        np.testing.assert_allclose(alone, together, atol=1e-5)
        np.testing.assert_allclose(fitted(X[:9], batch_size=4).values, together, atol=1e-5)

    def test_an_explainer_loaded_from_a_stream_gives_the_same_bytes(self, case: tuple[FastSHAP, Any]) -> None:
        fitted, X = case
        stream = io.BytesIO()
        fitted.save(stream)
        stream.seek(0)
        loaded = FastSHAP.load(stream, model=fitted.model)
        assert loaded.shap_values(X[:20]).tobytes() == fitted.shap_values(X[:20]).tobytes()
        np.testing.assert_array_equal(loaded.expected_value, fitted.expected_value)
        assert (loaded.feature_names, loaded.output_names_) == (fitted.feature_names, fitted.output_names_)

    def test_it_has_the_attributes_of_shaps_explainers(self, case: tuple[FastSHAP, Any]) -> None:
        for name in ("model", "masker", "link", "feature_names", "output_names", "expected_value"):
            assert hasattr(case[0], name)

    def test_no_rows_give_an_empty_array(self, case: tuple[FastSHAP, Any]) -> None:
        fitted, X = case
        assert fitted.shap_values(X[:0]).shape == (0, *fitted(X[:1]).shape[1:])


class TestCalls:
    def test_arguments_of_shaps_explainers_are_aliases_of_ours(self, several: Any) -> None:
        fitted, X = several
        bounds = fitted(X[:5], error_bounds=True, silent=True)
        np.testing.assert_array_equal(bounds.error_std, fitted(X[:5], errors=True).error_std)
        refined = fitted(X[:5], max_evals=12)
        np.testing.assert_array_equal(refined.values, fitted(X[:5], budget=12).values)
        assert np.abs(refined.values - bounds.values).max() > 0
        np.testing.assert_array_equal(fitted.shap_values(X[:5], nsamples=12, silent=True), refined.values)
        exact = fitted.estimate(X[:5]).values
        np.testing.assert_allclose(fitted.shap_values(X[:5], nsamples=16), exact, atol=1e-5)

    def test_every_argument_of_shaps_call_is_accepted(self) -> None:
        ours = {*inspect.signature(FastSHAP.__call__).parameters, *inspect.signature(ShapOptions).parameters}
        shaps = inspect.signature(shap.Explainer.__call__).parameters
        assert set(shaps) - ours == {"args", "kwargs"}

    def test_an_unknown_argument_raises(self, several: Any) -> None:
        fitted, X = several
        with pytest.raises(TypeError, match=r"unexpected keyword arguments \['budgets'\]"):
            fitted(X[:5], budgets=8)

    def test_silent_hides_the_progress_bar(self, several: Any, capsys: pytest.CaptureFixture[str]) -> None:
        fitted, X = several
        fitted = FastSHAP.load(_saved(fitted), model=fitted.model)  # with progress bars
        fitted(X[:5], max_evals=8, silent=True)
        assert "refining" not in capsys.readouterr().err
        fitted(X[:5], max_evals=8)
        assert "refining" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_evals": 8, "budget": 8}, "budget and max_evals mean the same"),
            ({"main_effects": True}, "main_effects is True, but main effects are not estimated"),
            ({"batch_size": 0}, "batch_size is 0: use a positive number of rows"),
            ({"outputs": ["daisy"]}, r"outputs \['daisy'\] are none of \['setosa'"),
            ({"outputs": [3]}, r"outputs \[3\] are none of"),
            ({"outputs": []}, r"outputs is \[\]: list one or more"),
            ({"outputs": "setosa"}, "outputs is 'setosa': list one or more"),
            ({"outputs": [0, "setosa"]}, r"outputs is \[0, 'setosa'\].*each once"),
        ],
    )
    def test_bad_arguments_raise(self, several: Any, options: dict[str, Any], message: str) -> None:
        fitted, X = several
        with pytest.raises(InputError, match=message):
            fitted(X[:5], **options)

    @pytest.mark.parametrize("outputs", [["virginica", "setosa"], [2, 0], np.array([2, 0]), ["virginica", 0]])
    def test_outputs_can_be_chosen_by_name_and_number(self, several: Any, outputs: Any) -> None:
        fitted, X = several
        every, some = fitted(X[:5], errors=True), fitted(X[:5], errors=True, outputs=outputs)
        np.testing.assert_array_equal(some.values, every.values[..., [2, 0]])
        np.testing.assert_array_equal(some.error_std, every.error_std[..., [2, 0]])
        np.testing.assert_array_equal(some.base_values, every.base_values[:, [2, 0]])
        assert some.output_names == ["virginica", "setosa"]

    def test_a_chosen_output_keeps_its_axis_and_name(self, several: Any) -> None:
        fitted, X = several
        some = fitted(X[:5], outputs=["versicolor"])
        assert some.shape == (5, 4, 1)
        assert some.output_names == ["versicolor"]
        assert some[:, :, "versicolor"].shape == (5, 4)
        assert fitted(X[:0], outputs=["versicolor"]).values.shape == (0, 4, 1)

    def test_the_largest_outputs_of_each_row_can_be_chosen(self, several: Any) -> None:
        """The syntax is that of shap's examples."""
        fitted, X = several
        rows = X.iloc[[0, 60, 140]]
        every = fitted(rows)
        largest = fitted(rows, outputs=shap.Explanation.argsort.flip[:1])
        totals = every.values.sum(1) + every.base_values
        for i, k in enumerate(totals.argmax(1)):
            np.testing.assert_array_equal(largest.values[i, :, 0], every.values[i, :, k])
            assert largest.base_values[i, 0] == every.base_values[i, k]
            assert list(largest.output_names[i]) == [fitted.output_names_[k]]
        assert len(set(totals.argmax(1))) > 1

    def test_additivity_is_checked_if_asked_for(self) -> None:
        X = numbers(200)
        quick = explainer(lambda rows: rows[:, 0], normalize="never").fit(X)
        for explain in (quick, quick.shap_values):
            explain(X[:5])
            with pytest.raises(InputError, match="check_additivity is True"):
                explain(X[:5], check_additivity=True)
        normal = explainer(lambda rows: rows[:, 0]).fit(X)
        assert normal(X[:5], check_additivity=True).shape == normal.shap_values(X[:5], check_additivity=True).shape

    def test_fitted_attributes_do_not_exist_before_fit(self) -> None:
        new = FastSHAP(lambda rows: rows[:, 0])
        for name in ("expected_value", "feature_names", "output_names_"):
            assert not hasattr(new, name)

    def test_a_game_whose_base_value_depends_on_the_row_has_no_expected_value(self) -> None:
        class Shifted(Additive):
            def __call__(self, x: Any, s: Any) -> Any:
                return super().__call__(x, s) + x[:, None, :1]

        X = numbers(columns=3)
        fitted = explainer(None, value_function=Shifted(players=3)).fit(X)
        with pytest.raises(AttributeError, match="base_values"):
            _ = fitted.expected_value
        assert np.ptp(fitted(X[:5]).base_values) > 0


def _saved(fitted: FastSHAP) -> io.BytesIO:
    stream = io.BytesIO()
    fitted.save(stream)
    stream.seek(0)
    return stream


class TestStreams:
    def test_streams_and_files_have_the_same_format(self, several: Any, tmp_path: Path) -> None:
        fitted, X = several
        fitted.save(tmp_path / "iris.fastshap")
        data = _saved(fitted).getvalue()
        (tmp_path / "stream").write_bytes(data)
        for name in ("iris.fastshap", "stream"):
            with (tmp_path / name).open("rb") as file:
                loaded = FastSHAP.load(file)
            again = FastSHAP.load(tmp_path / name)
            assert loaded.shap_values(X[:5]).tobytes() == again.shap_values(X[:5]).tobytes()

    def test_several_explainers_can_be_saved_to_one_stream(self, several: Any, persons: Any) -> None:
        """Loading stops at the end of each explainer."""
        stream = io.BytesIO()
        for fitted, _ in (several, persons):
            fitted.save(stream)
        stream.write(b"more")
        stream.seek(0)
        for fitted, X in (several, persons):
            loaded = FastSHAP.load(stream, fitted.model)
            assert loaded.shap_values(X[:5]).tobytes() == fitted.shap_values(X[:5]).tobytes()
        assert stream.read() == b"more"

    def test_the_format_is_not_pickle(self, several: Any) -> None:
        with pytest.raises(pickle.UnpicklingError):
            pickle.load(_saved(several[0]))
        pickled = io.BytesIO(pickle.dumps(several[0].feature_names))
        with pytest.raises(FileFormatError, match="the stream is cut short, damaged or not an explainer file"):
            FastSHAP.load(pickled)

    @pytest.mark.parametrize("share", [0.0, 1e-5, 0.1, 0.5, 0.999])
    def test_a_truncated_stream_raises(self, several: Any, share: float) -> None:
        data = _saved(several[0]).getvalue()
        with pytest.raises(FileFormatError, match="the stream is cut short"):
            FastSHAP.load(io.BytesIO(data[: int(share * len(data))]))

    @pytest.mark.parametrize("data", [b"\xff" * 100, b"\x02" + 7 * b"\x00" + b"{}", b"\x02" + 7 * b"\x00" + b"[]"])
    def test_a_stream_of_other_data_raises(self, data: bytes) -> None:
        with pytest.raises(FileFormatError, match="the stream is"):
            FastSHAP.load(io.BytesIO(data))

    @pytest.mark.parametrize("file", [io.StringIO(), 3, None], ids=["text", "number", "none"])
    def test_a_file_that_is_not_a_binary_stream_raises(self, several: Any, file: Any) -> None:
        with pytest.raises(InputError, match="pass a path, or a file that is open in binary mode"):
            several[0].save(file)
        with pytest.raises(InputError, match="pass a path, or a file that is open in binary mode"):
            FastSHAP.load(file)


class TestSlices:
    def test_explanations_can_be_sliced_by_name_and_number(self, several: Any) -> None:
        fitted, X = several
        whole = fitted(X[:10], errors=True)
        one = whole[2:6, "petal width (cm)", "virginica"]
        for name in ("values", "error_std"):
            np.testing.assert_array_equal(getattr(one, name), getattr(whole, name)[2:6, 3, 2])
        np.testing.assert_array_equal(one.base_values, whole.base_values[2:6, 2])
        np.testing.assert_array_equal(one.data, X["petal width (cm)"][2:6])
        assert whole[..., 1].output_names == "versicolor"
        assert whole[3].shape == (4, 3)
        assert whole[3].base_values.shape == (3,)
        assert len(whole[np.arange(10) % 2 == 0]) == 5

    def test_slices_are_correct_for_equal_numbers_of_rows_players_and_outputs(self) -> None:
        """shap could confuse axes of the same length."""
        X = numbers(columns=3)
        fitted = explainer(lambda rows: rows * [1.0, 10.0, 100.0]).fit(X)
        whole = fitted(X[:3])
        assert whole.shape == (3, 3, 3)
        assert whole[:, :, "output 2"].shape == (3, 3)
        np.testing.assert_array_equal(whole[:, :, "output 2"].values, whole.values[..., 2])
        np.testing.assert_array_equal(whole[:, :, "output 2"].base_values, whole.base_values[:, 2])
        np.testing.assert_array_equal(whole[:, "x1"].values, whole.values[:, 1])

    def test_categories_are_displayed_by_name_and_numbers_as_numbers(self, persons: Any) -> None:
        fitted, X = persons
        jobs = fitted(X[:30])[:, "job", "1"]
        assert jobs.display_data.tolist() == X["job"][:30].fillna("missing").tolist()
        assert set(jobs.data[~np.isnan(jobs.data)]) <= {0.0, 1.0, 2.0}
        ages = fitted(X[:30])[:, "age", "1"]  # with text, a scatter plot would label each number
        assert all(isinstance(value, float) for value in ages.display_data)
        members = fitted(X[:30])[:, "member", "1"]
        assert members.display_data.tolist() == X["member"][:30].map(str).tolist()


def _legacy(explanation: shap.Explanation) -> tuple[Any, ...]:
    return explanation.base_values[0], explanation.values, explanation.data


PLOTS: dict[str, Any] = {
    "bar": lambda e: shap.plots.bar(e, show=False),
    "bar of a row": lambda e: shap.plots.bar(e[0], show=False),
    "bar of cohorts": lambda e: shap.plots.bar(e.cohorts(2).abs.mean(0), show=False),
    "beeswarm": lambda e: shap.plots.beeswarm(e, show=False),
    "waterfall": lambda e: shap.plots.waterfall(e[0], show=False),
    "heatmap": lambda e: shap.plots.heatmap(e, show=False),
    "violin": lambda e: shap.plots.violin(e, show=False),
    "layered violin": lambda e: shap.plots.violin(e, plot_type="layered_violin", show=False),
    "scatter": lambda e: shap.plots.scatter(e[:, 2], color=e[:, 0], show=False),
    "scatter of all": lambda e: shap.plots.scatter(e, show=False),
    "force": lambda e: shap.plots.force(e[0], matplotlib=True, show=False),
    "force of many": lambda e: shap.plots.force(e),
    "force, legacy": lambda e: shap.plots.force(
        e.base_values[0], e.values[0], e.data[0], e.feature_names, matplotlib=True, show=False
    ),
    "decision, legacy": lambda e: shap.plots.decision(*_legacy(e), e.feature_names, show=False),
    "decision of a row, legacy": lambda e: shap.plots.decision(
        e.base_values[0], e.values[0], e.data[0], e.feature_names, show=False
    ),
    "summary, legacy": lambda e: shap.summary_plot(e.values, e.data, e.feature_names, show=False),
    "embedding, legacy": lambda e: shap.plots.embedding(0, e.values, e.feature_names, show=False),
    "group difference, legacy": lambda e: shap.plots.group_difference(
        e.values, np.arange(len(e.values)) % 2 == 0, e.feature_names, show=False
    ),
    "monitoring, legacy": lambda e: shap.plots.monitoring(0, e.values, e.data, e.feature_names, show=False),
}


class TestPlots:
    @pytest.fixture(autouse=True)
    def figures(self) -> Any:
        plt = pytest.importorskip("matplotlib.pyplot")
        plt.switch_backend("Agg")
        yield plt
        plt.close("all")

    @pytest.mark.parametrize("plot", list(PLOTS))
    def test_every_plot_draws_an_explanation(self, case: tuple[FastSHAP, Any], plot: str) -> None:
        fitted, X = case
        explanation = fitted(X[:120])
        PLOTS[plot](explanation if len(fitted.output_names_) == 1 else explanation[..., 1])

    @pytest.mark.parametrize("plot", ["bar", "waterfall", "heatmap", "beeswarm"])
    def test_plots_draw_explanations_with_error_bars(self, persons: Any, plot: str) -> None:
        fitted, X = persons
        PLOTS[plot](fitted(X[:30], errors=True)[:, :, "1"])

    def test_plots_of_several_outputs_are_drawn(self, several: Any, figures: Any) -> None:
        fitted, X = several
        values = fitted.shap_values(X[:20])
        shap.summary_plot(values[..., 0], X[:20], show=False)
        base = fitted.expected_value
        shap.multioutput_decision_plot(list(base), list(np.moveaxis(values, -1, 0)), row_index=0, show=False)
        assert figures.gcf().axes

    def test_images_can_be_explained_as_in_shaps_example(self, image_explainer: FastSHAP, figures: Any) -> None:
        import small_images

        top = shap.Explanation.argsort.flip[:1]
        found = image_explainer(small_images.X[:4], max_evals=20, batch_size=2, outputs=top, silent=True)
        every = image_explainer(small_images.X[:4], budget=20)
        assert found.shape == (*every.shape[:-1], 1)
        picked = (every.values.sum((1, 2, 3)) + every.base_values).argmax(1)
        np.testing.assert_array_equal(found.values[..., 0], every.values[range(4), ..., picked])
        shap.image_plot(found, show=False)
        assert len(figures.gcf().axes) >= 8

    def test_category_names_are_drawn(self, persons: Any, figures: Any) -> None:
        fitted, X = persons
        explanation = fitted(X[:60])[:, :, "1"]
        shap.plots.waterfall(explanation[0], show=False)
        labels = " ".join(label.get_text() for label in figures.gca().get_yticklabels())
        assert f"{X['city'].iloc[0]}" in labels
        figures.close("all")
        shap.plots.scatter(explanation[:, "city"], show=False)
        ticks = [label.get_text() for axes in figures.gcf().axes for label in axes.get_xticklabels()]
        assert {"Basel", "Bern"} <= set(ticks)
