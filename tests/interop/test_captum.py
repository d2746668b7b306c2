"""Tests of our explainer as an attribution method of captum."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import small_images
import torch
from conftest import Exported
from problems import explainer, numbers, people, people_chances, people_model
from torch import Tensor

from fastshapley import FastSHAP, Groups
from fastshapley.errors import InputError
from fastshapley.value_functions import Baseline, grand_values, null_values

captum = pytest.importorskip("captum", reason="needs the images extra")
from captum.attr import Attribution, KernelShap, NoiseTunnel  # noqa: E402
from captum.metrics import infidelity, sensitivity_max  # noqa: E402

from fastshapley.interop.captum import FastShap  # noqa: E402

X = torch.from_numpy(numbers(200)).float()
WEIGHT = torch.tensor([[1.0, -1.0, 0.5], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1.0]])


def linear(x: Tensor) -> Tensor:
    return x @ WEIGHT.to(x)


@pytest.fixture(scope="module")
def three() -> FastSHAP:
    """Return an explainer with three outputs and an additive game, whose values are weight * (x - mean)."""
    return explainer(linear, value_function="baseline").fit(X)


@pytest.fixture(scope="module")
def grouped() -> FastSHAP:
    return explainer(linear, players=Groups({"pair": [0, 2]})).fit(X)


def baseline_of(fitted: FastSHAP) -> Tensor:
    """Return the values of hidden columns, (1, columns)."""
    game = fitted.value_function_
    assert isinstance(game, Baseline)
    return game.rows_.float()


def test_the_explainer_is_a_captum_attribution(three: FastSHAP) -> None:
    method = FastShap(three)
    assert isinstance(method, Attribution)
    assert method.get_name() == "Fast Shap"
    assert method.has_convergence_delta()
    assert not method.multiplies_by_inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_attributions_are_shapley_values_with_the_dtype_of_the_inputs(three: FastSHAP, dtype: torch.dtype) -> None:
    inputs = X[:7].to(dtype).requires_grad_()
    found = FastShap(three).attribute(inputs, target=1)
    assert found.dtype == dtype
    assert found.shape == inputs.shape
    assert not found.requires_grad
    ours = three.shap_values(inputs.detach())[..., 1]
    np.testing.assert_allclose(found.double().numpy(), ours, rtol=1e-2 if dtype == torch.float16 else 1e-6)


@pytest.mark.parametrize(
    ("target", "outputs"),
    [
        (2, [2, 2, 2, 2]),
        (np.int64(1), [1, 1, 1, 1]),
        ((1,), [1, 1, 1, 1]),
        (torch.tensor(1), [1, 1, 1, 1]),
        (torch.tensor([1]), [1, 1, 1, 1]),
        (torch.tensor([0, 2, 1, 2]), [0, 2, 1, 2]),
        ([0, 2, 1, 2], [0, 2, 1, 2]),
        ([(0,), (2,), (1,), (2,)], [0, 2, 1, 2]),
    ],
    ids=["int", "numpy", "tuple", "scalar", "one", "tensor", "list", "list of tuples"],
)
def test_all_kinds_of_captum_targets_are_accepted(three: FastSHAP, target: Any, outputs: list[int]) -> None:
    from captum._utils.common import _select_targets

    if not isinstance(target, np.integer):  # Check that captum reads the target in the same way.
        assert _select_targets(torch.arange(3).expand(4, 3), target).reshape(-1).tolist() == outputs
    found = FastShap(three).attribute(X[:4], target=target)
    ours = three.shap_values(X[:4])[np.arange(4), :, outputs]
    np.testing.assert_allclose(found.numpy(), ours, rtol=1e-6)


@pytest.mark.parametrize(
    "target", [None, 3, -1, 0.5, True, "a", [0, 1], [0, 1, 2, 3], (0, 1), torch.tensor([0.0, 1.0, 2.0, 0.0]), [1]]
)
def test_invalid_targets_are_refused(three: FastSHAP, target: Any) -> None:
    with pytest.raises(InputError, match=r"target is .*: pass the index of one of .*, 0 to 2, or a list .* of 4"):
        FastShap(three).attribute(X[:4], target=target)


def test_one_output_needs_no_target() -> None:
    fitted = explainer(lambda x: x[:, 0]).fit(X)
    np.testing.assert_allclose(FastShap(fitted).attribute(X[:3]).numpy(), fitted.shap_values(X[:3]), rtol=1e-6)


def test_a_tuple_of_one_tensor_returns_a_tuple_of_one(three: FastSHAP) -> None:
    (found,) = FastShap(three).attribute((X[:3],), target=0)
    assert torch.equal(found, FastShap(three).attribute(X[:3], target=0))


@pytest.mark.parametrize("inputs", [(X[:2], X[:2]), X[:2].numpy(), ()])
def test_inputs_other_than_one_tensor_are_refused(three: FastSHAP, inputs: Any) -> None:
    with pytest.raises(InputError, match=r"inputs is .*: pass one tensor"):
        FastShap(three).attribute(inputs, target=0)


def test_values_are_close_to_those_of_captum_kernel_shap(three: FastSHAP) -> None:
    """The game is additive: captum's regression is exact, and ours is as good as its short training."""
    baseline = baseline_of(three)
    theirs = KernelShap(linear).attribute(X[:1], baselines=baseline, target=0, n_samples=200)
    known = (X[:1] - baseline) * WEIGHT[:, 0]
    assert torch.allclose(theirs, known, atol=1e-3)
    exact = three.estimate(X[:50]).values[..., 0]
    np.testing.assert_allclose(exact[:1], known.numpy(), atol=1e-6)
    ours = FastShap(three).attribute(X[:50], target=0).numpy()
    assert np.square(ours - exact).sum() / np.square(exact).sum() < 0.2


def test_the_value_of_a_group_is_divided_among_its_columns(grouped: FastSHAP) -> None:
    found = FastShap(grouped).attribute(X[:6], target=2).numpy()
    ours = grouped.shap_values(X[:6])[..., 2]
    np.testing.assert_array_equal(found[:, 0], found[:, 2])
    np.testing.assert_allclose(found[:, [0, 2]].sum(1), ours[:, 0], rtol=1e-5)
    np.testing.assert_allclose(found[:, [1, 3]], ours[:, 1:], rtol=1e-5)


@pytest.mark.parametrize("target", [1, [0, 1, 2, 0, 1, 2]])
def test_attributions_sum_to_grand_minus_null(grouped: FastSHAP, target: Any) -> None:
    method = FastShap(grouped)
    found, delta = method.attribute(X[:6].double(), target=target, return_convergence_delta=True)
    assert delta.shape == (6,)
    assert delta.abs().max() < 1e-9
    moved = method.compute_convergence_delta(found + 0.25, X[:6].double(), target)
    assert torch.allclose(moved, torch.ones(6, dtype=torch.float64))


def test_values_that_are_not_normalised_have_a_convergence_delta() -> None:
    fitted = explainer(lambda x: x[:, 0] * x[:, 1], normalize="never").fit(X)
    found, delta = FastShap(fitted).attribute(X[:6].double(), return_convergence_delta=True)
    x = fitted.schema_.encode(X[:6])[:]
    total = grand_values(fitted.value_function_, x) - null_values(fitted.value_function_, x)
    assert torch.allclose(delta, found.sum(1) - total[:, 0])
    assert delta.abs().max() > 1e-4


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("channels", [1, 3])
def test_the_value_of_a_superpixel_is_divided_among_its_pixels_and_channels(channels: int) -> None:
    images = small_images.X.repeat(1, channels, 1, 1)
    model = torch.nn.Sequential(torch.nn.Conv2d(channels, 1, 1), small_images.network())
    fitted = small_images.explainer(model.eval()).fit(images)
    method = FastShap(fitted)
    found, delta = method.attribute(images[:5], target=[0, 1, 2, 0, 1], return_convergence_delta=True)
    assert found.shape == (5, channels, 8, 8)
    ours = fitted.shap_values(images[:5], upsample=True)[np.arange(5), :, :, [0, 1, 2, 0, 1]]
    np.testing.assert_allclose(found.sum(1).numpy(), ours, atol=1e-7)
    assert delta.abs().max() < 1e-5
    assert method.forward_func(images[:5]).shape == (5, 3)


def test_the_value_of_a_segment_is_divided_among_its_pixels() -> None:
    segments = np.arange(64).reshape(8, 8) % 3
    from fastshapley import Superpixels

    fitted = small_images.explainer(players=Superpixels(segmentation=segments)).fit(small_images.X)
    found = FastShap(fitted).attribute(small_images.X[:4], target=0)
    sums = [found[:, 0, segments == i].sum(1).numpy() for i in range(3)]
    values = fitted.explain_encoded(fitted.schema_.encode(small_images.X[:4]))[0][..., 0]
    np.testing.assert_allclose(np.stack(sums, axis=1), values.numpy(), atol=1e-6)


def test_categories_are_passed_as_codes_and_invalid_codes_are_refused() -> None:
    table, y = people()
    fitted = explainer(people_model(table, y)).fit(table)
    encoded = fitted.schema_.encode(table[:9])[:]
    assert encoded.isnan().any()
    np.testing.assert_allclose(
        FastShap(fitted).attribute(encoded, target=1).numpy(), fitted.shap_values(table[:9])[..., 1], rtol=1e-9
    )
    for value in (3.0, 0.5, -1.0):
        wrong = encoded.clone()
        wrong[4, 2] = value
        with pytest.raises(InputError, match=f"inputs has {value:g} in row 4 of column 'job'"):
            FastShap(fitted).attribute(wrong, target=1)
    with pytest.raises(InputError, match=r"inputs has shape \(9, 4\): expected \(n, 5\)"):
        FastShap(fitted).attribute(encoded[:, 1:], target=1)


def test_players_that_are_not_columns_are_refused() -> None:
    fitted = explainer(None, value_function=_Halves()).fit(X)
    with pytest.raises(InputError, match="players that are not columns of its inputs"):
        FastShap(fitted)


class _Halves:
    """A game of two players on rows of four columns."""

    players, outputs = 2, 1

    def __call__(self, x: Tensor, s: Tensor) -> Tensor:
        return (s * x[:, None, :2]).sum(-1, keepdim=True)


@pytest.mark.usefixtures("seeded")
def test_captum_metrics_and_noise_tunnel_accept_the_explainer(three: FastSHAP) -> None:
    """The game is additive, so exact values predict each change that hiding columns makes."""
    method = FastShap(three)
    sharp = sensitivity_max(method.attribute, X[:5], target=1, perturb_radius=0.02)
    assert sharp.shape == (5,)
    assert bool((sharp > 0).all())

    baseline = baseline_of(three)

    def hide(inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (torch.rand(inputs.shape) < 0.5).to(inputs)
        return hidden, inputs * (1 - hidden) + baseline * hidden

    exact = torch.from_numpy(three.estimate(X[:5]).values[..., 1]).float()
    learnt = method.attribute(X[:5], target=1)
    off, most_off = (
        infidelity(method.forward_func, hide, X[:5], values, target=1, n_perturb_samples=50)
        for values in (exact, learnt)
    )
    assert off.max() < 1e-9
    assert most_off.max() > off.max()
    tunnel = NoiseTunnel(method)
    smooth, delta = tunnel.attribute(
        X[:5], nt_samples=4, stdevs=1e-6, target=[0, 1, 2, 0, 1], return_convergence_delta=True
    )
    assert torch.allclose(smooth, method.attribute(X[:5], target=[0, 1, 2, 0, 1]), atol=1e-4)
    assert delta.numel() == 20


def test_the_import_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    monkeypatch.delitem(sys.modules, "fastshapley.interop.captum")
    with pytest.raises(ImportError, match=r"needs captum: install it with pip install 'fastshapley\[images\]'"):
        import fastshapley.interop.captum  # noqa: F401


def test_attributions_of_a_conditional_game_sum_to_the_model_if_it_is_there(conditional: Exported) -> None:
    X = conditional.X[:10]
    for fitted in (conditional.explainer, FastSHAP.load(conditional.saved)):
        x = fitted.schema_.encode(X)[:]
        method = FastShap(fitted)
        attributions, delta = method.attribute(x, target=1, return_convergence_delta=True)
        assert delta.abs().max() < 1e-6
        totals = attributions.sum(1) + fitted.value_function_.null[1]
        gap = np.abs(totals.numpy() - people_chances(X)[:, 1]).max()
        assert gap < 1e-6 if fitted is conditional.explainer else gap > 1e-2
