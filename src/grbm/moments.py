"""All that passes from sampling to learning: means of v, v², h and v hᵀ, streamed; the gradient is their difference."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.model import Energy


class Moments(NamedTuple):
    """Raw means over samples: not centred on μ, which may move between two of them."""

    v: Tensor  # (N,)
    v2: Tensor  # (N,)
    h: Tensor  # (M,)
    vh: Tensor  # (N, M)

    @classmethod
    def of(cls, v: Tensor, h: Tensor) -> "Moments":
        """Means over a batch v (C, N), h (C, M), where h may be draws or probabilities."""
        return cls(v.mean(0), v.square().mean(0), h.mean(0), v.T @ h / len(v))


class MomentSum:
    """Moments of a chain as it runs: memory does not depend on the number of steps."""

    def __init__(self, energy: Energy) -> None:
        N, M, like = energy.n_visible, energy.n_hidden, energy.W
        self.sums = Moments(*(torch.zeros(s, dtype=like.dtype, device=like.device) for s in ((N,), (N,), (M,), (N, M))))
        self.count = 0

    def add(self, v: Tensor, h: Tensor) -> None:
        self.sums.v.add_(v.sum(0))
        self.sums.v2.add_(v.square().sum(0))
        self.sums.h.add_(h.sum(0))
        self.sums.vh.addmm_(v.T, h)
        self.count += len(v)

    def mean(self) -> Moments:
        return Moments(*(x / self.count for x in self.sums))


def gradient(energy: Energy, positive: Moments, negative: Moments) -> dict[str, Tensor]:
    """∇ log p by name: the positive minus the negative mean of −∂E/∂θ.

    Eqs. 14-17 when h was drawn, Eqs. 33-36 when h holds probabilities. μ² cancels in the difference, and
    Σ_j W_ij (v_i h_j) needs no product beyond v hᵀ itself.
    """
    v, v2, h, vh = (p - n for p, n in zip(positive, negative, strict=True))
    return {
        "W": vh / energy.var[:, None],
        "b": h,
        "mu": v / energy.var,
        "log_var": (0.5 * v2 - energy.mu * v - (energy.W * vh).sum(1)) / energy.var,
    }


def centre(energy: Energy, ascent: dict[str, Tensor], positive: Moments) -> dict[str, Tensor]:
    """The gradient with centred visible and hidden units, offset by the data's means (Montavon & Müller 2012).

    It is the gradient of the same family written with v − λ and h − m, carried back to W, b and μ; the log σ² part is
    kept. It does not depend on which state of a unit is called 1, and a shift of a whole mode's mass no longer pulls
    on every weight at once. For GRBMs: Melchior, Fischer & Wiskott 2016, with the 1/σ² that their program omits.
    """
    offset_v, offset_h = positive.v / energy.var, positive.h
    W = ascent["W"] - torch.outer(ascent["mu"], offset_h) - torch.outer(offset_v, ascent["b"])
    return {**ascent, "W": W, "mu": ascent["mu"] - W @ offset_h, "b": ascent["b"] - offset_v @ W}
