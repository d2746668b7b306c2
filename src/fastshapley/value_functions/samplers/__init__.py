"""Samplers: they complete rows of which only some players are known, with values that suit what is known.

Most take donors, which are rows of the data, and shift their entries by the difference between what the known
players make one expect of the row and of the donor. Samplers differ in how they expect: not at all
(`MarginalSampler`), by linear regression on standardised numbers (`NormalSampler`) or on normal scores
(`CopulaSampler`), or by a network (`NetworkSampler`). `ClassSampler` takes the entries of donors that are alike, as
they are. A sampler of the user's own is a function ``sample(x, s, generator)`` (`GivenSampler`). Two samplers can
share the draws (`BlendSampler`).
"""

from fastshapley.value_functions.samplers.blend_sampler import BlendSampler
from fastshapley.value_functions.samplers.class_sampler import ClassSampler
from fastshapley.value_functions.samplers.conditional_sampler import (
    ConditionalSampler,
    Donors,
    SamplerRows,
    leading_output,
)
from fastshapley.value_functions.samplers.given_sampler import GivenSampler, Sample
from fastshapley.value_functions.samplers.marginal_sampler import MarginalSampler
from fastshapley.value_functions.samplers.network_sampler import NetworkSampler
from fastshapley.value_functions.samplers.regression_samplers import CopulaSampler, NormalSampler

SAMPLERS: dict[str, type[ConditionalSampler]] = {
    sampler.kind: sampler
    for sampler in (NetworkSampler, CopulaSampler, NormalSampler, ClassSampler, MarginalSampler)
}

__all__ = [
    "SAMPLERS",
    "BlendSampler",
    "ClassSampler",
    "ConditionalSampler",
    "CopulaSampler",
    "Donors",
    "GivenSampler",
    "MarginalSampler",
    "NetworkSampler",
    "NormalSampler",
    "Sample",
    "SamplerRows",
    "leading_output",
]
