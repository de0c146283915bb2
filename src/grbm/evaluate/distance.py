"""How far two samples are apart, with nothing to tune."""

import torch
from torch import Tensor


def energy_distance(x: Tensor, y: Tensor) -> Tensor:
    """2 E|x − y| − E|x − x'| − E|y − y'| for samples x (n, N), y (m, N): a scalar, unbiased, 0 for equal distributions.

    It separates any two distributions with a mean (Székely & Rizzo 2013). With few samples it may come out a little
    below 0, where the two agree; with fewer than two it is NaN. In float64, about the mean of y: distances between far
    samples come from matrix products, which cancel.
    """
    centre = y.double().mean(0)
    x, y = x.double() - centre, y.double() - centre
    between = torch.cdist(x, y).mean()
    within = [torch.cdist(z, z).sum() / (len(z) * (len(z) - 1)) for z in (x, y)]
    return 2 * between - within[0] - within[1]
