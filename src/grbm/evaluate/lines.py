"""Exact conditional of one coordinate given all others, by quadrature along a line.

Along z + t a, p is a mixture of 2^M Gaussians of t, all of variance 1/Σ (a²/σ²). A hidden unit that is on shifts the
mean by a constant, so the outermost means have all shifts of one sign. For Gaussians of one width the trapezoidal rule
with steps of that width is exact to exp(−2π²) (Trefethen & Weideman 2014, "The exponentially convergent trapezoidal
rule").
"""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from grbm.model import GRBM, Energy

STEP = 0.9  # Of the quadrature, in widths of the Gaussians: its error is 3e-11.
BEYOND = 8.0  # Widths beyond the outermost means.
NUMBERS = 1 << 22  # Of the largest intermediate tensor, but for one row.


class Along(NamedTuple):
    """Distribution of t (n,) along lines: log ∫ exp(−F(z + t a)) dt, mean and variance, float64."""

    log_mass: Tensor
    mean: Tensor
    var: Tensor


@torch.no_grad()
def along(model: GRBM, z: Tensor, direction: Tensor) -> Along:
    """Compute the distribution of t for each row z (n, K), given that v = z + t a, a the ``direction`` (K,).

    The censoring of a model has no part in it.
    """
    model = copy.deepcopy(model).cpu().double()
    energy, contrasts = model.freeze(), model.contrasts
    # Each contrast is a mixture of such Gaussians, of a width of its own.
    parts, weights = [], contrasts.log_weights - contrasts.n_contrasted() * contrasts.log_scales
    for s, weight in zip(contrasts.log_scales.exp(), weights, strict=True):
        part = _along(energy, contrasts.at(z, s), direction / contrasts.stretch(s))
        parts.append(part._replace(log_mass=part.log_mass + weight))
    log_mass, mean, var = (torch.stack(each, -1) for each in zip(*parts, strict=True))
    share = log_mass.softmax(-1)
    overall = (share * mean).sum(-1)
    return Along(log_mass.logsumexp(-1), overall, (share * (var + (mean - overall[:, None]).square())).sum(-1))


def _along(energy: Energy, z: Tensor, direction: Tensor) -> Along:
    """The same at unit contrast."""
    scaled = direction / energy.var
    precision, moves = float(direction @ scaled), scaled @ energy.W
    width, pull, logits = precision**-0.5, (energy.mu - z) @ scaled, energy.hidden_logits(z)
    lowest = (pull + moves.clamp_max(0.0).sum()) / precision - BEYOND * width
    n_steps = math.ceil((float(moves.abs().sum()) / precision + 2 * BEYOND * width) / (STEP * width))
    nothing = torch.zeros_like(energy.b)
    steps = STEP * width * torch.arange(n_steps + 1, dtype=z.dtype)
    parts = []
    for here in torch.split(torch.arange(len(z)), max(1, NUMBERS // (len(steps) * energy.n_hidden))):
        t = lowest[here, None] + steps
        log_p = t * (pull[here, None] - 0.5 * precision * t)
        log_p += softplus(logits[here, None] + t[..., None] * moves).sum(-1)
        share = log_p.softmax(-1)
        mean = (share * t).sum(-1)
        log_mass = log_p.logsumexp(-1) + math.log(STEP * width)
        log_mass -= energy.energy(z[here], nothing)
        parts.append(Along(log_mass, mean, (share * (t - mean[:, None]).square()).sum(-1)))
    return Along(*(torch.cat(each) for each in zip(*parts, strict=True)))
