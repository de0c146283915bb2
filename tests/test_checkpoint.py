"""Checkpoints: what comes back is what was written, or is refused; training survives signals, kills and full disks."""

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.kill_and_resume import everything, kill_until_finished
from grbm import (
    GRBM,
    PCD,
    FitOptions,
    Gibbs,
    ParallelTempering,
    TrainState,
    TrajectoryTempering,
    UserError,
    cli,
    fit,
    runs,
)
from grbm.core import files
from grbm.core.distributed import ProcessGroup
from grbm.learning.sgd import PlainSGD
from grbm.runs import checkpoint
from grbm.runs.recording import MetricsLog
from grbm.samplers.engines import compiled
from tests.helpers import learn, new_state, refused

TINY = ["--train.n-updates", "40", "--model.n-hidden", "12", "--objective.n-steps", "2", "--no-figures"]
TINY += ["--log.no-tensorboard", "--checkpoint.updates", "5"]


def numbers(state: TrainState) -> dict:
    found = {f"model {k}": v for k, v in state.model.state_dict().items()}
    found |= {f"average {k}": v for k, v in state.average.state_dict().items()}
    found |= {f"last good {k}": v for k, v in state.guard.last_good.items()}
    for index, entries in state.optimizer.state_dict()["state"].items():
        found |= {f"optimizer {index} {k}": v for k, v in entries.items() if isinstance(v, torch.Tensor)}
    found |= {f"memory {k}": v for k, v in state.adaptation.state_dict.items()}
    return {k: v.clone() for k, v in found.items()} | {"persistent": state.persistent.clone()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


TRAJECTORIES = (TrajectoryTempering(save_below=0.8), TrajectoryTempering(save_below=0.97, most=3))


OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, momentum, PlainSGD)
OBJECTIVES = [None, *(PCD(s, 2, n_chains=8) for s in (ParallelTempering(n_replicas=3), *TRAJECTORIES))]
USUAL = [(optimizer, OBJECTIVES[0]) for optimizer in OPTIMIZERS] + [(PlainSGD, other) for other in OBJECTIVES[1:]]


@pytest.mark.parametrize(
    ("optimizer", "objective"),
    [
        pytest.param(one, other, marks=() if (one, other) in USUAL else pytest.mark.whole)
        for one in OPTIMIZERS
        for other in OBJECTIVES
    ],
)
def test_saved_and_restored_is_never_interrupted(tmp_path, optimizer, objective):
    whole = learn(new_state(optimizer=optimizer), 30, objective=objective)
    half = learn(new_state(optimizer=optimizer), 13, objective=objective)
    checkpoint.save(tmp_path, half)
    again = new_state(optimizer=optimizer)
    checkpoint.restore(again, checkpoint.newest(tmp_path, again))
    assert same(numbers(half), numbers(again))
    assert same(numbers(whole), numbers(learn(again, 30, objective=objective)))
    assert (half.adaptation.state_dict == {}) == (objective is None)  # a ladder, or saved models
    # also into a state that has gone on: nothing of what it adapted since may stay
    checkpoint.restore(half, checkpoint.newest(tmp_path, half))
    learn(half, 30, objective=objective)
    checkpoint.restore(half, checkpoint.newest(tmp_path, half))
    assert same(numbers(whole), numbers(learn(half, 30, objective=objective)))


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler here")
def test_saved_models_come_back_in_the_precision_of_the_run(tmp_path):
    objective = PCD(TrajectoryTempering(save_below=0.8), 2, n_chains=8)

    def go_on(state: TrainState, until: int) -> TrainState:
        data = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
        for _ in fit(
            state, data, objective, FitOptions(n_updates=40, batch_size=20, average_decay=0.9), precision="fast"
        ):
            if state.update == until:
                break
        return state

    whole, half = go_on(new_state(), 40), go_on(new_state(), 20)
    checkpoint.save(tmp_path, half)
    again = new_state()
    checkpoint.restore(again, checkpoint.newest(tmp_path, again))
    assert same(numbers(whole), numbers(go_on(again, 40)))


def test_each_process_takes_up_its_own_chains(tmp_path):
    state = learn(new_state(), 7)
    checkpoint.save(tmp_path, state)
    parts = []
    for rank in range(4):
        part = new_state()
        checkpoint.restore(part, checkpoint.newest(tmp_path, part), ProcessGroup(rank, 4))
        parts.append(part.persistent)
    assert torch.equal(torch.cat(parts), state.persistent)


DAMAGES = ["truncate", "flip", "empty", "shapes", "swap tensors", "swap records", "swap folders", "missing", "foreign"]


def damage(kind: str, folder: Path, rng: random.Random) -> None:
    """Spoil the newest of the three checkpoints in ``folder``."""
    last, before = checkpoint.updates(folder)[:2]
    path = last / rng.choice([checkpoint.TENSORS, checkpoint.RECORD])
    content = path.read_bytes()
    if kind == "truncate":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "flip":
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "missing":
        path.unlink()
    elif kind in ("shapes", "foreign"):
        other = learn(new_state(n_hidden=5 if kind == "shapes" else 6), 15)
        shutil.rmtree(folder / "update-00000015")  # one of another run would not be replaced
        checkpoint.save(folder, other, run="mine" if kind == "shapes" else "another run")
    elif kind == "swap folders":
        last.rename(folder / "aside")
        before.rename(last)
        (folder / "aside").rename(before)
    else:
        name = checkpoint.TENSORS if kind == "swap tensors" else checkpoint.RECORD
        one, two = (last / name).read_bytes(), (before / name).read_bytes()
        (last / name).write_bytes(two)
        (before / name).write_bytes(one)


def test_two_hundred_damaged_checkpoints(tmp_path):
    """None loads wrong numbers, none raises anything but a sentence, the newest good one is used and others named."""
    good = tmp_path / "good"
    state, at = new_state(), {}
    for update in (5, 10, 15):
        learn(state, update)
        checkpoint.save(good, state, run="mine")
        at[update] = numbers(state)
    rng = random.Random(0)
    for k in range(200):
        kind = DAMAGES[k % len(DAMAGES)]
        folder = tmp_path / str(k)
        shutil.copytree(good, folder)
        damage(kind, folder, rng)
        said: list[str] = []
        found = checkpoint.newest(folder, new_state(), run="mine", warn=said.append)
        both = kind.startswith("swap")
        harmless = kind == "flip" and found.update == 15  # a bit of JSON's white space
        assert found.update == (15 if harmless else 5 if both else 10), (k, kind)
        assert len(said) == (0 if harmless else 2 if both else 1)
        assert all("update-00000015" in s or "update-00000010" in s for s in said)
        taken = new_state()
        checkpoint.restore(taken, found)
        assert same(numbers(taken), at[found.update]), (k, kind)
        shutil.rmtree(folder)


def test_when_all_are_damaged_that_is_said(tmp_path):
    checkpoint.save(tmp_path, learn(new_state(), 5))
    (checkpoint.updates(tmp_path)[0] / checkpoint.RECORD).write_bytes(b"[]")
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        checkpoint.newest(tmp_path, new_state())
    assert checkpoint.newest(tmp_path / "nowhere", new_state()) is None


@pytest.mark.parametrize(
    "others",
    [
        (torch.optim.Adam, PlainSGD),
        (torch.optim.SGD, torch.optim.Adam),
        (torch.optim.Adam, torch.optim.AdamW),
        (torch.optim.Adamax, torch.optim.RAdam),
    ],
)
def test_a_checkpoint_of_another_optimizer_or_model_is_refused_and_says_so(others, tmp_path):
    """Its numbers would be taken for rates and momenta that they are not."""
    saved, asked = others
    checkpoint.save(tmp_path, learn(new_state(optimizer=saved), 5))
    with pytest.raises(UserError, match="of another optimizer"):
        checkpoint.newest(str(tmp_path), new_state(optimizer=asked))
    with pytest.raises(UserError, match=r"of the newest, .* of shape .* does not fit the model"):
        checkpoint.newest(tmp_path, new_state(7, optimizer=saved))
    assert checkpoint.newest(tmp_path, new_state(optimizer=saved)) is not None


def test_a_checkpoint_without_the_name_of_its_optimizer_is_read(tmp_path):
    """So were they before; and the fast SGD is PyTorch's."""
    checkpoint.save(tmp_path, learn(new_state(optimizer=torch.optim.SGD), 5))
    assert checkpoint.newest(tmp_path, new_state(optimizer=PlainSGD)) is not None
    path = checkpoint.updates(tmp_path)[0] / checkpoint.RECORD
    record = json.loads(path.read_text())
    assert record["optimizer"].pop("name") == "SGD"
    record["checksum"] = checkpoint._checksum(record)
    path.write_text(json.dumps(record))
    assert checkpoint.newest(tmp_path, new_state(optimizer=PlainSGD)) is not None


def test_the_last_few_and_the_best_are_kept(tmp_path):
    for update, score in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 4.0), (6, 5.0)):
        checkpoint.save(tmp_path, learn(new_state(), update), notes={"score": score})
    (tmp_path / ".partial-x").mkdir()
    (tmp_path / "update-00000009").mkdir()  # damaged, from before: it takes nobody's place
    checkpoint.prune(tmp_path, keep=2, update=6)
    assert sorted(p.name[-1] for p in tmp_path.iterdir()) == ["2", "5", "6", "9"]
    assert checkpoint.best(tmp_path).name[-1] == "2"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(folder)]) == 0
    return folder


def test_damage_on_the_way_changes_nothing_at_the_end(whole, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    for name in (runs.STATUS, runs.WEIGHTS, runs.RAW_WEIGHTS):
        (copy / name).unlink()
    newest = checkpoint.updates(copy / runs.CHECKPOINTS)[0] / checkpoint.TENSORS
    newest.write_bytes(newest.read_bytes()[:-3])
    with (copy / runs.METRICS).open("a") as file:
        file.write('{"update": 4')  # and half a line
    assert cli.main(["resume", str(copy), "--no-figures"]) == 0
    said = capsys.readouterr()
    assert "update-00000040 is not usable" in said.err
    assert "from 35 on" in said.out
    assert everything(copy) == everything(whole)


def test_a_finished_run_is_left_alone(whole, capsys):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    assert cli.main(["train", "digits", *TINY, "--out", str(whole), "--resume"]) == 0
    assert "finished already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*")}


def test_other_settings_and_other_data_are_refused(whole, tmp_path, capsys):
    assert cli.main(["train", "digits", *TINY, "--train.learning-rate", "1", "--out", str(whole), "--resume"]) == 2
    assert "train.learning_rate = 0.3, not 1.0" in capsys.readouterr().err
    import numpy as np

    x = np.random.default_rng(0).normal(size=(50, 3))
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "run"
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(out)]) == 0
    (out / runs.STATUS).unlink()
    np.save(tmp_path / "x.npy", x + 1)
    assert cli.main(["resume", str(out), "--no-figures"]) == 2
    assert str(out) in capsys.readouterr().err
    assert cli.main(["resume", str(tmp_path / "nothing")]) == 2


@pytest.mark.parametrize(
    ("numbers", "code"),
    [([signal.SIGTERM], 143), ([signal.SIGINT], 130), ([signal.SIGINT, signal.SIGTERM], 130)],
    ids=["terminate", "interrupt", "the first of two"],
)
def test_a_signal_stops_after_the_update_and_says_how_to_go_on(tmp_path, capsys, monkeypatch, numbers, code):
    after = MetricsLog.after

    def interrupted(log, progress):
        if progress.update == 7:
            for number in numbers:
                os.kill(os.getpid(), number)
        after(log, progress)

    monkeypatch.setattr(MetricsLog, "after", interrupted)
    out = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(out)]) == code
    said = capsys.readouterr().err
    assert f"grbm resume {out}" in said
    assert said.count("\n") == 1
    status = runs.read(out).status
    assert (status.ended, status.update) == ("interrupted", 8)  # the update that was being made is finished
    assert checkpoint.read_record(checkpoint.updates(out / runs.CHECKPOINTS)[0])["update"] == 8


@pytest.mark.whole
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_update_and_says_how_to_go_on(tmp_path, capsys, number, code):
    out = tmp_path / "run"
    more = ["--train.n-updates", "100000", "--checkpoint.updates", "1000000"]
    command = [sys.executable, "-m", "grbm", "train", "digits", *TINY, *more, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not runs.read_metrics(out) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if number == signal.SIGTERM:  # meanwhile nobody else may train there
        assert cli.main(["resume", str(out)]) == 2
        assert str(out) in capsys.readouterr().err
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.startswith("grbm: stopped after update")
    assert f"grbm resume {out}" in errors
    assert errors.count("\n") == 1
    record = checkpoint.read_record(checkpoint.updates(out / runs.CHECKPOINTS)[0])
    status = runs.read(out).status
    assert (status.ended, status.update) == ("interrupted", record["update"])


def test_checkpoints_by_the_clock_and_the_newest_weights(tmp_path):
    """An interruption leaves weights; after a resume and a kill the checkpoints are newer, and are what is read."""
    out = tmp_path / "run"
    by_time = ["--checkpoint.minutes", "1e-9", "--checkpoint.keep", "100"]
    tiny = [option for option in TINY if option not in ("--checkpoint.updates", "5")]
    assert cli.main(["train", "digits", *tiny, *by_time, "--out", str(out)]) == 0
    found = [int(path.name[-8:]) for path in checkpoint.updates(out / runs.CHECKPOINTS)]
    assert len(found) >= 2  # not one an update: writing may take a fiftieth of the time
    assert found[0] == 40
    (out / runs.STATUS).unlink()
    files.write_tensors(out / runs.WEIGHTS, GRBM(64, 12, seed=9).state_dict())  # stale
    newest = checkpoint.read(checkpoint.updates(out / runs.CHECKPOINTS)[0]).tensors
    assert torch.equal(runs.read(out).model.W, newest["average.W"])
    assert torch.equal(runs.read(out, "raw").model.W, newest["model.W"])


def test_a_run_diverges_after_a_resume_as_it_would_have(tmp_path, capsys):
    unstable = [
        "--train.learning-rate",
        "3",
        "--train.clip-norm",
        "None",
        "--train.no-centred",
        "--train.min-var",
        "1e-8",
        "--train.spectral-norm",
        "None",
    ]
    options = ["train", "digits", *TINY, *unstable, "--train.average-decay", "None", "--checkpoint.updates", "2"]
    assert cli.main([*options, "--out", str(tmp_path / "a")]) == 1
    sentence = capsys.readouterr().err
    assert cli.main([*options, "--out", str(tmp_path / "b")]) == 1
    capsys.readouterr()
    (tmp_path / "b" / runs.STATUS).unlink()
    assert checkpoint.updates(tmp_path / "b" / runs.CHECKPOINTS)
    assert cli.main(["resume", str(tmp_path / "b"), "--no-figures"]) == 1
    assert capsys.readouterr().err == sentence.replace(str(tmp_path / "a"), str(tmp_path / "b"))
    weights = [files.read_tensors(tmp_path / run / runs.WEIGHTS) for run in ("a", "b")]
    assert same(*weights)
    assert cli.main(["resume", str(tmp_path / "b")]) == 2  # it would only repeat itself
    assert str(tmp_path / "b") in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_state_comes_back_to_the_gpu(tmp_path):
    def fresh() -> TrainState:
        model = GRBM(4, 6, seed=1).cuda()
        return TrainState(model, torch.optim.Adam(model.parameters(), lr=0.01), seed=2)

    def go(state: TrainState, until: int) -> TrainState:
        data = torch.randn(100, 4, generator=torch.Generator().manual_seed(0)).cuda()
        for _ in fit(
            state, data, PCD(Gibbs(), 2, 20), FitOptions(n_updates=30, batch_size=20, average_decay=0.9, blocks=4)
        ):
            if state.update == until:
                break
        return state

    whole, half, again = go(fresh(), 30), go(fresh(), 13), fresh()
    checkpoint.save(tmp_path, half)
    checkpoint.restore(again, checkpoint.newest(tmp_path, again))
    assert same(numbers(whole), numbers(go(again, 30)))


@pytest.mark.whole
def test_kills_at_random_moments(tmp_path):
    """A few of the 50 of `python -m benchmarks.kill_and_resume`."""
    from benchmarks.kill_and_resume import finish, start

    finish(start(tmp_path / "whole"))
    expected = everything(tmp_path / "whole")
    killed, _ = kill_until_finished(tmp_path / "killed", random.Random(1), 3)
    assert killed > 0
    assert everything(tmp_path / "killed") == expected


def test_a_full_disk_names_the_reason_and_the_checkpoint_before(tmp_path, capsys, monkeypatch):
    save = checkpoint.save

    def full(folder, state, *args, **options):
        if state.update > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return save(folder, state, *args, **options)

    monkeypatch.setattr(checkpoint, "save", full)
    out = tmp_path / "run"
    refused(
        ["train", "digits", *TINY, "--out", out], capsys, f"({os.strerror(errno.ENOSPC)})", "update 10", f"resume {out}"
    )


LIMITED = """
import resource, sys
from grbm import FitOptions, cli
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.whole
def test_a_quota_during_a_checkpoint_leaves_the_one_before(tmp_path):
    """The system refuses to write files of more than so many bytes."""
    out = tmp_path / "run"
    train = ["train", "digits", *TINY, "--out", str(out)]
    assert cli.main(train) == 0
    (out / runs.STATUS).unlink()
    for path in checkpoint.updates(out / runs.CHECKPOINTS)[:2]:
        shutil.rmtree(path)
    left = checkpoint.updates(out / runs.CHECKPOINTS)
    size = (left[0] / checkpoint.TENSORS).stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(size - 100), "resume", str(out), "--no-figures"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert f"the checkpoint of update {checkpoint.read_record(left[0])['update']} is whole" in done.stderr
    assert f"grbm resume {out}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert checkpoint.updates(out / runs.CHECKPOINTS) == left
    assert not list((out / runs.CHECKPOINTS).glob(".partial-*"))
    assert cli.main(["resume", str(out), "--no-figures"]) == 0


@pytest.mark.whole
@pytest.mark.parametrize("log", ["--log.no-tensorboard", "--log.tensorboard"])
def test_a_full_disk_says_so_and_the_run_goes_on_later(tmp_path, whole, log):
    """A file system of its own, small enough to fill. The sentence is all that is printed as an error."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]).returncode:
        pytest.skip("no right to mount a small tmpfs here")
    try:
        out = disk / "run"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "grbm",
                "train",
                "digits",
                *TINY,
                "--checkpoint.keep",
                "100",
                log,
                "--out",
                str(out),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert done.stderr.count("\n") == 1
        good = checkpoint.updates(out / runs.CHECKPOINTS)
        assert good
        for path in good:
            checkpoint.read(path)
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        assert cli.main(["resume", str(out), "--no-figures"]) == 0
        last, same_as = (checkpoint.read(checkpoint.updates(f / runs.CHECKPOINTS)[0]) for f in (out, whole))
        assert same(last.tensors, same_as.tensors)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_checkpoint_between_two_records_keeps_the_count_of_clipped_updates(tmp_path):
    settings = ["--train.n-updates", "10", "--model.n-hidden", "8", "--train.clip-norm", "1e-9", "--log.points", "1"]
    settings += ["--checkpoint.updates", "4", "--no-figures", "--log.no-tensorboard", "--out", str(tmp_path / "run")]
    assert cli.main(["train", "digits", *settings]) == 0
    record = json.loads((tmp_path / "run" / "checkpoints" / "update-00000004" / "state.json").read_text())
    log = record["callbacks"]["log"]
    assert (log["clipped"], log["since"]) == (3, 3)  # the record of update 1 began anew


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("adaptation.ladder", torch.tensor([0.0, 1.0, 0.5])),
        ("adaptation.ladder", torch.tensor([0.0, math.nan, 1.0])),
        ("adaptation.W", torch.zeros(2, 9, 9)),
        ("chains.v", torch.zeros(4, 99)),
        ("chains.h", torch.zeros(4, 4)),
        ("curvature.steps", torch.zeros(2, 3)),
        ("last_good.b", torch.zeros(1)),
        ("model.b", torch.zeros(1)),
        ("model.b", None),
    ],
)
def test_a_state_takes_no_tensor_that_does_not_fit_its_model(name, wrong):
    state = learn(new_state(), 3)
    tensors = state.tensors()
    before = {name: x.clone() for name, x in tensors.items()}
    changed = {k: x for k, x in tensors.items() if k != name} | ({} if wrong is None else {name: wrong})
    with pytest.raises(ValueError, match=name):
        state.load(changed)
    assert all(torch.equal(x, before[name]) for name, x in state.tensors().items())
    state.load(tensors | {"adaptation.ladder": torch.tensor([0.0, 0.5, 1.0])})
