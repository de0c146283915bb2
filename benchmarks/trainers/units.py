"""Machines with other hidden units, as models to set a GRBM beside: a page each, learned and scored alike.

All are energies of whitened rows v (..., N), known up to log Z by their free energy F, and learned by persistent chains
of Hamiltonian Monte Carlo (Duane et al. 1987) on F, as mcRBM and mPoT were; the papers of rectified and spike-and-slab
units have Gibbs steps in its place. log Z is annealed from both ends.
"""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from grbm.core.randomness import generator
from grbm.core.schedules import cosine
from grbm.learning.bennett import bennett
from grbm.samplers.annealing import importance

FreeEnergy = Callable[[Tensor], Tensor]
BOUND = 0.98  # of what makes a machine's mass finite
DECAY = 0.999  # of the average of the parameters


class Machine(nn.Module):
    """What the machines have in common: N visible units, a mean and a place to stay in."""

    def __init__(self, n_visible: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(n_visible))

    def free_energy(self, v: Tensor) -> Tensor:
        """−log of the unnormalised density, per row: (..., N) -> (...)."""
        raise NotImplementedError

    def restrain(self) -> None:
        """Bring the parameters back to where the mass is finite."""


def _spread(*shape: int, size: float, seed: int, part: str) -> nn.Parameter:
    return nn.Parameter(size * torch.randn(*shape, generator=generator(seed, part)))


class Rectified(Machine):
    """Hidden units h ≥ 0 with ½h² (the exact cousin of Nair & Hinton 2010's noisy rectified units).

    h_j | v is N(ℓ_j, 1) above 0, ℓ = Wᵀ(v/σ²) + b, and F(v) = ½(v − μ)²/σ² − Σ_j [½ℓ_j² + log Φ(ℓ_j) + ½ log 2π].
    """

    def __init__(self, n_visible: int, n_hidden: int, seed: int = 0) -> None:
        super().__init__(n_visible)
        self.W = _spread(n_visible, n_hidden, size=0.3 / n_visible**0.5, seed=seed, part="W")
        self.b, self.log_var = nn.Parameter(-torch.ones(n_hidden)), nn.Parameter(torch.zeros(n_visible))

    def free_energy(self, v: Tensor) -> Tensor:
        var = self.log_var.exp()
        logits = (v / var) @ self.W + self.b
        hidden = 0.5 * logits.square() + torch.special.log_ndtr(logits) + 0.5 * math.log(2 * math.pi)
        return 0.5 * ((v - self.mu).square() / var).sum(-1) - hidden.sum(-1)

    def restrain(self) -> None:
        norm = float(torch.linalg.matrix_norm(self.W / (0.5 * self.log_var).exp()[:, None], 2))
        self.W.mul_(min(1.0, BOUND / norm))


class SpikeSlab(Machine):
    """Binary h and real s (Courville, Bergstra & Bengio 2011): components differ in their covariance.

    F(v) = ½ Σ λ_i (v_i − μ_i)² − Σ_j softplus(b_j + ν_j W_jᵀv + (W_jᵀv)²/(2α_j)).
    """

    def __init__(self, n_visible: int, n_hidden: int, seed: int = 0) -> None:
        super().__init__(n_visible)
        self.W = _spread(n_visible, n_hidden, size=0.3 / n_visible**0.5, seed=seed, part="W")
        self.b, self.nu = nn.Parameter(-torch.ones(n_hidden)), nn.Parameter(torch.zeros(n_hidden))
        self.log_alpha, self.log_precision = (nn.Parameter(torch.zeros(n)) for n in (n_hidden, n_visible))

    def free_energy(self, v: Tensor) -> Tensor:
        drive = v @ self.W
        logits = self.b + self.nu * drive + drive.square() / (2 * self.log_alpha.exp())
        return 0.5 * (self.log_precision.exp() * (v - self.mu).square()).sum(-1) - softplus(logits).sum(-1)

    def restrain(self) -> None:
        scaled = self.W * (-0.5 * self.log_precision).exp()[:, None] * (-0.5 * self.log_alpha).exp()
        self.W.mul_(min(1.0, BOUND / float(torch.linalg.matrix_norm(scaled, 2))))


class Products(Machine):
    """Products of Student's t with mean units (mPoT: Ranzato, Mnih & Hinton 2010): squared outputs set the variance.

    F(v) = ½(v − μ)²/σ² − Σ_j softplus(ℓ_j) + γ Σ_f log(1 + ½(C_fᵀv)²).
    """

    def __init__(self, n_visible: int, n_hidden: int, seed: int = 0) -> None:
        super().__init__(n_visible)
        n_mean = n_hidden // 4
        self.W = _spread(n_visible, n_mean, size=0.1 / n_visible**0.5, seed=seed, part="W")
        self.C = _spread(n_visible, n_hidden - n_mean, size=0.3 / n_visible**0.5, seed=seed, part="C")
        self.b, self.log_var = nn.Parameter(-torch.ones(n_mean)), nn.Parameter(torch.zeros(n_visible))
        self.log_gamma = nn.Parameter(torch.zeros(n_hidden - n_mean))

    def free_energy(self, v: Tensor) -> Tensor:
        var = self.log_var.exp()
        far = (0.5 * (v @ self.C).square()).log1p()
        mean = 0.5 * ((v - self.mu).square() / var).sum(-1) - softplus((v / var) @ self.W + self.b).sum(-1)
        return mean + (self.log_gamma.exp() * far).sum(-1)


class Covariance(Machine):
    """Mean and covariance units (mcRBM: Ranzato & Hinton 2010), of rows brought to one length for the latter.

    As published the columns of C keep one norm, and those of P a sum of 1.

    F(v) = ½(v − μ)²/σ² − Σ_j softplus(ℓ_j) − Σ_k softplus(d_k − ½ Σ_f P_fk (C_fᵀṽ)²), ṽ = v/√(mean v² + ½), P ≥ 0.
    """

    def __init__(self, n_visible: int, n_hidden: int, seed: int = 0) -> None:
        super().__init__(n_visible)
        n_mean = n_hidden // 4
        n_factors = n_hidden - n_mean
        self.W = _spread(n_visible, n_mean, size=0.1 / n_visible**0.5, seed=seed, part="W")
        self.C = _spread(n_visible, n_factors, size=0.3, seed=seed, part="C")
        self.P = nn.Parameter(torch.eye(n_factors))
        self.b, self.d = nn.Parameter(-torch.ones(n_mean)), nn.Parameter(2 * torch.ones(n_factors))
        self.log_var = nn.Parameter(torch.zeros(n_visible))

    def free_energy(self, v: Tensor) -> Tensor:
        var = self.log_var.exp()
        even = v / (v.square().mean(-1, keepdim=True) + 0.5).sqrt()
        mean = 0.5 * ((v - self.mu).square() / var).sum(-1) - softplus((v / var) @ self.W + self.b).sum(-1)
        return mean - softplus(self.d - 0.5 * (even @ self.C).square() @ self.P).sum(-1)

    def restrain(self) -> None:
        self.P.clamp_(min=0)
        self.P.div_(self.P.sum(0).clamp_min(1e-6))
        lengths = self.C.norm(dim=0).clamp_min(1e-6)
        self.C.mul_(lengths.mean() / lengths)


MACHINES: dict[str, type[Machine]] = {
    "rectified units": Rectified,
    "spike and slab": SpikeSlab,
    "mPoT": Products,
    "mcRBM": Covariance,
}


class Moved(NamedTuple):
    v: Tensor
    accept_rate: float


def slope(free_energy: FreeEnergy, v: Tensor) -> Tensor:
    """∂F/∂v."""
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        return torch.autograd.grad(free_energy(v).sum(), v)[0]


@torch.no_grad()
def hamiltonian(free_energy: FreeEnergy, v: Tensor, step: float, n_leaps: int, rng: torch.Generator) -> Moved:
    """A trajectory of leapfrog steps for each row, taken or not by the Metropolis test: leaves e^(−F) as it is."""
    p = torch.randn(v.shape, generator=rng, dtype=v.dtype)
    before = free_energy(v) + 0.5 * p.square().sum(-1)
    new, kick = v, slope(free_energy, v)
    for _ in range(n_leaps):
        p = p - 0.5 * step * kick
        new = new + step * p
        kick = slope(free_energy, new)
        p = p - 0.5 * step * kick
    log_ratio = before - free_energy(new) - 0.5 * p.square().sum(-1)
    taken = torch.rand(len(v), generator=rng, dtype=v.dtype).log() < log_ratio
    return Moved(torch.where(taken[:, None], new, v), float(log_ratio.exp().clamp(max=1).mean()))


def tuned(step: float, accept_rate: float) -> float:
    """The step a little longer where more than nine in ten are taken, else shorter."""
    return min(1.02 * step, 1.0) if accept_rate > 0.9 else max(0.98 * step, 1e-3)


@torch.no_grad()
def learn(
    model: Machine,
    rows: Tensor,
    n_updates: int,
    *,
    rate: float = 0.003,
    batch: int = 500,
    n_leaps: int = 10,
    seed: int = 0,
) -> Machine:
    """Persistent chains, a trajectory an update, and Adam at a rate that falls by a cosine; the average is left."""
    rng, step = generator(seed, "chains"), 0.1
    chains = rows[torch.randint(len(rows), (batch,), generator=rng)]
    optimizer, average = torch.optim.Adam(model.parameters(), lr=rate), copy.deepcopy(model)
    for update in range(n_updates):
        moved = hamiltonian(model.free_energy, chains, step, n_leaps, rng)
        chains, step = moved.v, tuned(step, moved.accept_rate)
        some = rows[torch.randint(len(rows), (batch,), generator=rng)]
        for group in optimizer.param_groups:
            group["lr"] = rate * cosine(update, n_updates)
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = model.free_energy(some).mean() - model.free_energy(chains).mean()
            torch.autograd.backward([loss])
        optimizer.step()
        model.restrain()
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, max(1 - DECAY, 9 / (update + 10)))
    model.load_state_dict(average.state_dict())
    return model


class Ends(NamedTuple):
    """log Z by both ends together (Bennett), by either, and standard errors."""

    log_z: float
    error: float
    lower: float
    upper: float
    lower_error: float
    upper_error: float

    @property
    def converged(self) -> bool:
        """Whether the ends agree within three standard errors."""
        both = math.hypot(self.lower_error, self.upper_error)
        return both <= 0.3 and abs(self.upper - self.lower) <= 3 * both


@torch.no_grad()
def log_z(
    model: Machine, rows: Tensor, *, n_steps: int = 1000, n_chains: int = 200, settling: int = 200, seed: int = 0
) -> Ends:
    """Annealed from N(0, 1) to the machine, and back from chains that began at ``rows``, float64."""
    model, N, rng = model.double(), rows.shape[1], generator(seed, "ais")

    def at(beta: float) -> FreeEnergy:
        return lambda v: (1 - beta) * 0.5 * v.square().sum(-1) + beta * model.free_energy(v)

    def gap(v: Tensor) -> Tensor:
        return model.free_energy(v) - 0.5 * v.square().sum(-1)

    betas = [(k / n_steps) ** 1.5 for k in range(n_steps + 1)]
    start = 0.5 * N * math.log(2 * math.pi)
    found, weights, step = [], [], 0.3
    for back in (False, True):
        v = torch.randn(n_chains, N, generator=rng, dtype=torch.float64)
        if back:
            v = rows[torch.arange(n_chains) * len(rows) // n_chains].double()
            for _ in range(settling):
                moved = hamiltonian(model.free_energy, v, step, 5, rng)
                v, step = moved.v, tuned(step, moved.accept_rate)
        weight = torch.zeros(n_chains, dtype=torch.float64)
        path = betas[::-1] if back else betas
        for first, second in pairwise(path):
            weight += (first - second) * gap(v)
            moved = hamiltonian(at(second), v, step, 5, rng)
            v, step = moved.v, tuned(step, moved.accept_rate)
        weights.append(weight)
        log_mean, n_effective = (float(x) for x in importance(weight))
        found.append((log_mean, math.sqrt(max(0.0, 1 / n_effective - 1 / n_chains))))
    (lower, lower_error), (upper, upper_error) = found
    both, error = bennett(weights[0], -weights[1])
    return Ends(start + both, error, start + lower, start - upper, lower_error, upper_error)
