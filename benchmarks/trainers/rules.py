"""What other trainers do in an update: the direction of ascent by parameter name, from a machine and a batch.

Each is checked against enumeration, quadrature or autograd in tests/test_trainers.py. Those of grbm.learning.objectives
are not here: a bench reaches them by `grbm.fit`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grbm import GRBM, Gibbs
from grbm.core.randomness import Blocks, normal
from grbm.model import Energy
from grbm.samplers import Sampler, run_chains
from grbm.samplers.annealing import importance, systematic
from grbm.samplers.moments import Moments, ascent, centre, gradient
from grbm.samplers.sampling import noise

Ascent = dict[str, Tensor]
Rule = Callable[[GRBM, Tensor, Blocks], Ascent]  # of a machine, a batch (B, N), and an update's random numbers


def at_data(energy: Energy, batch: Tensor) -> Moments:
    """Moments with hidden probabilities."""
    return Moments.of(batch, energy.hidden_logits(batch).sigmoid())


@dataclass
class Chains:
    """Persistent chains, which begin as noise."""

    sampler: Sampler
    n_steps: int
    n_chains: int
    v: Tensor | None = None

    def moments(self, energy: Energy, rng: Blocks) -> Moments:
        """The mean over the next steps."""
        start = noise(self.sampler, energy, self.n_chains, rng) if self.v is None else self.v
        walked = run_chains(energy, self.sampler, start, self.n_steps, rng, burn_in=0, probabilities=True)
        assert walked.sums is not None
        self.v, self.last = self.sampler.persistent(walked.chains), walked.chains.v
        if walked.swaps is not None:
            self.sampler = self.sampler.adapted(energy, walked.swaps.rate().to(energy.W))
        return walked.sums.mean()


@dataclass
class Enhanced:
    """The enhanced gradient of Cho, Raiko & Ilin 2011: centred on the average of the means of data and of model.

    It is the same whichever state of a hidden unit is called 1.
    """

    chains: Chains

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        energy = model.freeze()
        return enhanced(energy, at_data(energy, batch), self.chains.moments(energy, rng))


def enhanced(energy: Energy, data: Moments, model: Moments) -> Ascent:
    mean_v, mean_h = (0.5 * (a + b).to(energy.W) for a, b in ((data.v, model.v), (data.h, model.h)))
    return centre(energy, gradient(energy, data, model), mean_v, mean_h)


@dataclass
class Sparse:
    """Another rule, and Lee, Ekanadham & Ng 2008: −λ Σ_j (ρ − mean p_j)² is climbed by the biases alone."""

    rule: Rule
    target: float = 0.03
    weight: float = 3.0

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        found = self.rule(model, batch, rng)
        return {**found, "b": found["b"] + self.weight * sparsity(model.freeze(), batch, self.target)}


def sparsity(energy: Energy, v: Tensor, target: float) -> Tensor:
    """∂/∂b of −Σ_j (ρ − mean p_j)² on rows v: (M,)."""
    p = energy.hidden_logits(v).sigmoid()
    return 2 * (target - p.mean(0)) * (p * (1 - p)).mean(0)


@dataclass
class Frozen:
    """Stochastic difference of convex functions (Upadhya & Sastry 2021): data enter every ``inner`` updates only.

    In natural parameters the log-likelihood is g − f, both convex; an outer step holds the slope of g, which is the
    moments at the data, and climbs. Chains begin at the batch and go on through the inner steps.
    """

    inner: int = 5
    n_steps: int = 1
    data: Moments | None = None
    v: Tensor | None = None
    done: int = 0

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        energy = model.freeze()
        if self.done % self.inner == 0:
            self.data, self.v = at_data(energy, batch), batch
        assert self.data is not None
        assert self.v is not None
        walked = run_chains(energy, Gibbs(), self.v, self.n_steps, rng, burn_in=self.n_steps - 1, probabilities=True)
        assert walked.sums is not None
        self.v, self.done = walked.chains.v, self.done + 1
        return gradient(energy, self.data, walked.sums.mean())


def shared_variance(rule: Rule) -> Rule:
    """One σ for all visible units, as in the first programs: log σ² moves by its mean ascent."""

    def shared(model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        found = rule(model, batch, rng)
        return {**found, "log_var": found["log_var"].mean().expand_as(found["log_var"])}

    return shared


@dataclass
class ScoreMatching:
    """Hyvärinen 2005: downhill of Σ_i w_i (½ψ_i² + ∂ψ_i/∂v_i) with ψ = −∂F/∂v, which needs no log Z; no chains.

    Weights w_i (N,), such as the columns' variances, keep narrow units from having all the say.
    """

    weights: Tensor

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        del rng
        energy, v, w = model.freeze(), batch, self.weights
        W, var = energy.W, energy.var
        p = energy.hidden_logits(v).sigmoid()
        q = p * (1 - p)
        psi = (energy.mu + p @ W.T - v) / var
        lengths = (w / var.square()) @ W.square()
        D = q * ((w * psi / var) @ W) + q * (1 - 2 * p) * lengths  # ∂/∂logit
        n, mean_q = len(v), q.mean(0)
        vD = (v / var).T @ D / n
        own = -psi.square().mean(0) + 1 / var - 2 * (W.square() @ mean_q) / var.square()
        downhill = {
            "W": (w * psi / var).T @ p / n + vD + 2 * W * (w / var.square())[:, None] * mean_q,
            "b": D.mean(0),
            "mu": (w * psi / var).mean(0),
            "log_var": w * own - (W * vD).sum(1),
        }
        return {name: -x for name, x in downhill.items()}


@dataclass
class Denoising:
    """Denoising score matching (Vincent 2011): downhill of ½ Σ_i τ_i² (ψ_i(ṽ) + ξ_i/τ_i)² at ṽ = v + τξ.

    ψ(ṽ) is to be (v − ṽ)/τ². What is learned is the density of rows with this noise, whose deviations τ (N,) fall from
    the first to the last share of those of the columns.
    """

    columns: Tensor  # deviations (N,)
    n_updates: int
    first: float = 0.3
    last: float = 0.1
    done: int = 0

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        share = self.first * (self.last / self.first) ** (self.done / max(1, self.n_updates - 1))
        self.done += 1
        return denoising(model, batch, normal(batch.shape, batch, rng), share * self.columns)


def denoising(model: GRBM, batch: Tensor, xi: Tensor, tau: Tensor) -> Ascent:
    """The direction for noise ξ ~ N(0, 1) (B, N) of deviations τ (N,)."""
    with torch.enable_grad():
        psi = -model.free_energy_grad(batch + tau * xi)
        loss = 0.5 * (tau * psi + xi).square().sum(1).mean()
        names, parameters = zip(*model.named_parameters(), strict=True)
        found = torch.autograd.grad(loss, parameters)
    return {name: -g for name, g in zip(names, found, strict=True)}


@dataclass
class MeanField:
    """Mean-field statistics in place of chains: of order 2 (TAP: Gabrié et al. 2015, Tramel et al. 2018) or 1.

    Magnetisations persist from update to update, and take a few damped steps to their fixed point at each. Fixed points
    count alike, or ``weighted`` by exp(−Γ), as parts of one log Z; each as often as magnetisations are at it.
    """

    order: int = 2
    weighted: bool = False
    n_iterations: int = 5
    n_points: int = 64
    m: Tensor | None = None  # means of hidden units (n_points, M)

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        energy = model.freeze()
        if self.m is None:
            self.m = energy.hidden_logits(batch[: self.n_points]).sigmoid()
        for _ in range(self.n_iterations):
            self.m = iterate(energy, self.m, self.order)
        data = ascent(energy, at_data(energy, batch))
        # ascent of moments leaves out what cancels between two phases; here it does not
        data["mu"] = data["mu"] - energy.mu / energy.var
        data["log_var"] = data["log_var"] + 0.5 * energy.mu.square() / energy.var
        log_z = log_z_of(energy, self.m, self.order) if self.weighted else self.m.new_zeros(len(self.m))
        at_model = statistics(energy, self.m, self.order, log_z.softmax(0))
        return {name: data[name] - at_model[name] for name in data}


LARGEST = 10.0  # variance of a visible unit, in units of σ²: where expansions have failed long since


def spread(energy: Energy, m: Tensor, order: int) -> Tensor:
    """The variance c of visible units at means m (..., M) of hidden ones: (..., N)."""
    var = energy.var
    if order == 1:
        return var.expand(*m.shape[:-1], -1)
    squares = energy.W.square() / var.square()[:, None]
    room = (1 / var - (m * (1 - m)) @ squares.T).clamp_min(0)
    return torch.minimum(torch.maximum(1 / room, var), LARGEST * var)


def iterate(energy: Energy, m: Tensor, order: int, damping: float = 0.5) -> Tensor:
    """A damped step to the fixed point."""
    logits = energy.hidden_logits(energy.visible_mean(m))
    if order == 2:
        squares = energy.W.square() / energy.var.square()[:, None]
        logits = logits + (0.5 - m) * (spread(energy, m, order) @ squares)
    return damping * m + (1 - damping) * logits.sigmoid()


def log_z_of(energy: Energy, m: Tensor, order: int) -> Tensor:
    """−Γ, what log Z is to that order: (...,)."""
    a, c, kappa = energy.visible_mean(m), spread(energy, m, order), m * (1 - m)
    J = energy.W / energy.var[:, None]
    visible = ((a - energy.mu).square() + c) / (2 * energy.var) - 0.5 * (2 * torch.pi * torch.e * c).log()
    hidden = torch.xlogy(m, m) + torch.xlogy(1 - m, 1 - m) - energy.b * m
    value = visible.sum(-1) + hidden.sum(-1) - ((a @ J) * m).sum(-1)
    return -(value - 0.5 * ((c @ J.square()) * kappa).sum(-1) if order == 2 else value)


def statistics(energy: Energy, m: Tensor, order: int, share: Tensor) -> Ascent:
    """∂(−Γ)/∂θ at fixed points m (P, M), the mean by their shares (P,)."""
    a, c, kappa, W, var = energy.visible_mean(m), spread(energy, m, order), m * (1 - m), energy.W, energy.var
    am, ck = (share * a.T) @ m, (share * c.T) @ kappa
    found = {
        "W": am / var[:, None],
        "b": share @ m,
        "mu": share @ (a - energy.mu) / var,
        "log_var": share @ ((a - energy.mu).square() + c) / (2 * var) - (W * am).sum(1) / var,
    }
    if order == 2:
        found["W"] = found["W"] + W * ck / var.square()[:, None]
        found["log_var"] = found["log_var"] - (W.square() * ck).sum(1) / var.square()
    return found


@dataclass
class Weighted:
    """Persistent walkers that carry weights (Carbone et al. 2023), with Gibbs steps: A += F_old(v) − F_new(v).

    The weighted mean is that of the machine as it is now, however fast it moved, and log Z comes along.
    """

    n_walkers: int
    n_steps: int = 5
    least: float = 0.5  # share of walkers that count, below which they are resampled
    v: Tensor | None = None
    log_weight: Tensor = field(default_factory=lambda: torch.zeros(0))
    gained: float = 0.0  # log Z since the start, up to the last resampling
    before: Energy | None = None

    def __call__(self, model: GRBM, batch: Tensor, rng: Blocks) -> Ascent:
        energy = model.freeze()
        return gradient(energy, at_data(energy, batch), self.moments(energy, rng))

    def moments(self, energy: Energy, rng: Blocks) -> Moments:
        """Weighted means under ``energy``, after steps in it."""
        if self.v is None or self.before is None:
            self.v = run_chains(energy, Gibbs(), noise(Gibbs(), energy, self.n_walkers, rng), 200, rng).chains.v
            self.log_weight = torch.zeros(self.n_walkers, dtype=torch.float64)
        else:
            self.log_weight += (self.before.free_energy(self.v) - energy.free_energy(self.v)).double()
            if float(importance(self.log_weight)[1]) < self.least * self.n_walkers:
                self.gained, self.v = self.log_z(), self.v[systematic(self.log_weight, rng)]
                self.log_weight = torch.zeros_like(self.log_weight)
            self.v = run_chains(energy, Gibbs(), self.v, self.n_steps, rng).chains.v
        self.before = energy
        weight = self.log_weight.softmax(0).to(self.v)[:, None]
        h = energy.hidden_logits(self.v).sigmoid()
        sums = ((weight * x).sum(0) for x in (self.v, self.v.square(), h))
        return Moments(*sums, (weight * self.v).T @ h)

    def log_z(self) -> float:
        """log Z now less log Z at the start."""
        return self.gained + float(importance(self.log_weight)[0])
