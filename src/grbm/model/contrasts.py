"""Contrasts: the mixture of one machine at several scales, as heavy tails, outliers and natural images ask for.

p(v) = Σ_k π_k s_k^{−D} p₁(c + (v − c)/s_k), with one machine p₁, at unit contrast, and one log Z for all; the D units
that have contrast are all N, or some, and the others are divided by 1. The machine's own covariance is the same
everywhere; the contrasts s_k about the centre c let it vary (scale mixtures of Gaussians; Wainwright & Simoncelli
2000). Given its contrast a row is an ordinary one of the machine: learning draws k from p(k | v) and moves on as ever,
and π, and s where asked for, follow p(k | v), as in expectation maximisation.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from grbm.core.errors import UserError
from grbm.core.randomness import Rng, uniform

NUMBER = 12  # of contrasts, where rows ask for some
BEYOND = 4  # one in so many is for rows further out than those that it was learned from
MOST_ROWS = 100_000  # that they are found from
GRID = 9  # of scales that tell whether they do
ITERATIONS = 200
FEW = 0.03  # of the largest weight; contrasts with less are for single rows
RAREST = 1e-6  # weight of a contrast, so that none is lost for good
FURTHER = 2.0  # times as wide as the furthest row asks for: the widest contrast
PRIOR = 1.0  # rows that the covariance of all rows counts for, where rows far out weigh less
KEPT = 0.5  # share of the weights that a step of expectation maximisation keeps
LONGEST = 0.1  # step of a log-scale
AT_ONCE = 1 << 20  # numbers of rows at several scales that are looked at together

FreeEnergy = Callable[[Tensor], Tensor]  # of the machine at unit contrast: (..., N) -> (...)
Slope = Callable[[Tensor], Tensor]  # ∂F/∂v there: (..., N) -> (..., N)


class Contrasts(NamedTuple):
    """K scales about a centre, and their weights."""

    log_weights: Tensor  # log π (K,)
    log_scales: Tensor  # log s (K,)
    centre: Tensor  # c (N,)
    units: Tensor | None = None  # (N,), 1 for a visible unit that has contrast and 0 for one that has none; None: all

    @property
    def n(self) -> int:
        """K, the number of scales."""
        return len(self.log_scales)

    def stretch(self, scale: Tensor) -> Tensor:
        """By what units are multiplied at a ``scale`` () or (..., 1): the same, or (..., N) where some have none."""
        return scale if self.units is None else torch.where(self.units > 0, scale, 1.0)

    def at(self, v: Tensor, scale: Tensor) -> Tensor:
        """Rows v as they are at unit contrast, where their own is ``scale``."""
        return self.centre + (v - self.centre) / self.stretch(scale)

    def seen(self, u: Tensor, scale: Tensor) -> Tensor:
        """Rows u of unit contrast as they are at ``scale``."""
        return self.centre + self.stretch(scale) * (u - self.centre)

    def log_joint(self, v: Tensor, free_energy: FreeEnergy) -> Tensor:
        """log p(v, k) + log Z: (..., N) -> (..., K)."""
        log_weights = self.log_weights - self.n_contrasted() * self.log_scales
        scales = self.log_scales.exp().view(-1, *[1] * v.ndim)
        together = max(1, AT_ONCE // max(1, v.numel()))
        found = torch.cat([free_energy(self.at(v, some)) for some in torch.split(scales, together)])  # (K, ...)
        return log_weights - found.movedim(0, -1)

    def free_energy(self, v: Tensor, free_energy: FreeEnergy) -> Tensor:
        """−log Σ_k π_k s_k^{−D} exp(−F(v at unit contrast)): (..., N) -> (...)."""
        return -self.log_joint(v, free_energy).logsumexp(-1)

    def mean(self, v: Tensor, free_energy: FreeEnergy, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The mean over p(k | v) of what ``of`` makes of v at unit contrast, and of s."""
        share = self.log_joint(v, free_energy).softmax(-1)
        parts = [of(self.at(v, s), s) * share[..., k, None] for k, s in enumerate(self.log_scales.exp())]
        return torch.stack(parts).sum(0)

    def log_odds(self, v: Tensor, free_energy: FreeEnergy, logits: Callable[[Tensor], Tensor]) -> Tensor:
        """Log-odds of hidden units given v, whose ``logits`` at unit contrast are known: also of those near 0 or 1."""
        joint = self.log_joint(v, free_energy)
        parts = [(joint[..., k, None], logits(self.at(v, s))) for k, s in enumerate(self.log_scales.exp())]
        on, off = (torch.stack([w + logsigmoid(side * x) for w, x in parts]).logsumexp(0) for side in (1, -1))
        return on - off

    def removed(self, v: Tensor, free_energy: FreeEnergy, rng: Rng) -> Tensor:
        """Rows v (n, N) at unit contrast, by draws of p(k | v)."""
        return self.at(v, self.log_scales.exp()[self.drawn(v, free_energy, rng)])

    def drawn(self, v: Tensor, free_energy: FreeEnergy, rng: Rng) -> Tensor:
        """k ~ p(k | v) for each of the rows v (n, N): (n, 1)."""
        return _drawn(self.log_joint(v, free_energy).softmax(-1), v, rng)

    def applied(self, v: Tensor, rng: Rng) -> Tensor:
        """Rows of the machine at unit contrast (..., C, N), each at a contrast drawn from π."""
        return self.seen(v, self.log_scales.exp()[_drawn(self.log_weights.exp().expand(*v.shape[:-1], -1), v, rng)])

    def followed(self, v: Tensor, free_energy: FreeEnergy, slope: Slope | None = None) -> Self:
        """After a damped step of expectation maximisation on rows v (n, N): other weights, and scales given ``slope``.

        ∂/∂log s_k of a row's log-density is p(k | v) (Σ_i (u_i − c_i) ∂F/∂u_i − D), with u the row at unit contrast.
        Of a Gaussian machine half of the bracket over D is a Newton step in log s_k.
        """
        share = self.log_joint(v, free_energy).softmax(-1)
        weights = (KEPT * self.log_weights.exp() + (1 - KEPT) * share.mean(0)).clamp_min(RAREST)
        moved = self._replace(log_weights=(weights / weights.sum()).log())
        if slope is None:
            return moved
        newton = [(self.pull(self.at(v, s), slope) / self.n_contrasted() - 1) / 2 for s in self.log_scales.exp()]
        step = (share * torch.stack(newton, -1)).sum(0) / share.sum(0).clamp_min(1)  # of a scale without rows none
        return moved._replace(log_scales=self.log_scales + (1 - KEPT) * step.clamp(-LONGEST, LONGEST))

    def pull(self, u: Tensor, slope: Slope) -> Tensor:
        """Σ_i (u_i − c_i) ∂F/∂u_i over units that have contrast, of rows u at unit contrast: (..., N) -> (...)."""
        products = (u - self.centre) * slope(u)
        return (products if self.units is None else self.units * products).sum(-1)

    def n_contrasted(self) -> "int | Tensor":
        """D, how many visible units have contrast."""
        return len(self.centre) if self.units is None else self.units.sum()

    def mapped(self, coordinates: Callable[[Tensor], Tensor]) -> Self:
        """Contrasts of rows in other ``coordinates``, a map of rows (N,) that keeps ratios of lengths along a line."""
        return self._replace(centre=coordinates(self.centre))

    def to(self, like: Tensor) -> Self:
        """On the device of ``like``, in its dtype."""
        return type(self)._make(None if x is None else x.to(like) for x in self)

    def tensors(self) -> dict[str, Tensor]:
        """By the names that files have for them."""
        return {name: x for name, x in zip(NAMES, self, strict=True) if x is not None}


class UnitContrast(Contrasts):
    """The one contrast of a machine that stands at its own scale: passes everything through, and draws nothing.

    A mixture of this one component would be the same density with other last digits. Files hold nothing of it.
    """

    __slots__ = ()

    def at(self, v: Tensor, scale: Tensor) -> Tensor:
        return v

    def seen(self, u: Tensor, scale: Tensor) -> Tensor:
        return u

    def log_joint(self, v: Tensor, free_energy: FreeEnergy) -> Tensor:
        return -free_energy(v)[..., None]

    def free_energy(self, v: Tensor, free_energy: FreeEnergy) -> Tensor:
        return free_energy(v)

    def mean(self, v: Tensor, free_energy: FreeEnergy, of: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return of(v, torch.ones(()))

    def log_odds(self, v: Tensor, free_energy: FreeEnergy, logits: Callable[[Tensor], Tensor]) -> Tensor:
        return logits(v)

    def removed(self, v: Tensor, free_energy: FreeEnergy, rng: Rng) -> Tensor:
        return v

    def drawn(self, v: Tensor, free_energy: FreeEnergy, rng: Rng) -> Tensor:
        return torch.zeros(len(v), 1, dtype=torch.long, device=v.device)

    def applied(self, v: Tensor, rng: Rng) -> Tensor:
        return v

    def followed(self, v: Tensor, free_energy: FreeEnergy, slope: Slope | None = None) -> Self:
        return self

    def mapped(self, coordinates: Callable[[Tensor], Tensor]) -> Self:
        return self

    def tensors(self) -> dict[str, Tensor]:
        return {}


NAMES = tuple(f"contrast_{name}" for name in Contrasts._fields)
UNIT = UnitContrast(torch.zeros(1), torch.zeros(1), torch.zeros(1))  # any centre would do


def from_tensors(tensors: dict[str, Tensor], n_visible: int, source: str) -> Contrasts:
    """Build contrasts from what `Contrasts.tensors` gave, for that many visible units; other names are left.

    Raises UserError, which names the ``source``, where they are not whole.
    """
    known = [tensors.get(name) for name in NAMES]
    if all(x is None for x in known):
        return UNIT
    *parts, units = known
    K = 0 if parts[0] is None else parts[0].numel()
    sound = K > 1 and [x is not None and tuple(x.shape) for x in parts] == [(K,), (K,), (n_visible,)]
    sound = sound and all(x is None or bool(x.isfinite().all()) for x in known)
    if units is not None:
        sound = sound and units.shape == (n_visible,) and bool(((units == 0) | (units == 1)).all() and units.any())
    if not sound:
        raise UserError(f"{source} holds contrasts that are not whole; restore the file, or train again.")
    return Contrasts(*known)  # type: ignore[arg-type]


def _drawn(share: Tensor, v: Tensor, rng: Rng) -> Tensor:
    """A contrast for each of the rows v (..., N), drawn by its share (..., K): (..., 1)."""
    edges = share.cumsum(-1)[..., :-1]
    return (uniform((*v.shape[:-1], 1), v, rng) > edges).sum(-1, keepdim=True)


def scaled_gaussians(squares: Tensor, centre: Tensor, n_contrasts: int, units: Tensor | None = None) -> Contrasts:
    """Of the mixture of scaled Gaussians about ``centre`` c (N,) that fits rows with ``squares`` (v − c)ᵀ Σ⁻¹ (v − c).

    ``squares`` are (n,), over the ``units`` that have contrast; by expectation maximisation. Weights and scales are
    float64.
    """
    squares, N = squares.double(), len(centre) if units is None else int(units.sum())
    spread = torch.quantile((_some(squares) / N).sqrt(), torch.linspace(0.05, 0.95, n_contrasts).double())
    log_scales, log_weights = spread.clamp_min(1e-3).log(), torch.full((n_contrasts,), -math.log(n_contrasts)).double()
    for _ in range(ITERATIONS):
        log_weights, log_scales = _scaled(_share(squares, N, log_weights, log_scales), squares, N, log_scales)
    return Contrasts(log_weights, log_scales, centre, units)


def elliptical(rows: Tensor, n_contrasts: int, covariance: Tensor) -> tuple[Contrasts, Tensor]:
    """The mixture of scaled Gaussians of one centre and one covariance Σ (N, N) that fits rows (n, N), and this Σ.

    ``covariance`` is one of all rows, shrunk where they are few: Σ begins there, and it counts for one row.
    Expectation maximisation, in which rows far out weigh less, as in that of Student's t (Liu & Rubin 1995). One scale
    in four is left out of it: these go on evenly from where rows become few to twice as far as the furthest, with the
    least weight there is. The next row may lie there, and scales that only fit would call it impossible.
    """
    every, N, n_beyond = rows.double(), rows.shape[1], n_contrasts // BEYOND
    rows = _some(every)
    centre, prior = rows.mean(0), PRIOR * covariance
    squares = _squares(rows, centre, covariance)
    log_weights, log_scales, *_ = scaled_gaussians(squares, centre, n_contrasts - n_beyond)
    for _ in range(ITERATIONS):
        share = _share(squares, N, log_weights, log_scales)
        log_weights, log_scales = _scaled(share, squares, N, log_scales)
        weights = share @ (-2 * log_scales).exp()
        centre = weights @ rows / weights.sum()
        scatter = (rows - centre).T @ (weights[:, None] * (rows - centre))
        covariance = (prior + scatter) / (len(rows) + PRIOR)
        squares = _squares(rows, centre, covariance)
    common = log_scales[log_weights > log_weights.max() + math.log(FEW)].max()
    furthest = 0.5 * (_squares(every, centre, covariance).max() / N).log()
    end = max(float(log_scales.max()), float(furthest)) + math.log(FURTHER)
    beyond = torch.linspace(float(common), end, n_beyond + 1, dtype=torch.float64)[1:]
    log_weights = torch.cat([log_weights, torch.full_like(beyond, math.log(RAREST))]).log_softmax(0)
    log_scales, order = torch.cat([log_scales, beyond]).sort()
    return Contrasts(log_weights[order], log_scales, centre), covariance


def _some(rows: Tensor) -> Tensor:
    """At most 100,000 of the rows, evenly spaced."""
    n = min(len(rows), MOST_ROWS)
    return rows[torch.arange(n) * len(rows) // n]


def _squares(rows: Tensor, centre: Tensor, covariance: Tensor) -> Tensor:
    """(v − c)ᵀ Σ⁻¹ (v − c) of rows v (n, N): (n,)."""
    factor = torch.linalg.cholesky(covariance)
    return torch.linalg.solve_triangular(factor, (rows - centre).mT, upper=False).square().sum(-2)


def _share(squares: Tensor, N: int, log_weights: Tensor, log_scales: Tensor) -> Tensor:
    """p(k | v) of a mixture of scaled Gaussians, by the squares (n,) of rows: (n, K)."""
    return (log_weights - N * log_scales - 0.5 * squares[:, None] * (-2 * log_scales).exp()).softmax(1)


def _scaled(share: Tensor, squares: Tensor, N: int, log_scales: Tensor) -> tuple[Tensor, Tensor]:
    """The step of maximisation: log-weights and log-scales (K,)."""
    total, log_weights = share.sum(0), share.mean(0).clamp_min(RAREST).log().log_softmax(0)
    found = (share * squares[:, None]).sum(0) / (N * total.clamp_min(1e-9))
    return log_weights, torch.where(total > 1, 0.5 * found.clamp_min(1e-6).log(), log_scales)


def ask_for_contrasts(rows: Tensor, free_energy: FreeEnergy) -> bool:
    """Whether a density e^(−F) describes rows (n, N), centred on 0, better at several contrasts, by what BIC asks for.

    It is given scales from 1/e to e, and their weights alone are fitted: where rows lie near and far since clusters do,
    all weight stays at 1.
    """
    n, N = rows.shape
    log_scales = torch.linspace(-1, 1, GRID).double()
    joint = torch.stack([-free_energy(rows / s.exp()) - N * s for s in log_scales], 1)
    log_weights = torch.full((GRID,), -math.log(GRID)).double()
    for _ in range(ITERATIONS):
        log_weights = (joint + log_weights).softmax(1).mean(0).clamp_min(RAREST).log()
    gain = float((joint + log_weights).logsumexp(1).sum() - joint[:, GRID // 2].sum())
    return gain > 0.5 * GRID * math.log(n)
