"""Rounds of quasi-Newton steps that lead nowhere are taken back."""

import copy
import math

import numpy as np
import pytest
import torch

import grbm.learning.training
from grbm import GRBM, PCD, FitOptions, GaussianBernoulliRBM, Gibbs, TrainState, fit
from grbm.learning.quasi_newton import Draws, height
from grbm.model.reference import Reference
from grbm.samplers import GlobalMoves

OPTIONS = FitOptions(12, 20, rounds=6, average_decay=0.9)


def clusters(n: int, seed: int) -> torch.Tensor:
    """Two in the plane."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 2, generator=g) * 0.4 + torch.randint(0, 2, (n, 1), generator=g) * 2 - 1


def begun() -> TrainState:
    model = GRBM(2, 6, seed=0)
    return TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed=1)


JUMPS = GlobalMoves(Reference(torch.ones(1), torch.zeros(1, 2), 2 * torch.eye(2)[None]), 2)


def learn(state, sampler=JUMPS):
    return list(fit(state, clusters(200, 0), PCD(sampler, 2, 32), OPTIONS))


def broken(which: int, how: float):
    """`climb` whose round number ``which`` ends at weights that were multiplied."""
    real, calls = grbm.learning.training.climb, []

    def climb(model, *args, **options):
        calls.append(1)
        found = real(model, *args, **options)
        if len(calls) == which:
            with torch.no_grad():
                model.mu.add_(how)
        return found

    return climb


@pytest.mark.parametrize(
    ("how", "sampler"), [(30.0, JUMPS), pytest.param(math.nan, JUMPS, marks=pytest.mark.whole), (math.inf, Gibbs())]
)
def test_a_round_that_leads_down_or_out_is_taken_back(how, sampler, monkeypatch):
    assert len(learn(begun(), sampler)) == 12
    monkeypatch.setattr(grbm.learning.training, "climb", broken(4, how))
    state, kept = begun(), {}
    for metrics in fit(state, clusters(200, 0), PCD(sampler, 2, 32), OPTIONS):
        kept[state.update] = [copy.deepcopy(m.state_dict()) for m in (state.model, state.average)], state.curvature
        assert metrics.negative.v.isfinite().all()
    assert sorted(kept) == list(range(1, 13)), "learning goes on"
    for after, before in zip(kept[10][0], kept[9][0], strict=True):
        assert all(torch.equal(after[name], before[name]) for name in before)
    assert kept[10][1] is kept[9][1]
    assert not torch.equal(kept[11][0][0]["W"], kept[10][0][0]["W"])


def test_draws_that_serve_the_next_round_are_those_that_it_would_make():
    one, two = begun(), begun()
    learn(one)
    for _ in fit(two, clusters(200, 0), PCD(JUMPS, 2, 32), OPTIONS):
        two.drawn = None
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_energies_without_digits_are_worth_nothing():
    """Far from all rows every state has the same energy, rounded, and any height could come of it."""
    model = GRBM(2, 3, dtype=torch.float64)
    rows = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draws = Draws(rows, torch.zeros(50).double())
    assert height(model.freeze(), rows, draws).share > 0
    with torch.no_grad():
        model.mu.fill_(1e60)
    found = height(model.freeze(), rows, draws)
    assert (found.value, found.share) == (-math.inf, 0)


@pytest.mark.parametrize("share", [0.1, 0.0])
def test_an_estimator_never_ends_out_of_the_finite_numbers(share, monkeypatch):
    monkeypatch.setattr(grbm.learning.training, "climb", broken(2, math.nan))
    X = clusters(300, 0).numpy()
    fitted = GaussianBernoulliRBM(8, n_iter=4, n_rounds=5, validation_fraction=share, random_state=0).fit(X)
    assert np.isfinite(fitted.score_samples(X)).all()
    assert np.isfinite(fitted.validation_scores_).all()


def test_rounds_end_when_held_out_rows_are_no_longer_described_better(monkeypatch):
    """After so many without a better score; where no rounds follow, nothing ends."""
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"whiten": 40, "by column": 40})
    monkeypatch.setattr("grbm.fitting.recipe.ROUNDS", 12)
    monkeypatch.setattr("grbm.fitting.recipe.PATIENCE", 2)
    X = np.random.default_rng(0).normal(size=(300, 2))
    fitted = GaussianBernoulliRBM(8, random_state=0).fit(X)
    assert 2 <= fitted.n_updates_ - 40 < 12
    scores = fitted.validation_scores_
    assert max(scores[-2:]) <= max(scores[:-2])
    whole = GaussianBernoulliRBM(8, random_state=0, n_rounds=0).fit(X)
    assert whole.n_updates_ == 40


def test_held_out_rows_are_looked_at_five_times_before_rounds_and_after_each_of_them():
    """Alone, stochastic updates are looked at forty times; two looks are ten updates apart at least."""
    looks = [k for k in range(1, 306) if FitOptions(305, rounds=5).is_look(k)]
    assert looks == [60, 120, 180, 240, *range(300, 306)]
    assert sum(FitOptions(4000).is_look(k) for k in range(1, 4001)) == 40
    assert [k for k in range(1, 101) if FitOptions(100).is_look(k)] == list(range(10, 101, 10))
