"""Objectives differ only in where their chains start; that is what is tested."""

import pytest
import torch

from grbm import CD, PCD, Annealed, Chains, Gibbs, ModifiedCD, ParallelTempering, PartialGibbs, walk
from grbm.core.randomness import generator
from grbm.learning.objectives import positive
from grbm.samplers.chains import Sampler, StepInfo
from grbm.samplers.moments import Moments
from tests.helpers import assert_standard, exact_chains, random_model, share_z

OBJECTIVES = [
    ModifiedCD(PartialGibbs(0.5), n_steps=4),
    ModifiedCD(Gibbs(), n_steps=4, burn_in=2, n_chains=7, probabilities=True),
    CD(Gibbs(), n_steps=3),
    PCD(Gibbs(), n_steps=2, n_chains=6),
    PCD(ParallelTempering(n_replicas=3), n_steps=2, n_chains=6, probabilities=True),
]


class Still(Sampler):
    """A chain that counts its steps in v and never mixes: it shows where chains started and which states counted."""

    exact = False

    def bind(self, energy, n_steps):
        return lambda chains, t, rng: (Chains(chains.v + 1, chains.h, chains.h_prob), StepInfo())

    def noise(self, energy, n_chains, rng):
        return torch.full((n_chains, energy.n_visible), 1000.0, dtype=energy.W.dtype)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_contract(objective):
    model = random_model(3, 4, 0, dtype=torch.float32)
    data = exact_chains(model, 10, seed=0)[0].float()
    energy = model.freeze()
    first = objective.negative(energy, data, None, generator(1))
    again = objective.negative(energy, data, None, generator(1))
    assert [tuple(x.shape) for x in first.moments] == [(3,), (3,), (4,), (3, 4)]
    assert all(x.dtype == torch.float64 and torch.isfinite(x).all() for x in first.moments)
    assert all(torch.equal(a, b) for a, b in zip(first.moments, again.moments, strict=True))
    objective.negative(energy, data, first.persistent, generator(2))  # takes up what it left


def test_chains_start_where_each_objective_says():
    model = random_model(2, 3, 1)
    data = torch.zeros(5, 2).double()
    energy, rng = model.freeze(), generator(0)
    noise = ModifiedCD(Still(), n_steps=4).negative(energy, data, None, rng)
    assert noise.moments.v.tolist() == [1002.5, 1002.5]  # the mean of 1001..1004: every state counts
    assert noise.persistent is None
    late = ModifiedCD(Still(), n_steps=4, burn_in=2, n_chains=3).negative(energy, data, None, rng)
    assert late.moments.v.tolist() == [1003.5, 1003.5]
    assert len(late.v) == 3
    cd = CD(Still(), n_steps=4).negative(energy, data, None, rng)
    assert cd.moments.v.tolist() == [4.0, 4.0]  # from the data, the last state alone
    pcd = PCD(Still(), n_steps=2, n_chains=3)
    first = pcd.negative(energy, data, None, rng)
    second = pcd.negative(energy, data, first.persistent, rng)
    assert first.moments.v.tolist() == [1001.5, 1001.5]
    assert second.moments.v.tolist() == [1003.5, 1003.5]


def test_chains_restart_with_the_stated_probability():
    model = random_model(2, 3, 1)
    energy, objective = model.freeze(), PCD(Still(), n_steps=1, n_chains=10_000, restart=0.3)
    old = torch.zeros(10_000, 2).double()
    negative = objective.negative(energy, old, old, generator(0))
    fresh = (negative.v[:, 0] == 1001).double()
    assert torch.equal(negative.v[:, 0], 1 + 1000 * fresh)
    assert_standard(share_z(fresh.mean(), 0.3, 10_000))
    for wrong in (1.5, -0.5):
        with pytest.raises(ValueError, match=rf"restart .* {wrong}"):
            PCD(Gibbs(), restart=wrong)


def test_replicas_of_tempered_chains_persist():
    model = random_model(2, 3, 1)
    objective = PCD(ParallelTempering(n_replicas=3), n_steps=2, n_chains=6)
    negative = objective.negative(model.freeze(), torch.zeros(5, 2).double(), None, generator(0))
    assert negative.persistent.shape == (3, 6, 2)


def test_moments_are_those_of_every_state_of_the_walk():
    model = random_model(3, 4, 2)
    energy, data = model.freeze(), torch.zeros(8, 3).double()
    for probabilities in (False, True):
        negative = ModifiedCD(Gibbs(), n_steps=5, probabilities=probabilities).negative(
            energy, data, None, generator(3)
        )
        rng = generator(3)
        chains = Gibbs().start(energy, Gibbs().noise(energy, 8, rng), rng)
        states = [c for _, c, _ in walk(energy, Gibbs(), chains, 5, rng)]
        direct = Moments.of(
            torch.cat([c.v for c in states]), torch.cat([c.h_prob if probabilities else c.h for c in states])
        )
        for a, b in zip(negative.moments, direct, strict=True):
            torch.testing.assert_close(a, b)


def test_the_positive_phase_draws_h_or_keeps_its_probabilities():
    model = random_model(2, 3, 3)
    data, _ = exact_chains(model, 50_000, seed=0)
    drawn = positive(model.freeze(), data, generator(0), probabilities=False).mean()
    mean = positive(model.freeze(), data, generator(0), probabilities=True).mean()
    torch.testing.assert_close(mean.h, model(data).detach().mean(0))
    assert not torch.equal(drawn.h, mean.h)
    p = model(data).detach()
    error = (p * (1 - p)).sum(0).sqrt() / 50_000  # of the mean of independent Bernoulli draws
    assert_standard((drawn.h - mean.h) / error)


def test_annealed_paths_count_by_their_last_state_alone():
    with pytest.raises(ValueError, match="burn_in"):
        ModifiedCD(Annealed(), n_steps=5)
    ModifiedCD(Annealed(), n_steps=5, burn_in=4)
    for objective in (CD, PCD):
        with pytest.raises(ValueError, match="annealed"):
            objective(Annealed())


def test_burn_in_must_leave_something():
    with pytest.raises(ValueError, match="burn_in"):
        ModifiedCD(Gibbs(), n_steps=3, burn_in=3)
