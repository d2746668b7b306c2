"""Tests of mixtures of normal distributions: against closed forms of each component."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal

from fastshapley.value_functions.samplers import normal_mixture
from fastshapley.value_functions.samplers.normal_mixture import NormalMixture, Regressions, rows_by_set


def covariances(components: int, columns: int, generator: torch.Generator) -> Tensor:
    factors = torch.randn(components, columns + 2, columns, generator=generator, dtype=torch.float64)
    return factors.transpose(1, 2) @ factors / columns + 0.05 * torch.eye(columns, dtype=torch.float64)


def mixture_of(components: int, columns: int, seed: int) -> NormalMixture:
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(components, generator=generator, dtype=torch.float64) + 0.1
    means = torch.randn(components, columns, generator=generator, dtype=torch.float64)
    return NormalMixture(shares / shares.sum(), means, covariances(components, columns, generator))


def rows_of(mixture: NormalMixture, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of a mixture, and their components."""
    generator = torch.Generator().manual_seed(seed)
    component = torch.multinomial(mixture.shares, count, replacement=True, generator=generator)
    noise = torch.randn(count, mixture.means.shape[1], generator=generator, dtype=torch.float64)
    roots = torch.linalg.cholesky(mixture.covariances)
    return mixture.means[component] + (roots[component] @ noise[..., None])[..., 0], component


def apart() -> NormalMixture:
    """Three clusters that do not overlap."""
    means = torch.tensor([[-8.0, 0.0, 0.0], [0.0, 8.0, 0.0], [8.0, 0.0, 8.0]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    return NormalMixture(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), means, covariances(3, 3, generator))


def test_the_density_is_that_of_torch_up_to_a_constant() -> None:
    mixture = mixture_of(3, 4, 0)
    z, _ = rows_of(mixture, 20, 1)
    normal = MultivariateNormal(mixture.means, mixture.covariances)
    expected = mixture.shares.log() + normal.log_prob(z[:, None])
    found = mixture.joint_log_density(z)
    torch.testing.assert_close(found - found[:1, :1], expected - expected[:1, :1])
    torch.testing.assert_close(mixture.log_density(z), found.logsumexp(1))


def test_clusters_that_are_apart_are_found() -> None:
    """Means have a standard error of sd / sqrt(members); the prior draws covariances, not means."""
    truth, n = apart(), 3000
    z, component = rows_of(truth, n, 2)
    found = NormalMixture.fitted(z[:2000], z[2000:], seed=0)
    assert len(found) == 3
    order = torch.cdist(truth.means, found.means).argmin(1)
    for k in range(3):
        members = 2000 * truth.shares[k]
        error = (truth.covariances[k].diagonal() / members).sqrt()
        assert bool(((found.means[order[k]] - truth.means[k]).abs() < 5 * error).all())
        assert float(found.shares[order[k]]) == pytest.approx(float(truth.shares[k]), abs=5 * (0.25 / 2000) ** 0.5)
    membership = found.joint_log_density(z).softmax(1)
    assert torch.equal(membership.argmax(1), order[component])


def test_normal_rows_have_one_component() -> None:
    normal = mixture_of(1, 5, 3)
    z, _ = rows_of(normal, 1500, 4)
    assert len(NormalMixture.fitted(z[:1000], z[1000:], seed=0)) == 1


def test_a_curved_surface_has_several_components_which_describe_new_rows_better_than_one() -> None:
    a = torch.randn(1500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = 0.2 * torch.randn(1500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = torch.stack([a, a.square() - 1], dim=1) + noise
    one, found = (NormalMixture.with_components(z[:800], 1, 0), NormalMixture.fitted(z[:800], z[800:1000], 0))
    gain = found.log_density(z[1000:]) - one.log_density(z[1000:])
    assert len(found) > 2
    assert float(gain.mean()) > 5 * float(gain.std()) / 500**0.5


def test_few_held_out_rows_or_one_column_mean_one_component() -> None:
    z, _ = rows_of(apart(), 300, 0)
    assert len(NormalMixture.fitted(z, z[:10], seed=0)) == 1
    assert len(NormalMixture.fitted(z[:, :1], z[:100, :1], seed=0)) == 1


def test_wide_tables_and_few_rows_limit_the_number_of_components() -> None:
    z, _ = rows_of(apart(), 400, 0)
    assert len(NormalMixture.fitted(z[:25], z[100:], seed=0)) <= 2  # Ten rows per component, at least.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NormalMixture, "most_entries", 6)
        assert len(NormalMixture.fitted(z[:300], z[300:], seed=0)) == 2


@pytest.mark.parametrize("number", [1, 3])
def test_duplicates_and_constant_columns_have_positive_definite_covariances(number: int) -> None:
    z = torch.tensor([[0.0, 1.0, 0.0]] * 40 + [[3.0, 1.0, 3.0]] * 40, dtype=torch.float64)
    found = NormalMixture.with_components(z, number, seed=0)
    assert bool(found.log_density(z).isfinite().all())
    assert bool((torch.linalg.eigvalsh(found.covariances) > 0).all())


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(1, 3), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_expectations_agree_with_closed_forms(components: int, columns: int, seed: int) -> None:
    mixture, generator = mixture_of(components, columns, seed), torch.Generator().manual_seed(seed)
    known = torch.rand(4, columns, generator=generator) < torch.rand(4, 1, generator=generator)
    z = torch.randn(4, 2, columns, generator=generator, dtype=torch.float64)
    shares, expectations = Regressions(mixture, known).expected(z)
    component = torch.randint(components, (4, 2), generator=generator)
    shifts = Regressions(mixture, known).shifts(z, component)
    assert shares.shape == (4, 2, components)
    for i in range(4):
        shown, hidden = known[i], ~known[i]
        joint = mixture.shares.log().expand(2, -1).clone()
        for k, (mean, covariance) in enumerate(zip(mixture.means, mixture.covariances, strict=True)):
            weights = torch.linalg.solve(covariance[shown][:, shown], covariance[shown][:, hidden])
            expected = mean[hidden] + (z[i][:, shown] - mean[shown]) @ weights
            torch.testing.assert_close(expectations[k, i][:, hidden], expected, atol=1e-8, rtol=1e-8)
            mine = component[i] == k
            torch.testing.assert_close(
                shifts[i][mine][:, hidden], z[i][mine][:, shown] @ weights, atol=1e-8, rtol=1e-8
            )
            if bool(shown.any()):
                normal = MultivariateNormal(mean[shown], covariance[shown][:, shown])
                joint[:, k] += normal.log_prob(z[i][:, shown])
        torch.testing.assert_close(shares[i], joint.softmax(1), atol=1e-8, rtol=1e-8)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(0, 40), st.integers(1, 10), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_each_row_is_with_its_own_set(rows: int, columns: int, block: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    known = torch.rand(rows, columns, generator=generator) < 0.5
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_mixture, "MATRIX_ENTRIES", block)
        for sets, members in rows_by_set(known, entries=3):
            assert torch.equal(known[members], sets[:, None].expand(-1, members.shape[1], -1))
            assert len(sets) == 1 or len(sets) * columns**2 <= block
            found += members.flatten().tolist()
            assert len(sets.unique(dim=0)) == len(sets)
    assert sorted(set(found)) == list(range(rows))
