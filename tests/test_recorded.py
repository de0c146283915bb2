"""An update that is recorded and replayed: the same as made step by step."""

import copy

import pytest
import torch

from grbm import CD, PCD, FitOptions, Gibbs, GibbsLangevin, ModifiedCD, TrainState, fit, train_step
from grbm.core.distributed import ALONE
from grbm.learning import recorded, training
from grbm.learning.descent import descend
from grbm.model.censoring import Censoring
from tests.helpers import CUDA, DEVICE, random_model

N, M, ROWS = 6, 7, 40
OBJECTIVES = [
    ModifiedCD(GibbsLangevin(0.04), 5, burn_in=1),
    ModifiedCD(GibbsLangevin(0.3, adjust_from=2), 4, n_chains=12),
    CD(Gibbs(), 2, probabilities=True),
    PCD(Gibbs(), 3, n_chains=16, restart=0.2),
]
OPTIONS = FitOptions(n_updates=60, batch_size=8, centred=True, average_decay=0.9)
SPECTRAL = FitOptions(n_updates=60, batch_size=8, centred=True, average_decay=0.9, spectral_norm=0.3, clip_norm=1.0)


def begun(censored=False):
    model = random_model(N, M, 0, dtype=torch.float32)
    if censored:
        model.censoring = Censoring(torch.full((N,), -0.5), torch.full((N,), torch.inf))
    model = model.to(DEVICE)
    return TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed=3)


def rows_of():
    return torch.randn(ROWS, N, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def same(one, two):
    pairs = [(one.model, two.model), (one.average, two.average)]
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x.parameters(), y.parameters(), strict=True))


@pytest.mark.parametrize("censored", [False, True])
@pytest.mark.parametrize("options", [OPTIONS, SPECTRAL], ids=["plain", "spectral"])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_a_replayed_update_is_the_update(objective, options, censored, monkeypatch):
    """Bit for bit, with its random numbers, rates, average and chains; on a GPU from a CUDA graph."""
    rows, plain, replayed = rows_of().clamp(min=-0.5 if censored else -9), begun(censored), begun(censored)
    monkeypatch.setattr(training, "can_record", lambda *given: False)
    one = [metrics.grad_norm for metrics in fit(plain, rows, objective, options)]
    monkeypatch.setattr(training, "can_record", lambda *given: True)
    n_replays = []
    record = recorded.Recorded._recording

    def counted(self, run):
        again = record(self, run)
        return lambda: (n_replays.append(1), again())

    monkeypatch.setattr(recorded.Recorded, "_recording", counted)
    monkeypatch.setattr("grbm.learning.recorded.looks", lambda update, like: update % 25 == 0)
    two = [metrics.grad_norm for metrics in fit(replayed, rows, objective, options)]
    assert len(n_replays) == 59  # all but the first, which compiles
    assert plain.update == replayed.update == 60
    assert torch.equal(torch.stack(one), torch.stack(two))
    assert same(plain, replayed)
    if objective.persists:
        assert torch.equal(plain.persistent, replayed.persistent)


def test_a_recording_does_not_outlive_what_it_reads(monkeypatch):
    """A model, average or chains that were replaced between updates are those of the next ones."""
    objective, rows = PCD(Gibbs(), 2, n_chains=8), rows_of()
    states = begun(), begun()
    for state, records in zip(states, (False, True), strict=True):
        monkeypatch.setattr(training, "can_record", lambda *given, records=records: records)
        monkeypatch.setattr("grbm.learning.recorded.looks", lambda update, like: update % 25 == 0)
        for _ in fit(state, rows, objective, OPTIONS):
            if state.update == 10:
                state.persistent = torch.zeros_like(state.persistent)
            if state.update == 20:
                state.average = copy.deepcopy(state.model)
    assert same(*states)
    assert torch.equal(states[0].persistent, states[1].persistent)


def test_what_cannot_be_recorded_is_not():
    state, objective = begun(), ModifiedCD(Gibbs(), 2)
    assert recorded.can_record(state, objective, OPTIONS, ALONE) == CUDA
    for name, options in (("anneal", FitOptions(anneal_step_size=True)), ("momentum", OPTIONS)):
        if name == "momentum":
            state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.05, momentum=0.9)
        assert not recorded.can_record(state, objective, options, ALONE)


def test_a_recording_that_is_refused_goes_on_without(monkeypatch, caplog):
    def refused(self, run):
        raise RuntimeError("operation not permitted when stream is capturing")

    objective, rows, states = PCD(Gibbs(), 2, n_chains=8), rows_of(), (begun(), begun())
    for state, records in zip(states, (False, True), strict=True):
        monkeypatch.setattr(training, "can_record", lambda *given, records=records: records)
        monkeypatch.setattr("grbm.learning.recorded.looks", lambda update, like: update % 25 == 0)
        monkeypatch.setattr(recorded.Recorded, "_recording", refused)
        for _ in fit(state, rows, objective, FitOptions(n_updates=5, batch_size=8, average_decay=0.9)):
            pass
    assert same(*states)
    assert "not recorded" in caplog.text


def test_a_rate_on_the_device_is_the_rate(monkeypatch):
    """The step that a recorded update makes, by a rate that is a tensor, equals the optimizer's own."""
    models = [random_model(N, M, 0, dtype=torch.float32).to(DEVICE) for _ in range(2)]
    for model, deferred in zip(models, (False, True), strict=True):
        monkeypatch.setattr("grbm.learning.descent.is_deferred", lambda x, deferred=deferred: deferred)
        monkeypatch.setattr("grbm.learning.descent.native_learning.serves", lambda *x: False)
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.7)
        descend(model, torch.optim.SGD(model.parameters(), lr=0.3), 0.5, 1e-8)
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b)


def test_train_step_itself_is_unchanged():
    state, rows = begun(), rows_of()
    metrics = train_step(state, ModifiedCD(Gibbs(), 2), rows[:8], OPTIONS)
    assert state.update == 1
    assert metrics.grad_norm > 0
