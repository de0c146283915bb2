"""The dynamics of the paper's experiments against what the authors' program does, written out step by step.

The program divides the gradient of the energy by the number of chains B and leaves the noise as it is. Its versions
differ in how a proposal of adjusted Gibbs-Langevin is tested. What is written here follows the equations in the paper
and what is known of the program, not its code: K steps in a loop, proposals by their whole densities.
"""

import math

import pytest
import torch
from torch.nn.functional import softplus

from grbm import GRBM, FitOptions, Gibbs, GibbsLangevin, Langevin, ModifiedCD, TrainState, fit
from grbm.core.randomness import Blocks, generator
from grbm.core.schedules import cosine
from grbm.data.mixtures import MIXTURES
from grbm.fitting.recipe import SamplerConfig
from grbm.model import Base
from grbm.runs.paper import configure
from grbm.samplers import run_chains
from tests.helpers import assert_standard

B, K, T = 8, 5, 6  # rows of a batch, inner steps, steps of a chain
CHAINS = 40_000


class Program:
    """Chains (v, h) of the program under a machine, all of them at once, at the temperature of a batch of B."""

    def __init__(self, model: GRBM, step_size: float, version: str, seed: int = 0) -> None:
        self.W, self.b, self.mu, self.var = (x.detach().double() for x in (model.W, model.b, model.mu, model.var))
        self.first, self.version, self.rng = step_size * self.var.mean(), version, generator(seed, "program")

    def logits(self, v):
        return v / self.var @ self.W + self.b

    def energy(self, v, h):
        return 0.5 * ((v - self.mu) ** 2 / self.var).sum(1) - (v / self.var * (h @ self.W.T)).sum(1) - h @ self.b

    def free_energy(self, v):
        return 0.5 * ((v - self.mu) ** 2 / self.var).sum(1) - softplus(self.logits(v)).sum(1)

    def log_p(self, h, v):
        return (h * self.logits(v) - softplus(self.logits(v))).sum(1)

    def hidden(self, v):
        return torch.bernoulli(self.logits(v).sigmoid(), generator=self.rng)

    def noise(self, v):
        return torch.randn(v.shape, generator=self.rng, dtype=torch.float64)

    def gibbs_langevin(self, v, h, adjusted: bool):
        steps, old = [self.first * cosine(k, K) for k in range(K)], v
        for alpha in steps:
            v = v - alpha / B * (v - self.mu - h @ self.W.T) / self.var + (2 * alpha).sqrt() * self.noise(v)
        new_h = self.hidden(v)
        if not adjusted:
            return v, new_h, torch.ones(len(v), dtype=torch.float64)

        def log_q(to, start, h):  # of K linear Gaussian steps: mean and variance carried through them
            mean, variance = start, torch.zeros_like(self.var)
            for alpha in steps:
                mean = mean - alpha / B * (mean - self.mu - h @ self.W.T) / self.var
                variance = variance * (1 - alpha / (B * self.var)) ** 2 + 2 * alpha
            return (-0.5 * (to - mean) ** 2 / variance - 0.5 * (2 * math.pi * variance).log()).sum(1)

        log_a = log_q(old, v, new_h) - log_q(v, old, h)
        if self.version == "paper-time-program":
            log_a += self.free_energy(old) - self.free_energy(v)
        else:
            log_a += (self.energy(old, h) - self.energy(v, new_h)) / B + self.log_p(h, old) - self.log_p(new_h, v)
        return self.taken(log_a, old, h, v, new_h)

    def langevin(self, v, h, t, adjusted: bool):
        alpha = self.first * cosine(t, T)

        def drift(x):
            return x - alpha / B * (x - self.mu - self.logits(x).sigmoid() @ self.W.T) / self.var

        new = drift(v) + (2 * alpha).sqrt() * self.noise(v)
        new_h = self.hidden(new)
        if not adjusted:
            return new, new_h, torch.ones(len(v), dtype=torch.float64)
        log_a = (self.free_energy(v) - self.free_energy(new)) / B
        log_a += (((new - drift(v)) ** 2).sum(1) - ((v - drift(new)) ** 2).sum(1)) / (4 * alpha)
        return self.taken(log_a, v, h, new, new_h)

    def taken(self, log_a, v, h, new_v, new_h):
        probability = log_a.clamp_max(0).exp()
        yes = (torch.rand(len(v), generator=self.rng, dtype=torch.float64) < probability)[:, None]
        return torch.where(yes, new_v, v), torch.where(yes, new_h, h), probability


def machines() -> dict[str, GRBM]:
    """Weights as they are at the start, and two sets that have learned: in the plane, and of six dimensions."""
    start = GRBM(2, 16, seed=1)
    with torch.no_grad():
        start.W.mul_(3)
    plane, wide = GRBM(2, 24, seed=2), GRBM(6, 12, seed=3)
    rows = torch.randn(400, 6, generator=generator(0)) @ torch.randn(6, 6, generator=generator(1)) / 2
    for model, data in ((plane, MIXTURES["isotropic"].sample(400, seed=0).float()), (wide, rows)):
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.02))
        for _ in fit(state, data, ModifiedCD(Gibbs(), 20), FitOptions(n_updates=300)):
            pass
    return {"start": start, "plane": plane, "wide": wide}


@pytest.fixture(scope="module", name="trained")
def fixture_trained():
    return machines()


@pytest.mark.parametrize("which", ["plane", *(pytest.param(x, marks=pytest.mark.whole) for x in ("start", "wide"))])
@pytest.mark.parametrize(
    ("name", "dynamics"),
    [
        ("gibbs-langevin", "paper-time-program"),
        ("gibbs-langevin adjusted", "paper-time-program"),
        ("gibbs-langevin adjusted", "last-public-program"),
        ("langevin", "last-public-program"),
        ("langevin adjusted", "last-public-program"),
    ],
)
def test_chains_are_those_of_the_program(name, dynamics, which, trained):
    """Acceptance, moments and so gradients agree: 1,120 comparisons in all."""
    model, adjusted = trained[which], name.endswith("adjusted")
    kind = "langevin" if name.startswith("langevin") else "gibbs-langevin"
    row = {"langevin": "table1-langevin", "gibbs-langevin": "table3-adjust0"}[kind] + (
        "-adjusted" * (kind == "langevin")
    )
    config = configure(row, dynamics).sampler  # tested at the temperature that the preset says, proposed at that of B
    at = {"joint": config.joint, "accept_temperature": config.accept_temperature} if adjusted else {}
    n_inner = K if kind == "gibbs-langevin" else None
    step = 2.0 if which == "plane" else 0.5
    chosen = SamplerConfig(
        kind, step_size=step, temperature=float(B), adjust_from=0 if adjusted else None, n_inner=n_inner, **at
    )
    sampler = chosen.build(Base(torch.zeros(model.n_visible), torch.ones(model.n_visible)))
    assert isinstance(sampler, GibbsLangevin | Langevin)
    v = torch.randn(CHAINS, model.n_visible, generator=generator(3))
    walked = run_chains(model.freeze(), sampler, v, T, Blocks(5, 1), burn_in=None)

    program = Program(model, step, dynamics)
    v, accepted = v.double(), []
    h = program.hidden(v)
    for t in range(T):
        if kind == "langevin":
            v, h, probability = program.langevin(v, h, t, adjusted)
        else:
            v, h, probability = program.gibbs_langevin(v, h, adjusted)
        accepted.append(probability)
    ours, theirs = (statistics(x, y) for x, y in ((walked.chains.v.double(), walked.chains.h.double()), (v, h)))
    error = (ours.var(0) / CHAINS + theirs.var(0) / CHAINS).sqrt()
    assert_standard((ours.mean(0) - theirs.mean(0)) / (error + 1e-9), n=5 * (52 + 76 + 96))  # samplers; models
    if adjusted:
        found, expected = walked.accept_prob.double(), torch.stack(accepted).mean(0)
        error = (found.var() / CHAINS + expected.var() / CHAINS).sqrt()
        assert_standard((found.mean() - expected.mean()) / error, n_cases=3 * 3)
        assert 0.001 < found.mean() < 0.999


def statistics(v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """v, v², h and v hᵀ of each chain: what the gradient is made of, as the difference of their means (Eqs. 14-17)."""
    return torch.cat([v, v**2, h, (v[:, :, None] * h[:, None, :]).flatten(1)], 1)


def test_the_tests_of_the_two_versions_are_not_the_same(trained):
    """On learned weights the acceptance rates of the three tests lie far apart, so the tests above can tell them."""
    model = trained["plane"]
    v = MIXTURES["isotropic"].sample(4000, seed=1).float()
    rates = {}
    for test in ({}, {"accept_temperature": 1.0}, {"joint": True}):
        sampler = GibbsLangevin(2.0, adjust_from=0, temperature=float(B), n_inner=K, **test)
        rates[str(test)] = float(run_chains(model.freeze(), sampler, v, T, Blocks(5, 1)).accept_rate)
    found = sorted(rates.values())
    assert found[1] > found[0] + 0.02
    assert found[2] > found[1] + 0.02
