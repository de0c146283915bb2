"""Logs beside metrics.jsonl: TensorBoard really reads them, Weights & Biases gets them, resuming leaves no mess."""

import sys
import types

import numpy as np
import pytest

from grbm import cli, runs
from grbm.runs import checkpoint
from grbm.runs.folder import TENSORBOARD

TINY = ["--train.n-updates", "20", "--model.n-hidden", "8", "--objective.n-steps", "2", "--no-figures"]
TINY += ["--checkpoint.updates", "5"]


def board(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / TENSORBOARD), size_guidance={"scalars": 0, "images": 0})
    return events.Reload()


def test_tensorboard_has_the_numbers_and_the_pictures(tmp_path):
    out = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(out)]) == 0
    events = board(out)
    metrics = runs.read_metrics(out)
    assert set(events.Tags()["scalars"]) == {k for k, v in metrics[0].items() if k != "update" and v is not None}
    for name in ("grad_norm", "energy_distance"):
        assert [e.step for e in events.Scalars(name)] == [m["update"] for m in metrics]
        np.testing.assert_allclose([e.value for e in events.Scalars(name)], [m[name] for m in metrics], rtol=1e-6)
    images = events.Images("chains")
    assert len(images) == 1  # every 20 of so few updates
    assert images[0].width > images[0].height > 8


def test_a_resumed_run_has_each_line_once(tmp_path):
    out = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(out)]) == 0
    before = runs.read_metrics(out)
    for path in checkpoint.updates(out / runs.CHECKPOINTS)[:2]:  # back to update 10
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    (out / runs.STATUS).unlink()
    assert cli.main(["resume", str(out), "--no-figures"]) == 0
    after = runs.read_metrics(out)
    assert [{**m, "seconds": 0} for m in after] == [{**m, "seconds": 0} for m in before]
    assert [e.step for e in board(out).Scalars("grad_norm")] == list(range(1, 21))


def test_weights_and_biases_gets_what_tensorboard_gets(tmp_path, monkeypatch):
    logged, settings = [], {}

    def init(**kwargs):
        settings.update(kwargs)
        log = lambda numbers, step: logged.append((step, numbers))  # noqa: E731
        return types.SimpleNamespace(id=kwargs["id"] or "fresh", log=log, finish=lambda: None)

    fake = types.SimpleNamespace(init=init, Image=lambda picture: ("image", picture.shape))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    out = tmp_path / "run"
    options = ["--log.wandb", "my-project", "--log.no-tensorboard"]
    assert cli.main(["train", "digits", *TINY, *options, "--out", str(out)]) == 0
    assert settings["project"] == "my-project"
    assert settings["config"]["train"]["n_updates"] == 20
    numbers = {step: values for step, values in logged if "grad_norm" in values}
    assert {m["update"]: m["grad_norm"] for m in runs.read_metrics(out)} == {
        step: values["grad_norm"] for step, values in numbers.items()
    }
    assert any("chains" in values for _, values in logged)
    assert not (out / TENSORBOARD).exists()
    assert settings["id"] is None
    (out / runs.STATUS).unlink()
    assert cli.main(["resume", str(out), "--no-figures"]) == 0
    assert settings["id"] == "fresh"  # the same run goes on


def test_weights_and_biases_that_is_not_installed_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert cli.main(["train", "digits", *TINY, "--log.wandb", "p", "--out", str(tmp_path / "run")]) == 2
    assert "--log.wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("which", ["model", "raw", "best"])
def test_weights_by_name(tmp_path, which):
    out = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, "--log.no-tensorboard", "--out", str(out)]) == 0
    assert cli.main(["evaluate", str(out), "--samples", "20", "--weights", which]) == 0
    run = runs.read(out, which)
    if which == "best":
        best = checkpoint.read(checkpoint.best(out / runs.CHECKPOINTS)).tensors
        assert np.array_equal(run.model.W.detach(), best["average.W"])
    else:
        assert np.array_equal(run.model.W.detach(), runs.read(out).model.W.detach()) == (which == "model")
