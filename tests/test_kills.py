"""A run folder after kills, damage and company: it is usable at once, and nothing in it is lost without a word."""

import json
import math
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import grbm
from grbm import UserError, cli, runs
from grbm.report.listing import runs_in
from grbm.runs import checkpoint, claiming
from grbm.runs.folder import save_status
from grbm.runs.recording import MetricsLog
from tests.helpers import TINY, rest_in_whole

WRITES = ("open", "replace", "rename", "unlink", "remove", "rmdir", "mkdir")
OPTIONS = [*TINY, "--train.n-updates", "6", "--checkpoint.updates", "2", "--checkpoint.keep", "1"]


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def run(trained_runs, tmp_path) -> Path:
    return trained_runs.copy(tmp_path / "run", "digits", *OPTIONS)


def killed(args: list[str], inside: Path, k: int, patch: pytest.MonkeyPatch) -> bool:
    """Run a command until before its ``k``-th change in a folder, from where on nothing changes; whether it came there.

    Not even what it would tidy up: a process that is killed tidies nothing.
    """
    count = 0

    def stopping(name):
        original = getattr(os, name)

        def changed(path, *rest, **options):
            nonlocal count
            reads = name == "open" and not (rest and rest[0] & (os.O_WRONLY | os.O_RDWR))
            here = (isinstance(path, str | Path) and Path(path).is_relative_to(inside)) or options.get(
                "dir_fd"
            ) is not None
            if not reads and here:
                count += 1
                if count >= k:
                    raise Killed
            return original(path, *rest, **options)

        return changed

    with patch.context() as context:
        for name in WRITES:
            context.setattr(os, name, stopping(name))
        try:
            cli.main(args)
        except Killed:
            return True
    return False


@pytest.mark.parametrize("command", ["train", "train --overwrite", "resume", "evaluate"])
@pytest.mark.parametrize("k", rest_in_whole(2, 2, 8, *(k for k in range(1, 41) if k not in (2, 8))))
def test_a_folder_is_usable_after_a_kill_at_any_change(trained_runs, tmp_path, monkeypatch, capsys, command, k):
    """What was begun can be begun again, whatever the kill left; and a run that was overwritten can go on too."""
    out = tmp_path / "run"
    if command != "train":
        trained_runs.copy(out, "digits", *OPTIONS)
    if command == "resume":
        (out / runs.STATUS).unlink()
        shutil.rmtree(checkpoint.updates(out / runs.CHECKPOINTS)[0])
    args = {
        "train": ["train", "digits", *OPTIONS, "--out", str(out)],
        "train --overwrite": ["train", "digits", *OPTIONS, "--seed", "3", "--out", str(out), "--overwrite"],
        "resume": ["resume", str(out), "--no-figures"],
        "evaluate": ["evaluate", str(out), "--samples", "10", "--ais-steps", "5", "--ais-chains", "10"],
    }[command]
    came = killed(args, out, k, monkeypatch)
    assert came or k > (2 if command == "evaluate" else 8)
    copy = shutil.copytree(out, tmp_path / "copy") if out.exists() else None
    if command == "train" and (out / runs.CONFIG).is_file():  # the same words mean another run then
        args = ["resume", str(out), "--no-figures"]
    assert cli.main(args) == 0, capsys.readouterr().err
    assert runs.read(out).status.ended == "finished"
    assert len(runs.read(out).metrics) > 0
    if command != "evaluate":
        assert not list(out.rglob(".*"))
    if copy is not None and (copy / runs.CONFIG).is_file():
        assert cli.main(["resume", str(copy), "--no-figures"]) == 0
    if copy is not None:
        assert cli.main(["train", "digits", *OPTIONS, "--out", str(copy), "--overwrite"]) == 0


def test_what_a_kill_left_goes_at_the_next_start(run):
    left = ["figures/.samples.png.x_y_z_00.png", ".evaluation.json.a1b2c3d4.json", "codes/.x.npy.abcdefgh.npy"]
    left += ["trajectory/.00000004.safetensors.abcdefgh.safetensors"]
    for name in left:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("half")
    (run / runs.STATUS).unlink()
    assert cli.main(["resume", str(run), "--no-figures"]) == 0
    assert not list(run.rglob(".*"))


# Damaged records


def test_a_damaged_line_costs_itself_alone(run, capsys):
    path = run / runs.METRICS
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2][:20], "[]", *lines[3:], '{"update"']))
    before = [json.loads(line) for line in (*lines[:2], *lines[3:])]
    assert runs.read_metrics(run) == before
    for args in (["report"], ["resume", "--no-figures"]):
        if args[0] == "resume":
            (run / runs.STATUS).unlink()
        assert cli.main([args[0], str(run), *args[1:]]) == 0
        said = capsys.readouterr().err
        assert said.count(str(path)) == 1
        assert f"2 of {len(lines) + 1} lines" in said
    assert runs.read_metrics(run) == before
    capsys.readouterr()
    assert cli.main(["report", str(run)]) == 0
    assert str(path) not in capsys.readouterr().err


@pytest.mark.parametrize(
    "number", rest_in_whole(3, "NaN", '"x"', "1e999", "Infinity", "-Infinity", "1e308", "1" + "0" * 400, "[1]")
)
def test_numbers_that_no_training_logs(run, tmp_path, capsys, number):
    """In the record and in scores: the run is shown without them, and others in the list as ever."""
    shutil.copytree(run, tmp_path / "other")
    lines = (run / runs.METRICS).read_text().splitlines()
    spoilt = dict.fromkeys(json.loads(lines[0]), "?") | {"update": 6}
    text = json.dumps(spoilt).replace('"?"', number)
    (run / runs.METRICS).write_text(
        "\n".join([*lines, *[text, *[lines[-1]] * 4] * 6, text.replace('"update": 6', f'"update": {number}')])
    )
    (run / runs.EVALUATION).write_text(f'{{"log_likelihood_test": {number}}}')
    (run / runs.STATUS).unlink()
    listed = list(runs_in(tmp_path))
    assert [Path(found.folder).name for found in listed] == ["other", "run"]
    assert cli.main(["list", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert cli.main(["doctor", str(run)]) in (0, 3)
    if number in ("NaN", "1e308"):  # pages take longer
        assert cli.main(["report", str(run)]) == 0


def test_a_run_that_cannot_be_read_leaves_the_list_to_the_others(run, tmp_path, monkeypatch):
    shutil.copytree(run, tmp_path / "other")

    def forbidden(folder):
        if folder.name == "run":
            raise PermissionError(13, "Permission denied")
        return {}

    monkeypatch.setattr("grbm.report.listing.last_metrics", forbidden)
    assert [Path(found.folder).name for found in runs_in(tmp_path)] == ["other"]


def test_a_list_reads_the_end_of_a_record(run):
    path = run / runs.METRICS
    line = path.read_text().splitlines()[-1]
    with path.open("a") as file:
        file.write("\n".join(["", *[line.replace('"update": 6', '"update": 7')] * 300_000, "{half"]))
    began = time.perf_counter()
    (found,) = runs_in(run.parent)
    assert time.perf_counter() - began < 1
    assert found.updates == 7
    path.write_text(f"{line}\n{'x' * 100_000}")
    assert runs.last_metrics(run)["update"] == 6
    path.write_text("x" * 100_000)
    assert runs.last_metrics(run) == {}


# Company


def test_asking_who_trains_keeps_nobody_from_training(run):
    with claiming.locked(run):
        assert claiming.is_held(run)
        with pytest.raises(UserError), claiming.locked(run):
            pass
    import fcntl

    handle = os.open(run, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as `is_held` has for an instant
    assert not claiming.is_held(run)
    timer = threading.Timer(0.1, os.close, [handle])
    timer.start()
    with claiming.locked(run):
        timer.join()
        assert claiming.is_held(run)


@pytest.mark.parametrize("name", [runs.WEIGHTS, runs.RAW_WEIGHTS])
def test_damaged_weights_of_a_finished_run_come_back_from_its_checkpoint(run, capsys, name):
    whole = (run / name).read_bytes()
    (run / name).write_bytes(whole[:-7])
    assert cli.main(["resume", str(run), "--no-figures"]) == 0
    assert (run / name).read_bytes() == whole
    assert runs.read(run).status.ended == "finished"


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")
@pytest.mark.parametrize("ignored", [False, True], ids=["heard", "nohup"])
def test_a_terminal_that_hangs_up_leaves_a_checkpoint(tmp_path, monkeypatch, capsys, ignored):
    after = MetricsLog.after

    def hung_up(log, progress):
        if progress.update == 2:
            os.kill(os.getpid(), signal.SIGHUP)
        after(log, progress)

    monkeypatch.setattr(MetricsLog, "after", hung_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        code = cli.main(["train", "digits", *OPTIONS, "--out", str(tmp_path / "run")])
    finally:
        signal.signal(signal.SIGHUP, before)
    status = runs.read(tmp_path / "run").status
    assert (code, status.ended, status.update) == ((0, "finished", 6) if ignored else (129, "interrupted", 3))


def test_where_learning_diverged_is_kept_though_its_numbers_are_infinite(tmp_path):
    divergence = grbm.Divergence("gradient", 7, ("min_var", "learning_rate"), 2, math.inf, math.nan)
    save_status(tmp_path, runs.Status("diverged", 7, "CPU", divergence))
    text = (tmp_path / "status.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = runs.read_status(tmp_path)
    assert again.divergence.remedies == ("min_var", "learning_rate")
    assert math.isnan(again.divergence.chains_v2)
    assert str(again) == str(divergence)
    assert "visible unit 2 (variance inf" in str(again)
    assert str(runs.Status("diverged", 7)) == "diverged at update 7"
