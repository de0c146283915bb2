"""An update that is recorded and replayed: the same as made step by step."""

import copy
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from grbm import (
    CD,
    GRBM,
    PCD,
    DivergenceError,
    FitOptions,
    Gibbs,
    GibbsLangevin,
    ModifiedCD,
    ParallelTempering,
    TrainState,
    fit,
)
from grbm.core.distributed import ALONE, ProcessGroup
from grbm.learning import recorded, training
from grbm.learning.descent import descend
from grbm.model.censoring import Censoring
from tests.helpers import CUDA, DEVICE, random_model

N, M, ROWS = 6, 7, 40


def tensors_of(metrics):
    return [x for x in (metrics.grad_norm, metrics.data_mean_h, metrics.negative.v) if x is not None]


def recorded_of(monkeypatch):
    """What has been recorded, item by item; looks are as far apart as on a GPU."""
    found, record = [], recorded.Recorded._recording
    real = getattr(record, "real", record)

    def counted(self, run):
        found.append(1)
        again, first = real(self, run), []

        def replay():
            with patch("grbm.learning.guard.looks", return_value=False):  # nothing is looked at in a graph
                again()
            if not CUDA:  # what a graph gives lies in the same memory every time
                first[:] = first or [self._metrics]
                for old, new in zip(tensors_of(first[0]), tensors_of(self._metrics), strict=True):
                    old.copy_(new)
                self._metrics = first[0]

        return replay

    counted.real = real
    monkeypatch.setattr(recorded.Recorded, "_recording", counted)
    monkeypatch.setattr("grbm.learning.recorded.looks", lambda update, like: update % 25 == 0)
    return found


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
    n_recorded = recorded_of(monkeypatch)
    for state, records in zip(states, (False, True), strict=True):
        monkeypatch.setattr(training, "can_record", lambda *given, records=records: records)
        for _ in fit(state, rows, objective, OPTIONS):
            if state.update == 10:
                state.persistent = torch.zeros_like(state.persistent)
            if state.update == 20:
                state.average = copy.deepcopy(state.model)
            if state.update == 30:
                state.persistent = None
            if state.update == 33:
                state.average = None
            if state.update == 36:
                state.persistent = torch.ones_like(state.persistent)
            if state.update == 40:
                state.optimizer.param_groups[0]["momentum"] = 0.5
            if state.update == 43:
                state.optimizer.param_groups[0]["momentum"] = 0.0
            if state.update == 46:
                state.model.W.data = 2 * state.model.W.data
    assert same(*states)
    assert torch.equal(states[0].persistent, states[1].persistent)
    assert len(n_recorded) == 6  # the first, and one for each change but those of chains of the same shape


def test_the_last_batch_of_an_epoch_and_its_temperature(monkeypatch):
    """A batch of fewer rows is not replayed, its chains go on, and a temperature that is a batch's size is its own."""
    rows = rows_of()
    for objective, size in (
        (PCD(Gibbs(), 2, n_chains=8), 16),
        (ModifiedCD(GibbsLangevin(0.3, temperature=64.0), 3), 64),
    ):
        states, n_recorded = (begun(), begun()), recorded_of(monkeypatch)
        for state, records in zip(states, (False, True), strict=True):
            monkeypatch.setattr(training, "can_record", lambda *given, records=records: records)
            options = FitOptions(n_updates=20, batch_size=size, keep_last=True, average_decay=0.9)
            norms = [float(metrics.grad_norm) for metrics in fit(state, rows, objective, options)]
            assert len(norms) == 20
        assert same(*states)
        assert len(n_recorded) == (size == 16)


def test_metrics_are_those_of_their_update(monkeypatch):
    """They do not change when the next update is replayed."""
    monkeypatch.setattr(training, "can_record", lambda *given: True)
    recorded_of(monkeypatch)
    metrics = [*fit(begun(), rows_of(), PCD(Gibbs(), 2, n_chains=8), FitOptions(n_updates=9, batch_size=8))]
    assert len({float(one.grad_norm) for one in metrics}) == 9
    for name in (lambda one: one.data_mean_h, lambda one: one.negative.v):
        assert len({name(one).data_ptr() for one in metrics}) == 9


@pytest.mark.parametrize("at", [7, 24, 25, 30])
def test_a_broken_gradient_takes_a_replayed_run_back_to_parameters_known_to_be_good(at, monkeypatch):
    """As without recording: at the next look, or at once where it is one."""
    monkeypatch.setattr("grbm.learning.guard.is_deferred", lambda x: True)
    ends = []
    for records in (False, True):
        monkeypatch.setattr(training, "can_record", lambda *given, records=records: records)
        recorded_of(monkeypatch)
        state, rows, good = begun(), rows_of(), {}
        with pytest.raises(DivergenceError) as raised:  # noqa: PT012
            for _ in fit(state, rows, PCD(Gibbs(), 2, n_chains=8), FitOptions(n_updates=60, batch_size=8)):
                good[state.update] = copy.deepcopy(state.model)
                if state.update == at:
                    rows.fill_(torch.nan)
        ends.append((state.update, str(raised.value), state.model))
    (update, said, model), (update_too, said_too, model_too) = ends
    assert (update, said) == (update_too, said_too)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), model_too.parameters(), strict=True))


class Own(ModifiedCD):
    """A negative phase that may read what a recording would not."""


def test_what_cannot_be_recorded_is_not(monkeypatch):
    assert recorded.can_record(begun(), ModifiedCD(Gibbs(), 2), OPTIONS, ALONE) == CUDA
    monkeypatch.setattr(recorded, "engine_on", lambda device: SimpleNamespace(name="fused"))

    def can(state=None, objective=None, options=OPTIONS, group=ALONE):
        return recorded.can_record(state or begun(), objective or ModifiedCD(Gibbs(), 2), options, group)

    assert can()
    assert not can(options=FitOptions(anneal_step_size=True))
    assert not can(objective=Own(Gibbs(), 2))
    assert not can(objective=PCD(ParallelTempering(), 2))
    assert not can(group=ProcessGroup(0, 2))
    state = begun()
    state.optimizer = torch.optim.SGD(state.model.parameters(), lr=0.05, momentum=0.9)
    assert not can(state)
    state = begun()
    state.model = GRBM(N, M, n_contrasts=3)
    assert not can(state)


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
