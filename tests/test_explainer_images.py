"""Tests of FastSHAP on images: values, plots, value functions, networks and containers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shap
import torch
from image_items import Items, labelled
from numpy.typing import NDArray
from problems import assert_additive
from sklearn.base import clone
from small_images import (
    BINS,
    BRIEF,
    GRID,
    MODEL,
    MODELS,
    QUICK,
    TARGETS,
    X,
    digits,
    explainer,
    network,
    probabilities,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fastshapley import Backbone, FastSHAP, Superpixels, UNet
from fastshapley.errors import FileFormatError, InputError
from fastshapley.networks.backbone import BackboneMaps
from fastshapley.networks.unet import UNetMaps
from fastshapley.value_functions import Baseline, Marginal, Missing, Surrogate, grand_values
from fastshapley.value_functions import background_sampling as thinning

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.fixture(scope="module")
def fitted() -> FastSHAP:
    return explainer().fit(X)


class TestShapes:
    """Shapes of values and explanations follow shap's convention."""

    @pytest.mark.parametrize("outputs", [1, 2, 3])
    @pytest.mark.parametrize(
        ("players", "where", "drawn"),
        [
            (GRID, (2, 2), (2, 2)),
            (Superpixels(grid=(4, 2)), (4, 2), (4, 2)),
            (Superpixels(segmentation=BINS), (4,), (8, 8)),
            (Superpixels(grid=1), (1, 1), (1, 1)),
        ],
        ids=["grid", "rows and columns", "segments", "one player"],
    )
    def test_shapes_of_values_and_explanations(
        self, players: Superpixels, where: tuple[int, ...], drawn: tuple[int, ...], outputs: int
    ) -> None:
        fitted = explainer(MODELS[outputs], players=players).fit(X)
        values = fitted.shap_values(X[:5])
        assert values.shape == (5, *where, outputs)
        assert fitted.shap_values(X[:5], upsample=True).shape == (5, 8, 8, outputs)
        explanation, last = fitted(X[:5]), (outputs,) if outputs > 1 else ()
        assert explanation.values.shape == (5, *drawn, 1, *last)
        assert fitted(X[:5], upsample=True).values.shape == (5, 8, 8, 1, *last)
        assert explanation.base_values.shape == (5, *last)
        assert explanation.output_names == ([f"output {k}" for k in range(outputs)] if last else None)
        np.testing.assert_array_equal(explanation.data, X[:5].movedim(1, -1))
        assert_additive(fitted, X[:20])
        assert fitted.report_ is not None
        assert fitted.player_names_ == fitted.partition_.names

    @pytest.mark.parametrize("players", [Superpixels(grid=(4, 2)), Superpixels(segmentation=BINS % 3)])
    def test_a_players_value_is_divided_among_its_pixels(self, players: Superpixels) -> None:
        fitted = explainer(players=players, value_function="baseline").fit(X)
        values = fitted.shap_values(X[:5]).reshape(5, -1, 3)
        pixels = fitted.shap_values(X[:5], upsample=True)
        owner = np.reshape(fitted.partition_.owner, (8, 8))
        for player in range(values.shape[1]):
            inside = pixels[:, owner == player]
            np.testing.assert_allclose(inside.sum(1), values[:, player], rtol=1e-9)
            assert np.ptp(inside, axis=1).max() == 0
        np.testing.assert_allclose(pixels.sum((1, 2)), values.sum(1), rtol=1e-9)
        np.testing.assert_array_equal(fitted(X[:5], upsample=True).values[:, :, :, 0], pixels)

    def test_no_images_give_empty_arrays(self, fitted: FastSHAP) -> None:
        assert fitted.shap_values(X[:0]).shape == (0, 2, 2, 3)
        assert fitted.shap_values(X[:0], upsample=True).shape == (0, 8, 8, 3)
        assert fitted(X[:0]).values.shape == (0, 2, 2, 1, 3)

    def test_values_of_an_image_do_not_depend_on_the_other_images(self, fitted: FastSHAP) -> None:
        alone = np.concatenate([fitted.shap_values(X[i : i + 1]) for i in range(5)])
        np.testing.assert_allclose(alone, fitted.shap_values(X[:5]), atol=1e-5)

    def test_values_of_probabilities_sum_to_zero_over_the_classes(self, fitted: FastSHAP) -> None:
        np.testing.assert_allclose(fitted.shap_values(X[:20]).sum(-1), 0, atol=1e-6)

    def test_colours_are_drawn_from_0_to_1(self) -> None:
        """Standardised images are all scaled in the same way. Other images are not scaled."""
        colour = (X[:20].repeat(1, 3, 1, 1) - 0.4) / 0.3
        model = nn.Sequential(nn.Conv2d(3, 2, 8), nn.Flatten())
        data = explainer(model, value_function="baseline", network=UNet(16)).fit(colour)(colour[:4]).data
        assert data.shape == (4, 8, 8, 3)
        assert (data.min(), data.max()) == (0, 1)
        np.testing.assert_allclose(data, X[:4].movedim(1, -1).expand(4, 8, 8, 3), atol=1e-6)


class TestPlots:
    @pytest.fixture(autouse=True)
    def drawn(self) -> Iterator[None]:
        plt = pytest.importorskip("matplotlib.pyplot")
        plt.switch_backend("Agg")
        yield
        plt.close("all")

    def axes(self, explanation: shap.Explanation, **options: Any) -> list[Any]:
        """The axes that shap draws, without the colour bar: each image, followed by a map for each output."""
        import matplotlib.pyplot as plt

        shap.image_plot(explanation, show=False, **options)
        figure = plt.gcf()
        figure.canvas.draw()
        return figure.axes[:-1]

    @pytest.mark.parametrize("upsample", [False, True])
    @pytest.mark.parametrize("outputs", [1, 3])
    def test_shap_draws_the_values_of_each_image_and_output(self, outputs: int, upsample: bool) -> None:
        fitted = explainer(MODELS[outputs]).fit(X)
        axes = self.axes(fitted(X[:4], upsample=upsample))
        assert len(axes) == 4 * (1 + outputs)
        values = fitted.shap_values(X[:4], upsample=upsample)
        for image in range(4):
            np.testing.assert_allclose(axes[image * (1 + outputs)].images[0].get_array(), X[image, 0])
            for output in range(outputs):
                drawn = axes[image * (1 + outputs) + 1 + output].images[1].get_array()
                np.testing.assert_allclose(drawn, values[image, ..., output])

    def test_shap_draws_the_values_of_segments(self) -> None:
        fitted = explainer(players=Superpixels(segmentation=BINS)).fit(X)
        drawn = self.axes(fitted(X[:2]))[1].images[1].get_array()
        np.testing.assert_allclose(drawn, fitted.shap_values(X[:2], upsample=True)[0, ..., 0])

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_shap_draws_slices_of_images(self, outputs: int) -> None:
        explanation = explainer(MODELS[outputs]).fit(X)(X[:4])
        assert len(self.axes(explanation[1:3])) == 2 * (1 + outputs)
        assert len(self.axes(explanation[2])) == 1 + outputs

    def test_shap_draws_slices_of_outputs(self, fitted: FastSHAP) -> None:
        """A single output must be a slice (``1:2``), because shap 0.51 takes the last axis for the outputs."""
        axes = self.axes(fitted(X[:4])[..., 1:])
        assert len(axes) == 4 * 3
        np.testing.assert_allclose(axes[2].images[1].get_array(), fitted.shap_values(X[:4])[0, ..., 2])
        assert len(self.axes(fitted(X[:4])[..., 1:2])) == 4 * 2


class TestGames:
    @pytest.mark.parametrize("value_function", ["surrogate", "marginal", "baseline"])
    @pytest.mark.parametrize("link", ["identity", "logit", "log"])
    @pytest.mark.parametrize("outputs", [1, 2, 3])
    def test_values_are_additive_for_every_value_function_and_link(
        self, value_function: str, link: str, outputs: int
    ) -> None:
        model, start = MODELS[outputs], {name: t.clone() for name, t in MODELS[outputs].state_dict().items()}
        fitted = explainer(model, value_function=value_function, link=link).fit(X)
        assert_additive(fitted, X[:20])
        assert fitted.report_ is not None
        assert fitted.report_.truth == "exact, all 16 coalitions"
        assert all(
            torch.equal(start[name], t) for name, t in model.state_dict().items()
        )  # fit does not train the model
        assert not model.training
        if value_function != "baseline":
            return
        links: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
            "identity": lambda p: p,
            "logit": lambda p: np.log(p / (1 - p)),
            "log": np.log,
        }
        base = fitted(X[:20]).base_values.reshape(20, outputs)
        values = fitted.shap_values(X[:20]).sum((1, 2))
        np.testing.assert_allclose(base, links[link](probabilities(0 * X[:20], model)), rtol=1e-5)
        grand = links[link](np.clip(probabilities(X[:20], model), 1e-7, 1 - 1e-7))
        np.testing.assert_allclose(base + values, grand, rtol=1e-4, atol=1e-5)

    def test_a_baseline_game_replaces_hidden_pixels_with_the_fill(self) -> None:
        fill = 0.3
        fitted = explainer(players=Superpixels(grid=2, fill=fill), value_function="baseline").fit(X)
        assert type(fitted.value_function_) is Baseline
        assert fitted.report_ is not None
        assert fitted.report_.fidelity == 1
        s = torch.tensor([True, False, False, True])
        mixed = torch.where(fitted.partition_.mask(s), X[:5], torch.tensor(fill))
        v = fitted.value_function_(X[:5], s.expand(5, 1, 4))[:, 0]
        np.testing.assert_allclose(v, probabilities(mixed), rtol=1e-6)

    def test_a_given_baseline_image_is_used(self) -> None:
        grey = X.mean(0, keepdim=True)
        fitted = explainer(value_function=Baseline(grey)).fit(X)
        np.testing.assert_allclose(fitted(X[:1]).base_values, probabilities(grey), rtol=1e-6)
        with pytest.raises(InputError, match="X has images: pass one image"):
            explainer(value_function=Baseline({"a": 1})).fit(X)
        with pytest.raises(InputError, match=r"values .*one row"):
            explainer(value_function=Baseline(X[:2])).fit(X)

    @pytest.mark.parametrize("background", [X[:6], X[:6].numpy(), Items(X[:6])], ids=["tensor", "array", "dataset"])
    def test_a_given_background_is_used(self, background: Any) -> None:
        """The base value is the mean of the model's outputs over the background."""
        fitted = explainer(value_function=Marginal(background)).fit(X)
        by_hand = probabilities(X[:6]).mean(0, keepdims=True)
        np.testing.assert_allclose(fitted(X[:1]).base_values, by_hand, rtol=1e-5)

    def test_a_missing_value_game_of_images_raises(self) -> None:
        with pytest.raises(InputError, match=r"pixels cannot be missing: use Baseline\(\)"):
            explainer(value_function=Missing()).fit(X)

    @pytest.mark.parametrize("outputs", [1, 2, 3])
    def test_a_surrogate_starts_as_a_copy_of_the_model(self, outputs: int) -> None:
        """For whole images, an untrained surrogate gives the model's own probabilities."""
        fitted = explainer(MODELS[outputs], value_function=Surrogate(training=())).fit(X)
        grand = grand_values(fitted.value_function_, X).numpy()
        np.testing.assert_allclose(grand, probabilities(X, MODELS[outputs]), rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("outputs", [1, 2, 3])
    @pytest.mark.parametrize("value_function", [Surrogate(training=()), "baseline"], ids=["surrogate", "baseline"])
    def test_a_model_of_probabilities_gives_the_same_values_as_one_of_logits(
        self, outputs: int, value_function: Any
    ) -> None:
        """The game and the initial network are the same, so values differ only by rounding errors."""
        model = MODELS[outputs]
        last = nn.Sigmoid() if outputs == 1 else nn.Softmax(1)
        link = "logit" if outputs == 1 else "identity"  # marks the single output as a probability
        untrained = replace(QUICK, explainer=replace(BRIEF, steps=0))
        options = {
            "value_function": value_function,
            "network": Backbone("5"),
            "link": link,
            "recipe": untrained,
        }
        logits = explainer(model, **options).fit(X)
        given = explainer(nn.Sequential(*model, last), logits=False, **options).fit(X)
        for name in ("estimate", "shap_values"):
            found = [getattr(fit, name)(X[:8]) for fit in (logits, given)]
            a, b = found if name == "shap_values" else (estimate.values for estimate in found)
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)

    def test_a_surrogate_of_a_function_without_a_network_raises(self) -> None:
        def of_array(images: NDArray[np.float32]) -> NDArray[np.float32]:
            return np.asarray(MODEL(torch.from_numpy(images)).detach())

        for model, images in ((lambda x: MODEL(x), X), (of_array, X.numpy())):
            with pytest.raises(InputError, match=r"model is a function, .*value_function=Surrogate\(network\)"):
                explainer(model).fit(images)

    def test_a_surrogate_of_a_function_with_a_network_is_fitted_and_saved(self, tmp_path: Path) -> None:
        model = explainer(lambda x: MODEL(x), value_function=Surrogate(network(seed=1)))
        fitted = model.fit(X)
        assert isinstance(fitted.network_.body, UNetMaps)  # a function has no layers for a backbone
        assert_additive(fitted, X[:20])
        fitted.save(tmp_path / "file")
        with pytest.raises(
            FileFormatError, match="pass that as model=, or as value_function= if the surrogate was"
        ):
            FastSHAP.load(tmp_path / "file")
        loaded = FastSHAP.load(tmp_path / "file", value_function=network(seed=2))
        assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()

    def test_a_baseline_game_of_a_function_needs_no_network(self) -> None:
        fitted = explainer(lambda x: MODEL(x), value_function="baseline").fit(X)
        np.testing.assert_allclose(fitted(X[:1]).base_values, probabilities(0 * X[:1]), rtol=1e-6)

    def test_another_explainers_value_function_is_used_unchanged(self, fitted: FastSHAP) -> None:
        for players in (GRID, Superpixels(segmentation=BINS)):  # the same players, defined in two ways
            again = explainer(players=players, value_function=fitted.value_function_).fit(X[:40])
            assert again.value_function_ is fitted.value_function_
            assert again.estimate(X[:5]).values.tobytes() == fitted.estimate(X[:5]).values.tobytes()
        with pytest.raises(InputError, match=r"players gives 16 players .*but the value function has 4"):
            explainer(players=Superpixels(grid=4), value_function=fitted.value_function_).fit(X)

    def test_values_of_a_custom_game_are_additive(self) -> None:
        """The game is the sum of squares over the present players, so a player's value is its own sum."""

        class Squares:
            players, outputs = 4, 1

            def __call__(self, x: Tensor, s: Tensor) -> Tensor:
                return (self.own(x)[:, None] * s).sum(2, keepdim=True)

            @staticmethod
            def own(x: Tensor) -> Tensor:
                return x.square().unfold(2, 4, 4).unfold(3, 4, 4).sum((1, 4, 5)).flatten(1)

        fitted = explainer(None, logits=False, value_function=Squares()).fit(X)
        own = Squares.own(X[:20])
        np.testing.assert_allclose(fitted.estimate(X[:20]).values[..., 0], own, rtol=1e-5)
        np.testing.assert_allclose(fitted.shap_values(X[:20]).sum((1, 2, 3)), own.sum(1), rtol=1e-5)

    def test_a_surrogate_network_with_wrong_shapes_raises(self) -> None:
        with pytest.raises(
            InputError, match=r"network must be a module from \(b, 1, 8, 8\) to \(b, 3\); .* \(2, 4\)"
        ):
            explainer(value_function=Surrogate(network(4))).fit(X)
        with pytest.raises(InputError, match=r"network must be a module from \(b, 1, 8, 8\) to \(b, 3\): "):
            explainer(value_function=Surrogate(nn.Linear(3, 3))).fit(X)


class TestExactValues:
    """For a linear model with filled hidden pixels, a superpixel's value is the sum of w * (x - fill)."""

    FILL = 0.25
    PLAYERS: tuple[Superpixels, ...] = (
        Superpixels(grid=2, fill=FILL),
        Superpixels(grid=(2, 4), fill=FILL),
        Superpixels(segmentation=BINS * 5 % 3, fill=FILL),
    )

    def model(self) -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    def closed(self, model: nn.Sequential, x: Tensor, fitted: FastSHAP) -> NDArray[np.float64]:
        linear = model[1]
        assert isinstance(linear, nn.Linear)
        terms = (linear.weight * (x.flatten(1)[:, None] - self.FILL)).double().movedim(1, 2)
        sums = torch.zeros(len(x), len(fitted.partition_), 2, dtype=torch.float64)
        return np.asarray(sums.index_add(1, torch.tensor(fitted.partition_.owner), terms.detach()))

    def explainer(self, model: nn.Sequential, **options: Any) -> FastSHAP:
        return explainer(model, value_function="baseline", logits=False, **{"network": UNet(16), **options})

    @pytest.mark.parametrize("players", PLAYERS, ids=["grid", "rows and columns", "segments"])
    def test_exact_estimates_equal_the_closed_form(self, players: Superpixels) -> None:
        model = self.model()
        fitted = self.explainer(model, players=players).fit(X)
        found = fitted.estimate(X[:30], method="exact")
        np.testing.assert_allclose(found.values, self.closed(model, X[:30], fitted), atol=1e-5)
        assert (found.evaluations == 1 << len(fitted.partition_)).all()

    def test_sampled_estimates_equal_the_closed_form(self) -> None:
        """Least squares and permutations have no sampling error on an additive game."""
        model = self.model()
        fitted = self.explainer(model, players=self.PLAYERS[1]).fit(X)
        closed = self.closed(model, X[:5], fitted)
        for method, budget in (("kernel", 200), ("permutation", 200)):
            found = fitted.estimate(Items(X[:5]), method=method, budget=budget, random_state=0)  # type: ignore[arg-type]
            np.testing.assert_allclose(found.values, closed, atol=1e-5)

    def test_the_report_measures_the_distance_to_the_closed_form(self) -> None:
        """All validation images are copies of one training image, so the report is about this one."""
        model = self.model()
        fitted = self.explainer(model, players=self.PLAYERS[0]).fit(X, X_val=X[:1].repeat(8, 1, 1, 1))
        report = fitted.report_
        assert report is not None
        assert (report.truth, report.truth_error) == ("exact, all 16 coalitions", 0)
        assert (report.rows, report.held_out, report.fidelity) == (1, False, 1)
        error = fitted.shap_values(X[:1]).reshape(1, 4, 2) - self.closed(model, X[:1], fitted)
        assert report.l2 == pytest.approx(np.sqrt(np.square(error).sum()), rel=1e-4)
        assert report.l1 == pytest.approx(np.abs(error).sum(), rel=1e-4)
        assert np.isnan(report.l2_interval)  # of a single row

    def test_a_network_that_can_represent_the_closed_form_learns_it(self) -> None:
        """The loss of an additive game has no noise at the exact values, so 0.01 is a generous limit."""
        images, _ = digits(400)
        model = self.model()
        training = replace(BRIEF, steps=1000, learning_rate=0.1)
        recipe = replace(QUICK, explainer=training, targets=replace(TARGETS, evaluations=8 * 400))
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        fitted = self.explainer(model, players=self.PLAYERS[0], network=body, recipe=recipe).fit(images)
        assert fitted.report_ is not None
        assert fitted.report_.relative_squared_error < 0.01
        closed = self.closed(model, images, fitted)
        values = fitted.shap_values(images).reshape(closed.shape)
        assert np.square(values - closed).sum() < 0.01 * np.square(closed).sum()


class TestContainersAndSeeds:
    def test_a_fit_to_any_container_gives_the_same_bytes(self, fitted: FastSHAP) -> None:
        expected = fitted.shap_values(X[:10]).tobytes()
        for images in (
            X.numpy(),
            X.double(),
            X.double().numpy(),
            Items(X),
            Items(X, labelled),
            DataLoader(Items(X, labelled), batch_size=5, shuffle=True),
        ):
            other = explainer().fit(images)
            assert other.shap_values(X[:10]).tobytes() == expected
            assert str(other.report_) == str(fitted.report_)

    def test_worker_processes_change_nothing(self, fitted: FastSHAP) -> None:
        brief = replace(QUICK, surrogate=(replace(BRIEF, steps=2),), explainer=replace(BRIEF, steps=2))
        here, there = (
            explainer(recipe=brief).fit(DataLoader(Items(X, labelled), num_workers=workers)) for workers in (0, 2)
        )
        assert here.shap_values(X[:10]).tobytes() == there.shap_values(X[:10]).tobytes()

    @pytest.mark.parametrize("upsample", [False, True])
    def test_explaining_any_container_gives_the_same_bytes(self, fitted: FastSHAP, upsample: bool) -> None:
        expected = fitted(X[:10], upsample=upsample)
        for images in (X[:10].numpy(), Items(X[:10]), DataLoader(Items(X[:10], labelled), num_workers=2)):
            found = fitted(images, upsample=upsample)
            assert found.values.tobytes() == expected.values.tobytes()
            assert found.base_values.tobytes() == expected.base_values.tobytes()
            assert found.data.tobytes() == expected.data.tobytes()

    def test_validation_images_in_any_container_give_the_same_bytes(self) -> None:
        first, second = (explainer().fit(X[:80], X_val=images) for images in (X[80:], Items(X[80:], labelled)))
        assert first.shap_values(X).tobytes() == second.shap_values(X).tobytes()

    @pytest.mark.parametrize("body", [None, UNet(16)], ids=["backbone", "unet"])
    def test_the_same_seed_gives_the_same_bytes_and_another_does_not(self, body: Any) -> None:
        first, second, third = (
            explainer(network=body, random_state=seed).fit(X).shap_values(X[:10]) for seed in (1, 1, 2)
        )
        assert first.tobytes() == second.tobytes()
        assert np.abs(first - third).max() > 1e-4

    def test_the_same_seed_gives_the_same_bytes_with_dropout(self) -> None:
        model = network(dropout=0.5)
        first, second = (explainer(model).fit(X).shap_values(X[:10]) for _ in range(2))
        assert first.tobytes() == second.tobytes()

    def test_a_fit_leaves_the_global_generator_and_the_model_unchanged(self) -> None:
        model = network(dropout=0.5).train().requires_grad_(False)
        model[4].eval()
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state = torch.get_rng_state()
        explainer(model).fit(X).shap_values(X[:10])
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(start[name], tensor) for name, tensor in model.state_dict().items())
        assert [part.training for part in model] == [i != 4 for i in range(10)]
        assert not any(parameter.requires_grad for parameter in model.parameters())

    def test_a_grid_and_the_same_segments_have_the_same_values(self) -> None:
        """The network returns values. A network that returns maps may be read differently for segments."""
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
        grid, segments = (
            explainer(players=players, network=body).fit(X) for players in (GRID, Superpixels(segmentation=BINS))
        )
        assert grid.estimate(X[:10]).values.tobytes() == segments.estimate(X[:10]).values.tobytes()
        assert grid.shap_values(X[:10]).tobytes() == segments.shap_values(X[:10]).tobytes()
        pixels = [fit.shap_values(X[:10], upsample=True).tobytes() for fit in (grid, segments)]
        assert pixels[0] == pixels[1]

    def test_full_size_maps_give_a_grid_and_the_same_segments_the_same_values(self) -> None:
        body = nn.Conv2d(1, 3, 3, padding=1)
        grid, segments = (
            explainer(players=players, network=body, value_function="baseline").fit(X)
            for players in (GRID, Superpixels(segmentation=BINS))
        )
        found = [fit.shap_values(X[:10]).reshape(10, 4, 3) for fit in (grid, segments)]
        np.testing.assert_allclose(found[0], found[1], atol=1e-4)

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_a_fit_to_few_images_is_additive(self, count: int) -> None:
        fitted = explainer().fit(X[:count])
        assert_additive(fitted, X[:20])

    def test_clones_can_be_fitted_and_pickles_give_the_same_bytes(self, fitted: FastSHAP) -> None:
        again = clone(
            explainer(players=Superpixels(segmentation=BINS), network=Backbone(["1", "5"], network=network()))
        )
        assert again.players.segmentation.tolist() == BINS.tolist()
        assert again.fit(X).shap_values(X[:3]).shape == (3, 4, 3)
        copied = pickle.loads(pickle.dumps(fitted))
        assert copied.shap_values(X[:3]).tobytes() == fitted.shap_values(X[:3]).tobytes()

    def test_an_empty_dataset_gives_an_empty_array(self, fitted: FastSHAP) -> None:
        assert fitted.shap_values(Items(X[:0])).shape == (0, 2, 2, 3)

    def test_explaining_a_dataset_leaves_the_global_generator_unchanged(self, fitted: FastSHAP) -> None:
        state = torch.get_rng_state()
        fitted.shap_values(Items(X[:10]))
        assert torch.equal(torch.get_rng_state(), state)

    def test_a_fit_with_dropout_to_any_container_gives_the_same_bytes(self) -> None:
        model = network(dropout=0.5)
        first, second = (explainer(model).fit(images).shap_values(X[:10]) for images in (X, Items(X)))
        assert first.tobytes() == second.tobytes()

    def test_a_fitted_game_provides_the_players(self, fitted: FastSHAP) -> None:
        again = explainer(players=None, value_function=fitted.value_function_).fit(X)
        assert again.shap_values(X[:3]).shape == (3, 2, 2, 3)

    def test_sampled_backgrounds_of_images_stay_within_the_memory_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """MEMORY limits the bytes of mixed rows that are built at once, here to 100 images."""
        sizes = []
        game = explainer(value_function=Marginal(8)).fit(X).value_function_
        assert isinstance(game, Marginal)
        predict = game.predict

        def counting(x: Tensor) -> Tensor:
            sizes.append(len(x))
            return predict(x)

        monkeypatch.setattr(game, "predict", counting)
        monkeypatch.setattr(thinning, "MEMORY", 100 * 8 * 64)
        thinned = thinning.SampledBackground(game, 2, torch.Generator().manual_seed(0))
        thinned(X[:40], torch.ones(40, 20, 4, dtype=torch.bool))
        assert max(sizes) <= 100


class TestNetworks:
    def test_the_default_network_is_the_models_own_layers(self, fitted: FastSHAP) -> None:
        assert isinstance(fitted.network_.body, BackboneMaps)
        assert fitted.network_.body.config["backbone"] == ["6"]

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Backbone(["1", "5"]),
            lambda: Backbone(network=network(7, seed=3)),
            lambda: UNet(16),
            lambda: nn.Conv2d(1, 3, 1),
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12)),
        ],
        ids=["layers", "another network", "unet", "maps", "values"],
    )
    def test_any_network_can_be_fitted_and_saved(self, make: Callable[[], Any], tmp_path: Path) -> None:
        body = make()
        fitted = explainer(network=body).fit(X)
        assert_additive(fitted, X[:20])
        fitted.save(tmp_path / "file")
        given = {} if isinstance(body, UNet) or body == Backbone(["1", "5"]) else {"network": body}
        loaded = FastSHAP.load(tmp_path / "file", model=MODEL, **given)
        assert loaded.shap_values(X).tobytes() == fitted.shap_values(X).tobytes()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"network": Backbone("layer4")}, r"no layer \['layer4'\]; the layers are \['0', '1'"),
            (
                {"network": nn.Conv2d(1, 4, 1)},
                r"returned shape .* expected \(2, 12\), a value for each of 4 players",
            ),
            ({"network": nn.Linear(3, 3)}, r"network must be a module from \(b, 1, 8, 8\) to \(b, 12\)"),
            ({"players": Superpixels(grid=3)}, "3 x 3 does not divide images of 8 x 8"),
            ({"players": Superpixels()}, "either a grid"),
        ],
    )
    def test_networks_and_players_that_do_not_match_the_images_raise(
        self, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            explainer(value_function="baseline", **options).fit(X)

    def test_a_model_without_maps_and_no_network_raises(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        with pytest.raises(InputError, match=r"the model has no layer that makes maps; pass network=UNet\(\)"):
            explainer(model, value_function="baseline").fit(X)

    def test_a_network_for_images_on_a_table_raises(self) -> None:
        table = X.flatten(1)[:, 20:24]
        with pytest.raises(InputError, match=r"network is UNet\(width=32\), which is for images"):
            FastSHAP(lambda x: x[:, 0], network=UNet(), recipe=QUICK, progress=False).fit(table)

    def test_the_default_recipe_has_a_small_error(self) -> None:
        """The error is measured on held-out images. Values of zero have a relative squared error of 1."""
        fitted = explainer(value_function="baseline", recipe="default").fit(X)
        assert fitted.report_ is not None
        assert fitted.report_.held_out
        assert fitted.report_.relative_squared_error < 0.25
        assert fitted.report_.cosine > 0.85
