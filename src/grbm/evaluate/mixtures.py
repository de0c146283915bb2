"""Scores of a model of a known 2-D mixture: its density by quadrature, and its samples from noise."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.data.mixtures import Mixture
from grbm.evaluate.exact import Grid, quadrature
from grbm.model import GRBM


class DensityScore(NamedTuple):
    """How well exp(−F)/Z fits, which no sample can tell."""

    kl: float  # KL(data || model), nats
    mode_mass: tuple[float, ...]  # probability that the model puts on each mode


class SampleScore(NamedTuple):
    """How many samples fall where they should."""

    within: float  # share within 3 standard deviations of a mode
    mode_share: tuple[float, ...]  # share per mode, of all samples


def spacing(mixture: Mixture | None) -> float:
    """Largest spacing of a grid that is fine enough for a mixture."""
    return torch.inf if mixture is None else float(mixture.stds.min()) / 4


@torch.no_grad()
def density_score(model: GRBM, mixture: Mixture, grid: Grid | None = None) -> DensityScore:
    """Exact KL(data || model) and mode masses by quadrature on the model's grid."""
    grid = grid or quadrature(model, max_spacing=spacing(mixture))
    log_data = mixture.log_prob(grid.points)
    weight = log_data.exp() * grid.cell
    missed = 1 - weight.sum()  # data where the model has no density at all; there q < exp(-36)
    kl = (weight * (log_data - grid.log_density)).sum() + 36 * missed.clamp_min(0)
    one_hot = torch.nn.functional.one_hot(mixture.modes(grid.points), len(mixture.weights))
    return DensityScore(float(kl), tuple(grid.mean(one_hot).tolist()))


def sample_score(v: Tensor, mixture: Mixture) -> SampleScore:
    """Score samples v (n, 2). Of the mixture's own samples 98.9 % lie within 3 standard deviations."""
    within = (mixture.distances(v).amin(-1) <= 3).double().mean()
    share = torch.nn.functional.one_hot(mixture.modes(v), len(mixture.weights)).double().mean(0)
    return SampleScore(float(within), tuple(share.tolist()))
