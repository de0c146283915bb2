"""Bennett's acceptance ratio: the ratio of two partition functions from draws of both densities."""

import math

import torch
from torch import Tensor


def bennett(forth: Tensor, back: Tensor) -> tuple[float, float]:
    """log(Z_1/Z_0) from log weights of both ways, and its standard error (Bennett 1976; Shirts et al. 2003).

    The estimate L solves Σ_forth f(L − w + s) = Σ_back f(w − L − s) for f(x) = 1/(1 + e^x) and s = log n_forth/n_back;
    the difference of the two sums falls with L.
    """
    shift = math.log(len(forth) / len(back))
    low, high = float(torch.cat([forth, back]).min()) - 50, float(torch.cat([forth, back]).max()) + 50
    for _ in range(64):
        middle = 0.5 * (low + high)
        if (middle - forth + shift).neg().sigmoid().sum() > (back - middle - shift).neg().sigmoid().sum():
            low = middle
        else:
            high = middle
    parts = (low - forth + shift).neg().sigmoid(), (back - low - shift).neg().sigmoid()
    variance = sum((float(f.square().mean() / f.mean().square()) - 1) / len(f) for f in parts)
    return low, math.sqrt(max(0.0, variance))
