"""Log-likelihoods of whole tables, in the data's own units, with standard errors; bits per dimension for images."""

import math
from typing import NamedTuple

import torch

from grbm.data.standardise import Standardizer
from grbm.data.tables import Table
from grbm.model import GRBM
from grbm.randomness import generator

CHUNK = 8192  # rows at a time: tables may be larger than memory


class Score(NamedTuple):
    """A mean over rows, and its standard error: that of the rows and that of log Z together."""

    mean: float
    error: float
    n_rows: int
    n_without: int = 0  # rows left out: they have no density, since they break what held for all rows learned from


@torch.no_grad()
def log_likelihood(
    model: GRBM,
    scale: Standardizer,
    rows: Table,
    log_z: float,
    log_z_error: float = 0.0,
    *,
    levels: int | None = None,
    seed: int = 0,
) -> Score:
    """Mean log-density of ``rows`` (n, N), in nats per sample; of those that have one.

    The model knows z = (x − mean)/scale, so the density of x is that of z over Π scale: log p(x) = −F(z) − log Z −
    Σ log scale. The last term is the log-determinant of the standardisation; without it, two standardisations of the
    same data could not be compared.

    Parameters
    ----------
    model, scale, log_z, log_z_error
        The model of standardised rows, on the CPU or a GPU, and its log partition function with standard error.
    rows : Tensor or StoredTable
        In their own units.
    levels : int, optional
        For numbers k/(levels − 1), k = 0..levels − 1, such as pixels: dequantise. A density can be arbitrarily high at
        single points, so each k becomes k + u, u uniform in [0, 1), and what is returned is the density of k + u. Its
        mean is at most the log-probability of the integers themselves (Theis, van den Oord & Bethge 2016), in nats;
        `bits_per_dimension` turns it round.
    seed : int
        Of u.
    """
    device = model.W.device
    constant = log_z - scale.log_det
    if levels is not None:
        constant += int(scale.kept.sum()) * math.log(levels - 1)
    rng = generator(seed, "dequantisation")
    total, squares, n = 0.0, 0.0, 0
    for first in range(0, len(rows), CHUNK):
        x = rows[first : first + CHUNK].double()
        x = x[~scale.breaks(x).any(1)]
        n += len(x)
        if levels is not None:
            x = x + (torch.rand(x.shape, generator=rng, dtype=torch.float64) - 0.5) / (levels - 1)
        log_p = -model.free_energy(scale(x).to(device)).double().cpu() - constant
        total += float(log_p.sum())
        squares += float((log_p + constant).square().sum())
    if n == 0:
        return Score(-math.inf, 0.0, 0, len(rows))
    mean = total / n
    variance = max(0.0, squares / n - (mean + constant) ** 2)
    return Score(mean, math.hypot(math.sqrt(variance / n), log_z_error), n, len(rows) - n)


def bits_per_dimension(score: Score, n_visible: int) -> Score:
    """−log₂ p per visible unit, from nats per sample of dequantised rows."""
    unit = n_visible * math.log(2)
    return Score(-score.mean / unit, score.error / unit, score.n_rows)
