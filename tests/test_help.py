"""The command line as somebody meets it who does not know it: quick help, close names, short options, JSON, lists."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import grbm
from grbm import GRBM, PCD, FitOptions, GaussianBernoulliRBM, Gibbs, ModifiedCD, TrainState, cli, fit, runs
from grbm.cli.common import function_of
from grbm.cli.completing import words
from grbm.cli.names import COMMANDS
from grbm.evaluate import ais
from grbm.report.listing import runs_in
from grbm.report.plots import curve, together
from grbm.report.table_plots import correlations, farthest, marginals
from grbm.runs.claiming import locked
from grbm.runs.presets import PRESETS
from tests.helpers import refused

TINY = ["--updates", "4", "--n-hidden", "6", "--log.no-tensorboard", "--no-figures"]


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "8000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["by itself", "as it was", "as its policy says"],
)
def test_threads_are_told_to_wait_briefly_before_pytorch_begins(given, found):
    """By a finder that looks when PyTorch is first imported: later it would be too late."""
    code = """
import os, sys

class Look:
    def find_spec(self, name, *args):
        if name == "torch":
            print("at import:", os.environ.get("GOMP_SPINCOUNT"))
            sys.exit()

sys.meta_path.insert(0, Look())
from grbm import cli
cli.main(["doctor", "--machine"])
"""
    env = {k: x for k, x in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env | given)
    assert done.stdout.splitlines()[0] == f"at import: {found}"


@pytest.mark.whole
@pytest.mark.parametrize("after", [0.3, 0.7, 1.2, 2.0])
def test_ctrl_c_while_it_starts_prints_no_traceback(tmp_path, after):
    command = [sys.executable, "-m", "grbm", "train", "digits", "--out", str(tmp_path / "run"), "--no-figures"]

    def heed() -> None:  # where these tests run in the background, children would inherit that Ctrl-C is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    time.sleep(after)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    if "grbm" not in err and (child.returncode == -signal.SIGINT or "init_import_site" in err):
        pytest.skip("Python itself had not begun")
    assert child.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -m grbm completion bash | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.stderr == ""


# What somebody meant


def test_close_names_are_suggested(tmp_path, capsys):
    refused(["trian", "digits"], capsys, "did you mean train?")
    refused(["train", "digit"], capsys, "did you mean digits?")
    refused(["train", "digits", "--larning-rate", "1"], capsys, "did you mean --train.learning-rate")
    refused(["train", "digits", "--epochs", "3"], capsys, "did you mean --updates (an epoch is")
    refused(["train", "digits", "--learning_rate", "3"], capsys, "did you mean --lr?")
    (tmp_path / "config.json").write_text("{}")
    refused(["sample", tmp_path, "--sampler", "gibs"], capsys, "did you mean gibbs?")
    refused(["reproduce", "table4"], capsys, "did you mean table3")
    refused(["completion", "bahs"], capsys, "did you mean bash?")
    refused(["train", "--lr", "3"], capsys, "PRESET --lr")


def test_short_options_are_the_long_ones(tmp_path, capsys):
    short = ["--updates", "7", "--lr=0.3", "--n-hidden", "9", "--batch-size", "11", "--sampler", "partial-gibbs"]
    out = ["--out", str(tmp_path / "run")]
    assert cli.main(["train", "digits", *short, *out, "--no-figures", "--log.no-tensorboard"]) == 0
    config = runs.RunConfig.read(tmp_path / "run" / "config.json")
    assert (config.train.n_updates, config.train.learning_rate, config.model.n_hidden) == (7, 0.3, 9)
    assert (config.train.batch_size, config.sampler.name) == (11, "partial-gibbs")
    assert "--lr=0.3" in config.command
    capsys.readouterr()


def test_help_shows_first_what_applies_to_the_preset(capsys):
    for preset, first, other in (
        ("array", "--data FILE", "--dataset.n-points"),
        ("isotropic", "--dataset.n-points", "--data "),
    ):
        with pytest.raises(SystemExit):
            cli.main(["train", preset, "--help-all"])
        options = capsys.readouterr().out
        assert cli.main(["train", preset, "--help"]) == 0
        head = capsys.readouterr().out
        assert first in head
        assert other not in head
        assert re.search(rf"--updates +{PRESETS[preset].config.train.n_updates} +number of updates\n", head)
        assert len(head.splitlines()) < 40
        flags = re.findall(r"^  (--\S+)", head, re.MULTILINE)
        longest = max(flags, key=len)
        assert f"{longest} " in options, "which stands apart from its value"
        assert f"grbm train {preset} --help-all" in head


def test_help_explains_all_that_people_change(capsys):
    for preset in PRESETS:
        assert cli.main(["train", preset, "--help"]) == 0
        for line in capsys.readouterr().out.splitlines():
            if line.startswith("  --") and not line.startswith("  --sampler."):
                assert re.search(r"  [a-z]\S* .*[a-z]{3}", line.partition("  --")[2]), line


def test_the_configuration_of_a_run_makes_another(tmp_path, capsys):
    assert cli.main(["train", "digits", *TINY, "--lr", "0.07", "--out", str(tmp_path / "a")]) == 0
    again = ["train", "--config", str(tmp_path / "a" / "config.json"), "--no-figures"]
    assert cli.main([*again, "--out", str(tmp_path / "b")]) == 0
    a, b = (runs.read(tmp_path / name) for name in "ab")
    assert torch.equal(a.model.W, b.model.W)
    assert cli.main(["train", "--config", str(tmp_path / "a"), "--no-figures", "--out", str(tmp_path / "d")]) == 0
    assert cli.main([*again, "--seed", "5", "--lr", "0.2", "--out", str(tmp_path / "c")]) == 0
    c = runs.read(tmp_path / "c").config
    assert (c.seed, c.train.learning_rate, c.model.n_hidden, c.preset) == (5, 0.2, 6, "digits")
    refused(["train", "--config", tmp_path / "none.json"], capsys, "none.json")
    refused(["train", "digits", *again[1:]], capsys, "--config", "digits")
    (tmp_path / "x.json").write_text('{"seed": 1}')
    refused(["train", "--config", tmp_path / "x.json"], capsys, "is not a run's configuration")


def test_json_alone_on_standard_output(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert cli.main(["train", "isotropic", *TINY, "--out", run]) == 0
    for args in (
        ["evaluate", run, "--samples", "10"],
        ["mixing", run, "--sampler", "gibbs", "--draws", "10"],
        ["doctor", run],
    ):
        capsys.readouterr()
        assert cli.main([*args, "--json"]) in (0, 3)
        found = json.loads(capsys.readouterr().out)
        name = {"evaluate": "evaluation.json", "mixing": "mixing.json"}.get(args[0])
        assert name is None or found == json.loads((tmp_path / "run" / name).read_text())


def test_the_list_of_runs(tmp_path, capsys):
    for name in ("a", "deeper/b"):
        assert cli.main(["train", "digits", *TINY, "--out", str(tmp_path / name)]) == 0
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / "config.json").write_text("{}")
    (tmp_path / "deeper" / "b" / "status.json").unlink()
    assert cli.main(["evaluate", str(tmp_path / "a"), "--samples", "10"]) == 0
    capsys.readouterr()
    assert cli.main(["list", str(tmp_path)]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["run", "data"]
    assert first.split()[1:4] == ["digits", "finished", "4"]
    assert second.split()[1:3] == ["digits", "killed"]
    with locked(tmp_path / "deeper" / "b"):  # as by a process that trains
        assert [run.ended for run in runs_in(tmp_path)] == ["finished", "running"]
    assert cli.main(["list", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    scores = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    assert listed[0]["log_likelihood"] == scores["log_likelihood_test"]
    assert [run.folder for run in runs_in(tmp_path)] == [run["folder"] for run in listed]


def test_completion_knows_every_command_preset_and_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").touch()
    known = words()
    assert set(known) == set(COMMANDS)
    read_words = {name for name in COMMANDS if function_of(name)[1] == list[str]}
    assert read_words == {"train", "reproduce", "completion"}
    assert known["train"][0] == list(PRESETS)
    assert {"--lr", "--train.learning-rate", "--no-figures", "--config"} <= set(known["train"][1])
    assert shutil.which("bash")
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for line, expected in (
        ("grbm tra", "train"),
        ("grbm train dig", "digits"),
        ("grbm train peo", "people.csv"),
        ("grbm sample x --we", "--weights"),
    ):
        ask = f'COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; _grbm; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
    for shell in ("zsh", "fish"):
        assert cli.main(["completion", shell]) == 0
        assert "--lr" in (said := capsys.readouterr().out) or "-l lr" in said


# Runs without a checkpoint, finished runs


def test_a_run_killed_before_its_first_checkpoint_says_how_to_go_on(tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(run)]) == 0
    for name in ("model.safetensors", "model_raw.safetensors", "status.json"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    for command in ("doctor", "report", "sample", "figures", "evaluate"):
        refused([command, run], capsys, f"grbm resume {run}")
    assert cli.main(["resume", str(run), "--no-figures"]) == 0
    assert runs.read(run).status.ended == "finished"


def test_resuming_a_finished_run_does_nothing_but_say_so(tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(run)]) == 0
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    capsys.readouterr()
    assert cli.main(["resume", str(run)]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.whole
def test_a_unit_far_broader_than_the_data_is_remarked_on_while_it_trains(tmp_path, capsys):
    out = ["--out", str(tmp_path / "run")]
    wild = ["--lr", "0.5", "--train.variance-rate", "40", "--updates", "60", "--n-hidden", "16", "--no-figures"]
    assert cli.main(["train", "digits", "--train.spectral-norm", "None", *wild, *out]) == 0
    err = capsys.readouterr().err
    assert err.count("times the data's variance: the model no longer describes it") == 1
    assert cli.main(["train", "digits", *TINY, "--out", str(tmp_path / "calm")]) == 0
    assert "no longer describes it" not in capsys.readouterr().err


# In Python


class Squares(Dataset):
    """Pairs of a picture and a label."""

    def __len__(self):
        return 30

    def __getitem__(self, k):
        return torch.full((1, 2, 3), float(k % 5) - 2, dtype=torch.float64), k


class Spoilt(Squares):
    def __getitem__(self, k):
        return torch.full((6,), float("nan") if k == 7 else 1.0)


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.randn(4, 6)


def trained_on(data):
    model = GRBM(6, 3, seed=0)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01), seed=0)
    for _ in fit(state, data, ModifiedCD(Gibbs(), 2), FitOptions(n_updates=5, batch_size=10)):
        pass
    return state.model.W


def test_fit_takes_the_data_sets_of_pytorch():
    """With the same numbers as their rows in a tensor."""
    rows = torch.stack([Squares()[k][0].flatten().float() for k in range(30)])
    expected = trained_on(rows)
    given = (
        Squares(),
        DataLoader(Squares(), batch_size=7, shuffle=True),
        TensorDataset(rows.view(30, 2, 3)),
        rows.numpy(),
    )
    for data in given:
        assert torch.equal(trained_on(data), expected)
    chosen = DataLoader(Squares(), sampler=torch.utils.data.SubsetRandomSampler(range(9)))
    own = DataLoader(Squares(), collate_fn=lambda items: items)
    for wrong, said in ((chosen, "SubsetRandomSampler"), (own, "collate_fn"), (Spoilt(), "Item 7 of the data set")):
        with pytest.raises((TypeError, ValueError), match=said):
            trained_on(wrong)
    with pytest.raises(TypeError, match=r"state must be a grbm\.TrainState"):
        next(fit(GRBM(6, 3), rows, ModifiedCD(Gibbs(), 2)))
    for wrong, said in ((Stream(), "is a stream"), (DataLoader(Stream()), "is a stream"), ([[1.0] * 6], "got list")):
        with pytest.raises(TypeError, match=said):
            trained_on(wrong)
    with pytest.raises(TypeError, match="make one of a Dataset by"):
        GaussianBernoulliRBM(4).fit(DataLoader(Squares()))


def test_counts_below_one_are_refused_with_a_sentence():
    model = GRBM(3, 2)
    for count in (-1, 0):
        with pytest.raises(ValueError, match="n_chains must be at least 1"):
            grbm.sample(model, Gibbs(), n_chains=count)
        with pytest.raises(ValueError, match="n_chains"):
            PCD(Gibbs(), 2, count)
        with pytest.raises(ValueError, match="n_chains"):
            ModifiedCD(Gibbs(), 2, n_chains=count)
        with pytest.raises(ValueError, match="n_chains at least 2"):
            ais.log_z(model, n_chains=count)


def test_the_package_lists_its_public_names_alone():
    assert dir(grbm) == sorted(grbm.__all__)
    assert "annotations" not in dir(grbm)


# Figures


def test_one_curve_that_runs_away_does_not_flatten_the_others():
    calm = [[1.0, 0.5, 0.2], [1.2, 0.7, 0.3]]
    assert together(calm, log=False) is None
    low, high = together([*calm, [1.0, 1e5, 1e9]], log=False)
    assert low < 0.2
    assert 1.2 < high < 3
    assert together([*calm, [float("nan")] * 3], log=False) is None
    low, high = together([*calm, [1.0, 1e5, 1e9]], log=True)
    assert 0 < low < 0.2
    assert 1.2 < high < 3
    assert together([[1.0, 2.0], [100.0, 200.0]], log=True) is None  # two sensible runs far apart


def test_distances_around_nothing_are_drawn_too():
    """An unbiased distance is below 0 as often as not once there is none: such are drawn as large as that noise."""
    metrics = [{"update": k, "energy_distance": x} for k, x in enumerate([3.0, 1.0, 0.1, -0.02, 0.01, -0.01])]
    axes = curve({"": metrics}, "energy_distance", "x", log=True).axes[0]
    low, high = axes.get_ylim()
    assert axes.get_yscale() == "log"
    assert 0.01 < low < 0.02
    assert high > 3
    assert axes.lines[0].get_ydata().tolist() == [3.0, 1.0, 0.1, 0.02, 0.02, 0.02]
    assert "noise" in axes.texts[0].get_text()


def test_tables_are_shown_by_name(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 3))
    np.savez(tmp_path / "x.npz", x=x, columns=np.array(["alcohol", "ash", "hue"]))
    run = tmp_path / "run"
    args = ["train", "array", "--data", str(tmp_path / "x.npz"), "--updates", "5", "--n-hidden", "4", "--out", str(run)]
    assert cli.main(args) == 0
    assert {"marginals.png", "correlations.png", "learning.png"} == {p.name for p in (run / "figures").iterdir()}
    assert runs.read(run).load_data().columns == ("alcohol", "ash", "hue")
    names = ("alcohol", "ash", "hue")
    rows = torch.from_numpy(x)
    titles = [axes.get_title() for axes in marginals(rows, rows, names).axes]
    assert titles[:3] == list(names)
    labels = [text.get_text() for text in correlations(rows, rows, names).axes[0].get_xticklabels()]
    assert labels == list(names)


def test_of_many_columns_those_that_differ_most_are_shown():
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(500, 40, generator=rng)
    drawn = torch.randn(500, 40, generator=rng)
    drawn[:, 17] += 2
    drawn[:, 31] *= 3
    assert {17, 31} <= set(farthest(data, drawn, 5))
    assert len(marginals(data, drawn, [str(k) for k in range(40)]).axes) == 24


def test_correlations_are_those_of_numpy():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)))
    shown = correlations(x, x, list("abcd")).axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, np.corrcoef(x.numpy().T), atol=1e-12)
