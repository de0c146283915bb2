"""Climbing the log-likelihood itself, or a posterior: quasi-Newton steps, with log Z from a fixed set of draws.

With draws v_1..v_n of a density q, log Z(θ) ≈ log 1/n Σ_i exp(−F_θ(v_i))/q(v_i) is a smooth function of θ, and so is
the log-likelihood (Monte Carlo maximum likelihood; Geyer & Thompson 1992), which L-BFGS climbs (Nocedal 1980) in
natural parameters (`grbm.learning.natural`). Where these differ much in how they curve it, as those of far clusters do,
this takes hundreds of steps where stochastic gradients take hundreds of thousands. The draws are of the model itself as
a round of steps begins, and of the sampler's reference where it has one; a step that would leave few of them with a
weight is not taken. A normal prior of U = W/σ², which the few parameters that many rows tell of do not feel, keeps few
rows from being learned by heart.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, Rng, seed_of
from grbm.learning import natural
from grbm.learning.bennett import bennett
from grbm.model import GRBM, Energy
from grbm.model.reference import Reference
from grbm.samplers import Sampler, run_chains
from grbm.samplers.engines import native_averages
from grbm.samplers.moments import Averages, Moments

STEPS = 25  # of a round
DRAWS = 2048  # of the reference, and at least as many of the model
FORTH = 16384  # of the reference, by which log Z is known, to half of the error that as few as those would leave
MOST = 8192  # draws of the model, one for each weight: of fewer, steps learn what is random in them
ROWS = 4096  # of the data, at most
BURN_IN = 4  # steps of the chains, which annealing left near the model, or the last round
REMEMBERED = 50  # steps whose curvature counts
PART = 1 << 17  # numbers that fit into a cache
LEAST = 0.3  # effective share of the draws, below which log Z is not believed
LARGEST = 1e9  # free energy, of which float64 keeps a millionth of a nat
HALVINGS = 12  # of a step, before a round ends
ENOUGH = 1e-4  # part of the rise that the gradient promises, below which a step is halved (Armijo 1966)
FIRST = 0.1  # length of the first step of all, whose curvature nothing tells


class Draws(NamedTuple):
    """States from which log Z is computed, float64: v (n, N) and the log of their density, (n,), but for a constant."""

    v: Tensor
    log_q: Tensor


class LogWeights(NamedTuple):
    """log exp(−F)/q by a `Reference` q: at draws of q, forth (n,), and at states of the model's chains, back (C, T)."""

    forth: Tensor
    back: Tensor


class Drawn(NamedTuple):
    """Draws, and the chains that they are of."""

    draws: Draws
    free_energy: Tensor  # of the model at them, (n,)
    chains: Tensor  # visible units from which they go on ([R,] C, N)
    last: Tensor  # those of the model, (C, N)
    accept_rate: Tensor | None
    log_weights: LogWeights | None = None  # if the pool begins with draws of a reference; ``log_q`` is normalised then


class Height(NamedTuple):
    """The log-likelihood at some parameters, less what a prior takes from it, in nats per row.

    But for a constant where the draws' density has one.
    """

    value: float
    gradient: Tensor  # by the natural parameters (P,)
    share: float  # effective share of the draws (Kong 1992); 0 where energies are so large that no digits are left


class Curvature(NamedTuple):
    """The last steps in natural parameters, and how the gradient fell along each: (K, P) float64."""

    steps: Tensor
    falls: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> "Curvature":
        """Nothing known of the curvature along parameters ``like`` (P,)."""
        return cls(*(like.new_empty(0, len(like), dtype=torch.float64) for _ in range(2)))

    def last(self, n: int) -> "Curvature":
        """The last ``n`` steps alone."""
        return Curvature(self.steps[-n:], self.falls[-n:])


def draw(energy: Energy, sampler: Sampler, chains: Tensor, rng: Rng, *, seed: int) -> Drawn:
    """States of chains of the model, pooled with draws of the sampler's reference where it has one.

    Those chains begin anew, since what a round makes far from all data no chain that began at data would meet; others
    go on from ``chains``.
    The density of the pool is the mixture of both, by their numbers (Veach & Guibas 1995): with w = exp(−F)/(q Z) from
    Bennett's ratio, that of the model is q w. The ``seed`` is that of the run, whose rounds share the draws that log Z
    is from.
    """
    states, rate, n_draws = [], None, min(MOST, max(DRAWS, energy.W.numel()))
    anew = sampler.anew(energy, chains.shape[-2], rng)
    chains = chains if anew is None else anew
    for k in range(BURN_IN + -(-n_draws // chains.shape[-2])):
        walked = run_chains(energy, sampler, chains, 1, rng)
        chains, rate = sampler.persistent(walked.chains), walked.accept_rate
        states += [walked.chains.v] if k >= BURN_IN else []
    of_model, q = torch.cat(states).double(), sampler.bridge()
    if not isinstance(q, Reference):
        free_energy = free_energies(energy, of_model)
        return Drawn(Draws(of_model, -free_energy), free_energy, chains, states[-1], rate)
    q = q.to(energy.W)
    pool, standing = torch.cat([q.sample(DRAWS, rng).double(), of_model]), standing_draws(q, seed)
    log_q, free_energy = q.to(pool).log_prob(pool), free_energies(energy, pool)
    log_w = -free_energy - log_q
    log_weights = LogWeights(-free_energies(energy, standing.v) - standing.log_q, log_w[DRAWS:].view(len(states), -1).T)
    log_z = bennett(log_weights.forth, log_w[DRAWS:])[0]
    share = DRAWS / len(pool)
    mixed = torch.logaddexp(log_q + math.log(share), log_q + log_w - log_z + math.log(1 - share))
    return Drawn(Draws(pool, mixed), free_energy, chains, states[-1], rate, log_weights)


@lru_cache(maxsize=1)
def standing_draws(q: Reference, seed: int) -> Draws:
    """`FORTH` draws of ``q``, the same at every look of a run: log Z of one and the next differ little by their luck.

    No step is made by them, so none is learned.
    """
    v = q.sample(FORTH, Blocks(seed_of(seed, "standing"), 1, device=q.means.device)).double()
    return Draws(v, q.to(v).log_prob(v))


def free_energies(energy: Energy, v: Tensor) -> Tensor:
    """F of states v (n, N), in float64: (n,)."""
    return averaging(energy.to(torch.float64))(v.double(), None).free_energy


def height(energy: Energy, rows: Tensor, draws: Draws, prior: float = 0.0) -> Height:
    """The log-likelihood of ``rows`` (n, N) float64 less ``prior``/2 Σ U², and its gradient.

    ``prior`` is the precision of a normal prior of U = W/σ² divided by the number of rows; 0 is maximum likelihood.
    """
    averaged = averaging(energy)
    at_rows, at_draws = averaged(rows, None), averaged(draws.v, draws.log_q)
    if not all(float(x.free_energy.abs().max()) < LARGEST for x in (at_rows, at_draws)):  # also where one is NaN
        return Height(-math.inf, torch.zeros_like(natural.vector(energy)), 0.0)
    value, U = -float(at_rows.free_energy.mean()) - at_draws.log_weight, natural.weights(energy)
    apart = at_rows.means.minus(at_draws.means)
    slope = natural.gradient(energy, apart._replace(vh=apart.vh - prior * U))
    return Height(value - 0.5 * prior * float(U.square().sum()), slope, at_draws.share)


def averaging(energy: Energy) -> Callable[[Tensor, Tensor | None], Averages]:
    """`averages` under ``energy``, natively where that serves."""
    return native_averages.averaging(energy) if native_averages.serves(energy) else partial(averages, energy)


def averages(energy: Energy, v: Tensor, log_q: Tensor | None) -> Averages:
    """Averages of states v (n, N) with weights exp(−F)/q, or with equal ones where ``log_q`` (n,) is None."""
    parts = torch.split(v, max(1, PART // energy.n_hidden))
    logits = [energy.hidden_logits(part) for part in parts]
    free_energy = torch.cat([energy.free_energy(*pair) for pair in zip(parts, logits, strict=True)])
    log_w = torch.zeros_like(free_energy) if log_q is None else -free_energy - log_q
    weights = log_w.softmax(0)
    h, vh = torch.zeros_like(energy.b), torch.zeros_like(energy.W)
    for part, w, of_part in zip(parts, torch.split(weights, len(parts[0])), logits, strict=True):
        p = of_part.sigmoid_()
        h += w @ p
        vh.addmm_((part * w[:, None]).T, p)
    means = Moments(weights @ v, weights @ v.square(), h, vh)
    log_weight = float(log_w.logsumexp(0)) - math.log(len(v))
    return Averages(free_energy, means, log_weight, 1 / (len(v) * float(weights.square().sum())))


def direction(gradient: Tensor, curvature: Curvature) -> Tensor:
    """Direction of an L-BFGS step: the gradient times an inverse Hessian from the steps remembered (P,).

    All steps at once, in the compact form of Byrd, Nocedal & Schnabel 1994, Eq. 3.1.
    """
    steps, falls = curvature
    if not len(steps):
        return FIRST * gradient / max(1.0, float(gradient.norm()))
    products = (steps @ falls.T).triu()
    width = products[-1, -1] / falls[-1].square().sum()  # of the inverse Hessian without those steps
    along = torch.linalg.solve_triangular(products, (steps @ gradient)[:, None], upper=True)[:, 0]
    rest = gradient - falls.T @ along
    share = products.diagonal() * along - width * (falls @ rest)
    share = torch.linalg.solve_triangular(products.T, share[:, None], upper=False)[:, 0]
    return width * rest + steps.T @ share


class Climbed(NamedTuple):
    """A round of steps."""

    end: Tensor  # natural parameters (P,)
    curvature: Curvature  # of earlier rounds and this one; empty where no step could be made
    began: float  # what is climbed (`Height`) where it began
    reached: Height


@torch.no_grad()
def climb(
    model: GRBM, rows: Tensor, draws: Draws, curvature: Curvature, *, min_var: float, prior: float = 0.0
) -> tuple[Curvature, float, Height]:
    """Make a round of steps in place, each the longest of 1, ½, ¼, ... that climbs (Armijo) and keeps enough draws.

    A step begins at four times what of the last one was taken.

    What is climbed is the log-likelihood of ``rows`` (n, N) less what the ``prior`` takes from it (`height`), with
    log Z from ``draws``; variances stay at ``min_var`` or above. The ``curvature`` is of earlier rounds, of other
    draws, but nearly the same. Returns it with these steps, empty where none could be made, the height where they
    began, in nats per row, and where they ended.
    """
    energy, size = model.freeze().to(torch.float64), (model.n_visible, model.n_hidden)
    start, highest = natural.vector(energy), -math.log(min_var)
    way = natively_ascended if native_averages.serves(energy) else ascended
    end, curvature, began, reached = way(start, size, rows.double(), draws, curvature, highest, prior)
    if not torch.equal(end, start):
        there = natural.energy_of(end, *size)
        for parameter, value in zip(model.parameters(), (there.W, there.b, there.mu, there.var.log()), strict=True):
            parameter.copy_(value)
    return curvature, began, reached


def ascended(
    start: Tensor, size: tuple[int, int], rows: Tensor, draws: Draws, curvature: Curvature, highest: float, prior: float
) -> Climbed:
    """A round of steps from natural parameters ``start`` (P,) of a machine of that ``size`` (N, M), as in `climb`.

    No log 1/σ² comes to lie above the ``highest``.
    """
    high = torch.full_like(start, torch.inf)
    high[-size[0] :] = highest

    def at(vector: Tensor) -> Height:
        return height(natural.energy_of(vector, *size), rows, draws, prior)

    here = torch.minimum(start, high)
    now, n_made, longest = at(here), 0, 0
    began = now.value
    for _ in range(STEPS):
        uphill = direction(now.gradient, curvature)
        if not now.gradient @ uphill > 0:
            break
        for k in range(longest, HALVINGS):
            there = torch.minimum(here + 0.5**k * uphill, high)
            step, found = there - here, at(there)
            if found.share >= LEAST and found.value >= now.value + ENOUGH * float(now.gradient @ step):
                break
        else:
            break
        longest = max(0, k - 2)  # where the draws allow no longer steps, the next need not try all of them
        fall = now.gradient - found.gradient
        if step @ fall > 1e-8 * step.norm() * fall.norm():
            curvature = Curvature(*(torch.cat([a, b[None]]) for a, b in zip(curvature, (step, fall), strict=True)))
            curvature = curvature.last(REMEMBERED)
        here, now, n_made = there, found, n_made + 1
    return Climbed(here, curvature if n_made else Curvature.empty(here), began, now)


def natively_ascended(
    start: Tensor, size: tuple[int, int], rows: Tensor, draws: Draws, curvature: Curvature, highest: float, prior: float
) -> Climbed:
    """The same as `ascended`, but for rounding, in one call of native code."""
    numbers = {"n_steps": STEPS, "halvings": HALVINGS, "remembered": REMEMBERED, "first": FIRST, "highest": highest}
    numbers |= {"least": LEAST, "largest": LARGEST, "enough": ENOUGH, "prior": prior}
    found = native_averages.climb(start, size, rows, draws, curvature, **numbers)
    pairs = Curvature(*found.pairs).last(REMEMBERED) if found.made else Curvature.empty(start)
    return Climbed(found.theta, pairs, found.began, Height(found.value, found.gradient, found.share))
