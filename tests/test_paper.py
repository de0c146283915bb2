"""The paper's experiments: each starts, trains and resumes at a tiny scale, and says what it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grbm import CD, GRBM, FitOptions, Gibbs, GibbsLangevin, TrainState, UserError, cli, fit, runs, sample
from grbm.model import Base
from grbm.runs.paper import EXPERIMENTS, configure, describe

TINY = ["--train.n-updates", "4", "--train.batch-size", "20", "--objective.n-steps", "3", "--model.n-hidden", "8"]
TINY += ["--sampling.n-steps", "3", "--log.no-tensorboard", "--no-figures"]


CASES = [(name, dynamics) for name in EXPERIMENTS for dynamics in ("paper", "paper-time-program")]
CASES += [("table1-gibbs-langevin-adjusted", "last-public-program")]


@pytest.mark.parametrize(
    ("name", "dynamics"),
    [
        pytest.param(*case, marks=() if k % 5 == 0 or case is CASES[-1] else pytest.mark.whole)
        for k, case in enumerate(CASES)
    ],
)
def test_every_experiment_starts_trains_and_resumes(name, dynamics, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    data = ["--data-dir", str(pictures), "--dynamics", dynamics]
    command = ["train", name, *data, *TINY, "--out", str(tmp_path / "run")]
    assert cli.main([*command, "--checkpoint.updates", "2"]) == 0
    assert EXPERIMENTS[name].title in capsys.readouterr().out
    run = runs.read(tmp_path / "run")
    assert run.metrics[-1]["update"] == 4
    published = dynamics != "paper"
    assert run.config.sampler.temperature == (
        EXPERIMENTS[name].batch_size if published and EXPERIMENTS[name].sampler != "gibbs" else None
    )
    assert run.config.sampling.mean == run.config.train.keep_last == published
    assert run.config.sampling.sampler.temperature == (100 if run.config.sampler.temperature else None)
    langevin = published and EXPERIMENTS[name].sampler == "langevin"
    assert run.config.objective.probabilities == run.config.objective.data_draws == langevin
    adjusted = EXPERIMENTS[name].adjust_from is not None and EXPERIMENTS[name].sampler == "gibbs-langevin"
    assert run.config.sampler.accept_temperature == (1 if adjusted and dynamics == "paper-time-program" else None)
    assert run.config.sampler.joint == (True if adjusted and dynamics == "last-public-program" else None)
    # as if it had been killed after update 2
    (tmp_path / "run" / "status.json").unlink()
    (newest, *_) = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    for path in newest.iterdir():
        path.unlink()
    newest.rmdir()
    assert cli.main(["resume", str(tmp_path / "run"), "--no-figures"]) == 0
    again = runs.read(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), again.model.parameters(), strict=True))


def test_scale_shrinks_hidden_units_updates_and_steps_and_says_so(tmp_path, capsys):
    config = configure("table1-gibbs-langevin", "paper-time-program", 0.0002)
    assert (config.model.n_hidden, config.objective.n_steps, config.train.n_updates) == (487, 34, 1726)
    assert config.sampling.n_steps == 33
    assert config.sampler.step_size == 20
    assert config.sampler.temperature == 512
    assert "at scale 0.0002: 487 of 4,096 hidden units, 34 of 100 CD steps, 1,726 of 354,000 updates" in describe(
        config
    )
    whole = configure("table1-gibbs-langevin")
    assert (whole.model.n_hidden, whole.objective.n_steps, whole.train.n_updates) == (4096, 100, 351_000)
    assert whole.sampler.step_size == pytest.approx(20 / 512)
    assert "scale" not in describe(whole)
    assert configure("table3-adjust50", scale=0.0002).sampler.adjust_from == 17  # half way, as in the paper
    assert configure("table3-adjust0", scale=0.0002).sampler.adjust_from == 0
    assert configure("paper-celeba-2k-64").train.n_updates == 4000 * 20
    for arguments, sentence in (
        (["--scale", "2"], "--scale must be above 0"),
        (["--scale", "small"], "--scale: invalid float value: 'small'"),
        (["--scale"], "--scale: expected one argument"),
        (["--dynamics=mine"], "--dynamics: invalid choice: 'mine'"),
    ):
        assert cli.main(["train", "table1-gibbs", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    with pytest.raises(UserError, match="anneal-step-size"):
        replace(
            whole, sampler=replace(whole.sampler, name="gibbs"), train=replace(whole.train, anneal_step_size=True)
        ).check()


def test_the_dynamics_are_told_apart():
    """v given h relaxes to variance T σ²: 1 as printed, the batch size as programmed. Small steps, so within 6 %."""
    model = GRBM(3, 2)
    with torch.no_grad():
        model.W.zero_()
    base = Base(torch.zeros(3), torch.ones(3))
    for dynamics, temperature in (("paper", 1), ("paper-time-program", 512), ("last-public-program", 512)):
        sampler = configure("table1-gibbs-langevin", dynamics).sampler.build(base)
        v = sample(model, sampler, v0=torch.zeros(20_000, 3), n_steps=60, seed=1).v
        assert float(v.var()) == pytest.approx(temperature, rel=0.06)


def test_an_annealed_step_size_falls_with_the_learning_rate():
    seen = []

    class Spy(GibbsLangevin):
        def moves(self, energy, n_steps):
            seen.append(self.step_size)
            return super().moves(energy, n_steps)

    model = GRBM(2, 3)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
    data = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    list(fit(state, data, CD(Spy(0.1), 1), FitOptions(n_updates=4, batch_size=20, anneal_step_size=True)))
    steps = sorted(set(seen), reverse=True)
    expected = [0.1 * 0.5 * (1 + np.cos(np.pi * k / 4)) for k in range(4)]
    assert steps == pytest.approx(expected)
    list(
        fit(
            TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01)),
            data,
            CD(Gibbs(), 1),
            FitOptions(n_updates=2),
        )
    )


def test_an_incomplete_last_batch_is_kept_where_asked_for_and_has_its_own_temperature():
    seen = []

    class Spy(GibbsLangevin):
        def moves(self, energy, n_steps):
            seen.append(self.temperature)
            return super().moves(energy, n_steps)

    data = torch.randn(44, 2, generator=torch.Generator().manual_seed(0))
    for keep, temperature, expected in (
        (True, 20.0, [20, 20, 4, 20, 20, 4]),
        (True, 3.0, [3] * 6),  # one that is no batch's size stays
        (False, 20.0, [20] * 6),
    ):
        model = GRBM(2, 3)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
        objective = CD(Spy(0.1, temperature=temperature), 1)
        options = FitOptions(n_updates=6, batch_size=20, keep_last=keep)
        metrics = list(fit(state, data, objective, options))
        assert seen == expected
        assert [len(m.negative.v) for m in metrics] == ([20, 20, 4] * 2 if keep else [20] * 6)
        seen.clear()
