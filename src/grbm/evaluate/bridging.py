"""log Z while a model learns: bridged from a density that is known, with an error bar from the chains themselves.

Between two neighbours of a ladder, states of the one forth and of the other back give the ratio of their partition
functions (Bennett 1976; `grbm.learning.bennett`). The first rung is known: a `Reference`, whose draws are
independent, or the Gaussian base of parallel tempering. Errors are jackknifed over whole chains, so that what a chain
repeats is not counted as news.
"""

import math

import torch
from torch import Tensor

from grbm.evaluate.ais import LogZ, doubt_of, mean_weight
from grbm.learning.bennett import both_sides, crossing
from grbm.learning.quasi_newton import LogWeights, free_energies
from grbm.model import Base, Energy
from grbm.model.reference import Reference
from grbm.samplers.path import PathState

GROUPS = 16  # of chains, each left out in turn
SHORT = 0.1  # nats of a step that leaves one out, from which on a single one is too few


def ratio(forth: Tensor, back: Tensor) -> Tensor:
    """log(Z_1/Z_0) from log weights forth (C, T) and back (C', T'): first of all chains, then without each group.

    (1 + GROUPS,) float64: Bennett's estimate of all of them at once. Those without a group are one of Newton's steps
    from that of all, where these steps are short; elsewhere each is found as that of all is.
    """
    forth, back = (x.T if len(x) == 1 else x for x in (forth, back))  # of a single chain its stretches are left out
    groups = [(torch.arange(len(x)) * GROUPS // len(x)).repeat_interleave(x.shape[1]) for x in (forth, back)]
    forth, back = (x.flatten().double().cpu() for x in (forth, back))
    counts = [torch.bincount(group, minlength=GROUPS).double() for group in groups]
    whole = crossing(forth, back, *(torch.ones(1, len(x), dtype=torch.float64) for x in (forth, back)))
    log_sizes = [torch.cat([n.sum()[None], n.sum() - n]).log() for n in counts]
    shift = log_sizes[0] - log_sizes[1]
    f, b = both_sides(forth, back, whole + shift[0])
    slopes = [torch.bincount(g, x * (1 - x), GROUPS) for g, x in zip(groups, (f, b), strict=True)]
    apart = torch.bincount(groups[1], b, GROUPS) - torch.bincount(groups[0], f, GROUPS)
    steps = apart / (sum(x.sum() - x for x in slopes))
    if bool((steps.abs() < SHORT).all()):
        return torch.cat([whole, whole + shift[0] + steps - shift[1:]])
    keep = [torch.ones(1 + GROUPS, len(x), dtype=torch.float64) for x in (forth, back)]
    for mask, group in zip(keep, groups, strict=True):
        mask[1:][group == torch.arange(GROUPS)[:, None]] = 0
    return crossing(forth, back, *keep)


def _with_error(estimates: Tensor) -> tuple[float, float]:
    """The estimate from all chains, and its standard error by the delete-a-group jackknife."""
    left_out = estimates[1:]
    variance = (GROUPS - 1) / GROUPS * (left_out - left_out.mean()).square().sum()
    return float(estimates[0]), math.sqrt(float(variance))


@torch.no_grad()
def from_reference(energy: Energy, reference: Reference, drawn: Tensor, states: Tensor) -> LogZ:
    """log Z of ``energy`` from draws of ``reference`` (n, N) and states of chains of the model (T, C, N)."""
    pool = torch.cat([drawn, states.flatten(0, 1)]).double()
    log_w = -free_energies(energy, pool) - reference.to(pool).log_prob(pool)
    return from_log_weights(LogWeights(log_w[: len(drawn)], log_w[len(drawn) :].view(states.shape[:2]).T))


def from_log_weights(log_weights: LogWeights) -> LogZ:
    """log Z from the weights of a reference's draws and of states of the model's chains."""
    forth, back = log_weights
    estimates = ratio(forth[:, None], back)
    log_z, error = _with_error(estimates)
    lower, lower_error, ess = mean_weight(forth)
    minus_upper, upper_error, ess_back = mean_weight(-back.flatten())
    ends = (lower, lower_error, -minus_upper, upper_error)
    common = shared(forth, back, float(estimates[0]))
    return LogZ(log_z, error, *ends, (ess, ess_back), len(forth), doubt_of(0.0, error, common), shared=common)


def shared(forth: Tensor, back: Tensor, log_ratio: float) -> float:
    """How many of the states forth might as well be of those back, and the other way round, at Bennett's estimate."""
    shift = math.log(forth.numel() / back.numel())
    return float((forth.flatten() - log_ratio - shift).sigmoid().sum())


@torch.no_grad()
def from_ladder(energy: Energy, base: Base, betas: Tensor, states: Tensor) -> LogZ:
    """log Z of ``energy`` from the replicas of parallel tempering (T, R, C, N) at ``betas`` (R,), from ``base`` on."""
    exactly, rungs = energy.to(torch.float64), betas.tolist()
    total, worst = torch.zeros(1 + GROUPS, dtype=torch.float64), math.inf
    low = PathState(exactly, base, states[:, 0].transpose(0, 1))  # (C, T)
    for r in range(len(rungs) - 1):
        high = PathState(exactly, base, states[:, r + 1].transpose(0, 1))
        forth, back = (x.free_energy(rungs[r]) - x.free_energy(rungs[r + 1]) for x in (low, high))
        low = high
        estimates = ratio(forth, back)
        total += estimates
        worst = min(worst, shared(forth, back, float(estimates[0])))
    log_z, error = _with_error(total + float(base.log_z(energy.n_hidden)))
    n = states.shape[0] * states.shape[2]
    ends = (log_z, error, log_z, error)
    return LogZ(log_z, error, *ends, (worst / n, worst / n), n, doubt_of(0.0, error, worst), shared=worst)
