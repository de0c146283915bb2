"""Moments pass from sampling to learning: means of v, v², h and v hᵀ, streamed; the gradient is their difference."""

from dataclasses import dataclass
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

    def minus(self, other: "Moments") -> "Moments":
        """The difference of each moment."""
        return Moments(*(a - b for a, b in zip(self, other, strict=True)))


class Averages(NamedTuple):
    """Free energies of n states, and means over them with weights exp(−F)/q, or with equal ones."""

    free_energy: Tensor  # (n,)
    means: Moments
    log_weight: float  # logarithm of the mean weight; 0 of equal ones
    share: float  # effective share of the states (Kong 1992)


@dataclass(eq=False)
class MomentSum:
    """Moments of a chain as it runs: memory does not depend on the number of steps.

    Each of ``n_blocks`` equal blocks of chains is summed by itself, and the blocks' sums are added in float64, where
    sums of float32 numbers are exact: in whatever order, and by however many processes, they come out the same.
    """

    sums: Moments  # each with a first axis for the blocks
    count: int = 0  # states in all

    @classmethod
    def empty(cls, energy: Energy, n_blocks: int = 1) -> "MomentSum":
        """The sums over no states."""
        N, M = energy.W.shape
        return cls(Moments(*(energy.W.new_zeros(n_blocks, *shape) for shape in ((N,), (N,), (M,), (N, M)))))

    def add(self, v: Tensor, h: Tensor) -> None:
        """Add states v (C, N) and h (C, M), where h may be draws or probabilities."""
        self.count += len(v)
        v, h = (x.reshape(len(self.sums.v), -1, x.shape[-1]) for x in (v, h))
        self.sums.v.add_(v.sum(1))
        self.sums.v2.add_(v.square().sum(1))
        self.sums.h.add_(h.sum(1))
        self.sums.vh.baddbmm_(v.mT, h)

    def total(self, dtype: torch.dtype = torch.float64) -> Moments:
        """The sums over all blocks; ``count`` is what they go over. One block's may share its memory."""
        return Moments(*(x[0] if len(x) == 1 and x.dtype == dtype else x.sum(0, dtype=dtype) for x in self.sums))

    def mean(self) -> Moments:
        """The means over all blocks, in float64."""
        return Moments(*(x / self.count for x in self.total()))


class Pooled(NamedTuple):
    """Sums over all processes' rows and chains, in float64, or in float32 where one process has a GPU.

    The difference of means is brought to one denominator, so that what is added over processes are whole sums, which
    float64 holds exactly, and one W-shaped tensor travels in place of two.
    """

    difference: Moments | None  # means at the data minus under the chains, but for ``scale``; None where it is not kept
    scale: float
    data_v: Tensor  # sums over ``n_data`` rows (N,)
    data_h: Tensor  # (M,)
    n_data: int
    mean_v2: Tensor  # under the chains (N,), in the dtype of the parameters
    mean_h: Tensor  # at the data (M,)
    accept_rate: Tensor | None
    swap_rate: Tensor | None


def gradient(energy: Energy, positive: Moments, negative: Moments) -> dict[str, Tensor]:
    """∇ log p by name: the positive minus the negative mean of −∂E/∂θ.

    Eqs. 14-17 when h was drawn, Eqs. 33-36 when h holds probabilities. μ² cancels in the difference, and
    Σ_j W_ij (v_i h_j) needs no product beyond v hᵀ itself.
    """
    return ascent(energy, positive.minus(negative))


def ascent(energy: Energy, difference: Moments) -> dict[str, Tensor]:
    """`gradient` from the positive minus the negative moments, in the dtype of the parameters."""
    v, v2, h, vh = (x.to(energy.W) for x in difference)
    return {
        "W": vh / energy.var[:, None],
        "b": h,
        "mu": v / energy.var,
        "log_var": (0.5 * v2 - energy.mu * v - (energy.W * vh).sum(1)) / energy.var,
    }


def centre(energy: Energy, plain: dict[str, Tensor], mean_v: Tensor, mean_h: Tensor) -> dict[str, Tensor]:
    """The gradient with centred visible and hidden units, offset by the data's means (Montavon & Müller 2012).

    It is the gradient of the same family written with v − λ and h − m, carried back to W, b and μ; the log σ² part is
    kept. It does not depend on which state of a unit is called 1, and a shift of a whole mode's mass no longer pulls
    on every weight at once. For GRBMs: Melchior, Fischer & Wiskott 2016, with the 1/σ² that their program omits.
    """
    offset_v, offset_h = mean_v / energy.var, mean_h
    W = plain["W"] - torch.outer(plain["mu"], offset_h) - torch.outer(offset_v, plain["b"])
    return {**plain, "W": W, "mu": plain["mu"] - W @ offset_h, "b": plain["b"] - offset_v @ W}
