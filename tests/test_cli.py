"""The command line as a user meets it: what it writes, what it prints, what it refuses."""

import json
import math
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import GRBM, cli, runs
from grbm.core import files
from grbm.data import MIXTURES
from grbm.data.images import tile
from grbm.data.tables import spread
from grbm.evaluate.exact import quadrature
from grbm.evaluate.mixtures import spacing
from grbm.evaluate.watching import HeldOut
from grbm.report.sheets import filter_sheet
from grbm.runs import progress
from grbm.runs.config import RunConfig
from grbm.runs.presets import PRESETS
from grbm.runs.sampling import generate, trajectory
from tests.helpers import refused

TINY = ["--train.n-updates", "6", "--model.n-hidden", "12", "--objective.n-steps", "3"]
QUIET = ["--no-figures", "--log.no-tensorboard"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory, trained_runs):
    return trained_runs.copy(tmp_path_factory.mktemp("runs") / "digits", "digits", *TINY)


def test_train_writes_a_whole_run(digits):
    assert {p.name for p in digits.iterdir()} == {
        "config.json",
        "status.json",
        "metrics.jsonl",
        "model.safetensors",  # the average, and the last parameters:
        "model_raw.safetensors",
        "data.safetensors",
        "figures",
        "checkpoints",
        "tensorboard",
        "report.html",
    }
    figures = {p.name for p in (digits / "figures").iterdir()}
    assert figures == {"samples.png", "chains.png", "chains.gif", "filters.png", "nearest.png", "learning.png"}
    with Image.open(digits / "figures" / "chains.gif") as film:
        assert film.n_frames == len(trajectory(runs.read(digits), 2, n_states=50)[1])
    run = runs.read(digits)
    assert run.model.W.shape == (64, 12)
    assert [m["update"] for m in run.metrics] == [1, 2, 3, 4, 5, 6]
    for key in ("grad_norm", "reconstruction", "log_var_mean", "free_energy_data", "seconds"):
        assert all(np.isfinite(m[key]) for m in run.metrics)
    assert run.config == RunConfig.read(digits / "config.json")


def test_the_same_command_gives_the_same_weights(digits, tmp_path):
    assert cli.main(["train", "digits", *TINY, "--no-figures", "--out", str(tmp_path / "again")]) == 0
    first, again = (files.read_tensors(f / runs.WEIGHTS) for f in (digits, tmp_path / "again"))
    assert all(torch.equal(first[k], again[k]) for k in first)


def test_sample_evaluate_and_figures(digits, capsys, figures_drawn):
    assert cli.main(["sample", str(digits), "--n", "20"]) == 0
    drawn = np.load(digits / "samples" / "samples.npy")
    assert drawn.shape == (20, 64)
    assert drawn.dtype == np.float32
    assert np.isfinite(drawn).all()
    assert (digits / "samples" / "samples.png").is_file()
    refused(["sample", digits], capsys, "samples.npy", "--overwrite")
    assert cli.main(["sample", str(digits), "--n", "20", "--sampler", "gibbs", "--overwrite", "--seed", "2"]) == 0
    assert not np.array_equal(drawn, np.load(digits / "samples" / "samples.npy"))
    assert cli.main(["evaluate", str(digits), "--samples", "50"]) == 0
    scores = json.loads((digits / "evaluation.json").read_text())
    assert scores["log_z_method"] == "enumeration"
    assert np.isfinite(scores["log_likelihood_test"])
    (digits / "figures" / "filters.png").unlink()
    figures_drawn.clear()
    assert cli.main(["figures", str(digits)]) == 0
    assert (digits / "figures" / "filters.png").is_file()
    assert_figures_show(runs.read(digits), figures_drawn)


def assert_figures_show(run, figures) -> None:
    """Each figure of a run on images has its titles, and its sheets show the data, samples and weights."""
    samples, chains, filters, nearest, learning = figures
    train, shape = run.load_data().train, run.image_shape
    real, made = train[spread(len(train), 100)], generate(run, 100, seed=1)
    for axes, rows in zip(samples.axes, (real, made), strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), tile(rows, shape, 10), atol=1e-6)
    assert samples.axes[0].get_title() == "training images"
    states, steps = trajectory(run, 10, seed=1, n_states=13)
    sheet = tile(states.transpose(0, 1).flatten(0, 1), shape, len(steps))
    np.testing.assert_allclose(chains.axes[0].images[0].get_array(), sheet, atol=1e-6)
    assert [label.get_text() for label in chains.axes[0].get_xticklabels()] == [str(step) for step in steps]
    np.testing.assert_allclose(filters.axes[0].images[0].get_array(), filter_sheet(run.model.W, shape, 100), atol=1e-6)
    assert f"Filters: all {run.model.n_hidden} hidden units" in filters.axes[0].get_title()
    assert nearest.axes[0].get_title().startswith("Each sample and the 4 training images nearest to it.")
    first = nearest.axes[0].images[0].get_array()[1:9, 1:9]  # the first sample
    np.testing.assert_allclose(first[..., 0], made[0].clamp(0, 1).view(8, 8), atol=1e-6)
    curves = {axes.get_title(): axes for axes in learning.axes}
    assert len(curves) == 6
    norms = curves["gradient norm before clipping"].lines[0]
    assert norms.get_xdata().tolist() == [m["update"] for m in run.metrics]
    assert norms.get_ydata().tolist() == [m["grad_norm"] for m in run.metrics]


def test_the_log_likelihood_is_printed_with_its_digits_and_what_it_means(digits, capsys):
    command = [
        "evaluate",
        str(digits),
        "--log-likelihood",
        "--samples",
        "10",
        "--ais-steps",
        "50",
        "--ais-chains",
        "50",
    ]
    assert cli.main(command) == 0
    scores = json.loads((digits / "evaluation.json").read_text())
    printed = capsys.readouterr().out
    for name in ("log_likelihood", "dequantised", "bits_per_dimension"):
        mean, error = scores[f"{name}_train"], scores[f"{name}_train_error"]
        decimals = max(0, 1 - math.floor(math.log10(error)))
        assert f"{mean:.{decimals}f} ± {error:.{decimals}f}" in printed
    assert scores["log_z_method"] in printed
    assert "1,618 rows" in printed
    assert "log p(x) = -F(z) - log Z" in " ".join(printed.split())
    refused(["evaluate", digits, "--ais-steps", "0"], capsys, "--ais-steps")
    refused(["evaluate", digits, "--ais-chains", "1"], capsys, "--ais-chains")


def test_overwriting_a_run_leaves_nothing_of_its_trajectory(tmp_path, capsys):
    command = ["train", "digits", *TINY, *QUIET, "--out", str(tmp_path / "run")]
    assert cli.main([*command, "--checkpoint.trajectory", "0.9"]) == 0
    assert list((tmp_path / "run" / "trajectory").iterdir())
    assert cli.main(["sample", str(tmp_path / "run"), "--n", "3", "--sampler", "trajectory-tempering"]) == 0
    assert cli.main([*command, "--overwrite"]) == 0
    assert not (tmp_path / "run" / "trajectory").exists()
    refused(["sample", tmp_path / "run", "--sampler", "trajectory-tempering"], capsys, "--checkpoint.trajectory")
    tempered = ["--sampling.sampler.name", "trajectory-tempering", "--out", str(tmp_path / "other")]
    refused(["train", "digits", *TINY, *tempered], capsys, "--checkpoint.trajectory")
    assert not (tmp_path / "other").exists()
    powered = ["--sampler.name", "trajectory-tempering", "--sampler.power", "2", "--out", str(tmp_path / "other")]
    refused(["train", "digits", *powered], capsys, "save_below")


def test_a_mixture_run_has_exact_scores(tmp_path, capsys):
    folder = tmp_path / "mixture"
    few = ["--objective.n-chains", "10", *QUIET]
    assert cli.main(["train", "isotropic", *TINY, *few, "--out", str(folder)]) == 0
    assert (folder / "model_raw.safetensors").is_file()  # the average is the model, the last parameters beside it
    capsys.readouterr()
    assert cli.main(["evaluate", str(folder), "--samples", "100"]) == 0
    said = capsys.readouterr().out
    assert "log-likelihood, nats per sample" in said
    assert "KL(data || model), nats" in said
    assert "log_likelihood_test" not in said
    scores = json.loads((folder / "evaluation.json").read_text())
    assert scores["log_z_method"] == "quadrature"
    assert sum(scores["mode_mass"]) == pytest.approx(1, abs=1e-6)
    assert scores["kl_data_model"] > 0


def test_a_mixture_run_has_figures_of_its_density(tmp_path, trained_runs, figures_drawn):
    folder = trained_runs.copy(tmp_path / "mixture", "isotropic", *TINY, "--objective.n-chains", "10", *QUIET)
    assert cli.main(["figures", str(folder)]) == 0
    assert {path.name for path in (folder / "figures").iterdir()} == {"density.png", "learning.png"}
    data, density, samples, _ = figures_drawn[0].axes
    run = runs.read(folder)
    np.testing.assert_allclose(data.collections[0].get_offsets(), run.load_data().train[:1000])
    grid = quadrature(run.model, max_spacing=spacing(MIXTURES["isotropic"]))
    shown = np.asarray(density.collections[0].get_array()).ravel()
    np.testing.assert_allclose(shown, grid.log_density + run.transform.log_det)
    np.testing.assert_allclose(samples.collections[0].get_offsets(), generate(run, 1000, seed=1))


def test_any_array_trains(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2, 3)) * [1, 100, 1e-3] + 7
    x[:, 0, 0] = 5.0  # a constant column is no obstacle
    np.save(tmp_path / "x.npy", x)
    assert (
        cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, *QUIET, "--out", str(tmp_path / "run")])
        == 0
    )
    assert cli.main(["evaluate", str(tmp_path / "run"), "--samples", "20"]) == 0
    assert cli.main(["sample", str(tmp_path / "run"), "--n", "500"]) == 0
    drawn = np.load(tmp_path / "run" / "samples" / "samples.npy")
    assert 30 < drawn[:, 1].std() < 300  # in the data's own units: 100, 0.001
    assert np.abs(drawn[:, 2] - 7).max() < 0.1


def test_what_was_asked_for_stays_where_a_table_is_wide_or_short(tmp_path):
    """Settings follow the table, but for those that were named, even by the value that they have for other tables."""
    np.save(tmp_path / "wide.npy", np.sign(np.random.default_rng(0).normal(size=(300, 60))))

    def trained(out, *args):
        assert cli.main(["train", *args, "--no-figures", "--out", str(tmp_path / out)]) == 0
        return runs.RunConfig.read(tmp_path / out / "config.json")

    wide, small = ["array", "--data", str(tmp_path / "wide.npy")], ["--updates", "3"]
    usual = trained("usual", *wide, *small)
    assert (usual.dataset.standardise, usual.objective.n_steps, usual.train.validation) == ("pixel", 5, 0.0)
    asked_for = ["--objective.n-steps=1", "--train.validation", "0.1", "--sampling.n-steps", "7"]
    named = trained("named", *wide, *small, *asked_for)
    assert (named.dataset.standardise, named.objective.n_steps, named.train.validation) == ("pixel", 1, 0.1)
    assert (named.sampling.sampler.name, named.sampling.n_steps) == ("annealed", 7)
    white = trained("white", *wide, *small, "--dataset.standardise", "whiten")
    assert (white.sampler.name, white.model.start, white.train.rounds) == ("global-moves", "matched", 0)
    assert white.model.n_hidden == 67  # a quarter of the rows to learn from
    same = trained("white", *wide, *small, "--dataset.standardise", "whiten", "--resume")
    assert same.difference(white) is None
    again = trained("again", "--config", str(tmp_path / "named"))
    assert again.difference(named) is None
    assert trained("again", "--config", str(tmp_path / "named"), "--resume").difference(named) is None


def test_your_own_pictures_learn_as_mnist_does_but_for_limits():
    """Limits are for pictures of black on which something stands; photographs have none."""
    own, mnist = (PRESETS[name].config for name in ("images", "mnist-small"))
    model, train = replace(mnist.model, start_var=1.0), replace(own.train, n_updates=mnist.train.n_updates)
    dataset = replace(mnist.dataset, censor="none")
    drawn = replace(mnist.sampling, n_steps=own.sampling.n_steps)
    assert replace(own, dataset=dataset, preset="mnist-small") == replace(
        mnist, dataset=dataset, model=model, train=train, sampling=drawn
    )
    assert (own.dataset.censor, mnist.dataset.censor) == ("none", "auto")


def test_paper_samplers_by_name(tmp_path):
    for k, sampler in enumerate(["langevin", "gibbs-langevin"]):
        options = ["--sampler.name", sampler, "--sampler.adjust-from", "0", "--sampler.per-unit", "True"]
        out = tmp_path / str(k)
        assert cli.main(["train", "paper-isotropic", *TINY, *options, "--out", str(out), "--no-figures"]) == 0
        run = runs.read(out)
        assert 0 < run.metrics[-1]["accept_prob"] <= 1
        assert run.config.sampling.sampler == run.config.sampler  # it samples as it trains
    # the options that a preset gave to its own sampler do not get in the way of another
    out = tmp_path / "gibbs"
    gibbs = ["--dataset.name", "digits", "--sampler.name", "gibbs", "--out", str(out), "--no-figures"]
    assert cli.main(["train", "paper-mnist", *TINY, *gibbs]) == 0
    assert runs.read(out).config.sampler.step_size is None


def test_bad_input_is_refused_with_one_sentence(tmp_path, capsys):
    out = ["--out", tmp_path / "new"]
    refused(["nonsense"], capsys, "nonsense", "train")
    refused(["train", "nonsense"], capsys, "nonsense", "digits")
    refused(["train", "digits", "--model.n-hidden", 0, *out], capsys, "--model.n-hidden", "above 0")
    refused(["train", "digits", "--train.n-updates", -1, *out], capsys, "--train.n-updates")
    refused(["train", "digits", "--model.n-hidden", "many", *out], capsys, "n-hidden", by_parser=True)
    refused(["train", "digits", "--no-such-option", 1, *out], capsys, "no-such-option")
    refused(["train", "digits", "--sampler.step-size", 1.0, *out], capsys, "step_size")
    refused(["train", "digits", "--sampler.rho", 0.5, *out], capsys, "rho")
    for name in ("partial-gibbs", "parallel-tempering"):
        refused(["train", "digits", "--sampler.name", name, "--sampler.rho", 1.5, *out], capsys, "rho")
    refused(["train", "digits", "--sampler.name", "annealed", *out], capsys, "annealed")
    refused(["train", "digits", "--train.clip-norm", -1, *out], capsys, "--train.clip-norm")
    refused(["train", "digits", "--train.variance-rate", -1, *out], capsys, "--train.variance-rate")
    refused(["train", "digits", "--train.rounds", -1, *out], capsys, "--train.rounds")
    refused(["train", "digits", "--train.spectral-norm", 0, *out], capsys, "--train.spectral-norm must be above 0")
    adam = ["--train.spectral-norm", 1, "--train.optimizer", "adam"]
    refused(["train", "digits", *adam, *out], capsys, "--train.spectral-norm goes with the optimizer sgd")
    adam[1] = "None"
    refused(["train", "digits", *adam, "--train.adam-beta1", 1.5, *out], capsys, "adam-beta1")
    refused(["train", "digits", "--objective.n-chains", -5, *out], capsys, "--objective.n-chains")
    refused(["train", "digits", "--objective.burn-in", 3, *out], capsys, "pcd", "burn_in")
    refused(["train", "digits", "--objective.restart", 2, *out], capsys, "restart", "2")
    refused(["train", "digits", "--data", tmp_path / "x.npy", *out], capsys, "--data")
    refused(["train", "digits", "--device", "meta", *out], capsys, "meta")
    refused(["train", "digits", "--device", "cuda:99", *out], capsys, "cuda:99")
    refused(["train", "array", *out], capsys, "--data FILE")
    refused(["train", "array", "--data", tmp_path / "none.npy", *out], capsys, "none.npy")
    refused(["train", "mnist-small", "--data-dir", tmp_path / "none", *out], capsys, "none", "--data-dir")
    refused(["sample", tmp_path / "none"], capsys, tmp_path / "none", "config.json")
    refused(["reproduce", "fig1", "--jobs", 0], capsys, "--jobs")
    assert not (tmp_path / "new").exists()  # nothing was claimed for a run that could not start
    for content, words in ((np.full((5, 3), np.nan), "every value is missing"), (np.full((9, 3), 2.0), "constant")):
        np.save(tmp_path / "x.npy", content)
        refused(["train", "array", "--data", tmp_path / "x.npy", *out], capsys, words)
    (tmp_path / "x.npy").write_text("text")
    refused(["train", "array", "--data", tmp_path / "x.npy", *out], capsys, "not a whole .npy")


def test_nothing_existing_is_overwritten(digits, tmp_path, capsys):
    before = (digits / "model.safetensors").read_bytes()
    refused(["train", "digits", *TINY, "--out", digits], capsys, digits, "--overwrite")
    assert (digits / "model.safetensors").read_bytes() == before
    (tmp_path / "notes.txt").write_text("mine")
    refused(["train", "digits", *TINY, "--out", tmp_path, "--overwrite"], capsys, tmp_path)
    refused(["train", "digits", *TINY, "--out", tmp_path / "notes.txt"], capsys, "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    copy = tmp_path / "copy"
    shutil.copytree(digits, copy)
    (copy / "notes.txt").write_text("mine")
    refused(["train", "digits", *TINY, "--out", copy, "--overwrite"], capsys, copy / "notes.txt")
    assert (copy / "model.safetensors").read_bytes() == before
    (copy / "notes.txt").unlink()
    assert cli.main(["train", "digits", *TINY, *QUIET, "--seed", "9", "--out", str(copy), "--overwrite"]) == 0
    assert (copy / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "missing", "foreign"])
@pytest.mark.parametrize("name", ["model.safetensors", "data.safetensors", "config.json"])
def test_damaged_runs_are_named(digits, tmp_path, capsys, name, damage):
    copy = tmp_path / "copy"
    shutil.copytree(digits, copy)
    path = copy / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "foreign":
        files.write_tensors(path, {"W": torch.zeros(3, 2)})
    else:
        path.write_bytes(
            {"truncate": content[: len(content) // 2], "empty": b"", "flip": b"\xff" + content[1:]}[damage]
        )
    refused(["evaluate", copy], capsys, name)


@pytest.mark.parametrize("name", ["model.safetensors", "model_raw.safetensors", "data.safetensors"])
def test_no_flipped_bit_changes_what_is_loaded(digits, tmp_path, name):
    """Wherever it is: refused, or (in the header's own checksum entry, say) without effect."""
    path, before = tmp_path / name, files.read_tensors(digits / name)
    content = (digits / name).read_bytes()
    header, refusals = 8 + int.from_bytes(content[:8], "little"), 0
    for place in (*range(9, header, 3), *range(header, len(content), len(content) // 40)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            after = files.read_tensors(path)
        except files.UserError:
            refusals += 1
            continue
        assert place < header
        assert after.keys() == before.keys()
        assert all(torch.equal(after[key], before[key]) for key in before)
    assert refusals > 40


def test_a_killed_run_names_its_damaged_checkpoints(digits, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(digits, folder)
    for name in ("status.json", "model.safetensors"):
        (folder / name).unlink()
    (newest,) = (folder / "checkpoints").iterdir()
    shutil.copytree(newest, folder / "checkpoints" / "update-00000009")
    damaged = folder / "checkpoints" / "update-00000009" / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    assert cli.main(["sample", str(folder), "--n", "2", "--overwrite"]) == 0
    assert "update-00000009 is damaged" in capsys.readouterr().err
    shutil.rmtree(newest)
    refused(["sample", folder, "--overwrite"], capsys, folder / "checkpoints", notes=1)


def test_a_run_that_diverges_says_so_and_keeps_its_weights(tmp_path, capsys):
    options = ["--sampler.name", "langevin", "--sampler.step-size", "2.5", "--sampler.adjust-from", "0"]
    out = tmp_path / "run"
    assert cli.main(["train", "digits", *TINY, *options, "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "visible unit" in error
    assert "per_unit" in error
    assert error.count("\n") == 1
    assert torch.isfinite(runs.read(out).model.W).all()
    assert runs.read(out).status.divergence.unit is not None
    assert cli.main(["sample", str(out), "--n", "2"]) == 0
    assert "visible unit" in capsys.readouterr().err  # whoever uses the run is told


def test_data_that_changed_since_training_are_named(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 3)))
    out, data = tmp_path / "run", ["--data", str(tmp_path / "x.npy")]
    assert cli.main(["train", "array", *data, *TINY, "--out", str(out), "--no-figures"]) == 0
    np.save(tmp_path / "y.npy", np.load(tmp_path / "x.npy"))
    np.save(tmp_path / "x.npy", np.zeros((50, 4)))
    refused(["evaluate", out], capsys, "4 columns", "trained on 3")
    assert cli.main(["evaluate", str(out), "--samples", "10", "--data", str(tmp_path / "y.npy")]) == 0


def test_every_preset_reads_back_and_builds(tmp_path):
    for name, preset in PRESETS.items():
        config = preset.config
        files.write_text(tmp_path / "config.json", config.to_json())
        assert RunConfig.read(tmp_path / "config.json") == config
        assert config.preset == name
        if name not in ("array", "images"):
            config.check()


def test_help_teaches(capsys):
    assert cli.main([]) == 0
    assert cli.main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in PRESETS)
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "digits", "--help-all"])
    assert stop.value.code == 0
    assert "Langevin steps K per draw of h" in " ".join(capsys.readouterr().out.replace("│", "").split())


def test_writes_are_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.txt"
    files.write_text(path, "old")

    def fail_half_way():
        with files.replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def prepared(n_updates: int, *, n_validation: int = 0, counts: torch.Tensor | None = None, n_test: int = 0) -> Any:
    """What a bar is told of a run: three rows to learn from."""
    return SimpleNamespace(
        config=SimpleNamespace(train=SimpleNamespace(n_updates=n_updates)),
        dataset=SimpleNamespace(test=torch.zeros(n_test, 2)),
        validation=HeldOut(torch.zeros(n_validation, 2), weights=counts),
        data=torch.zeros(3, 2),
        state=SimpleNamespace(model=GRBM(2, 4), update=0),
    )


@pytest.mark.parametrize(("rows", "says"), [
    ({}, "3 rows of 2 visible units to learn from; 4 hidden units; 8 updates"),
    ({"n_validation": 2, "n_test": 1200}, "to learn from, 2 for validation, 1,200 held out; 4 hidden units"),
    ({"n_validation": 2, "counts": torch.tensor([1.0, 4.0])}, "to learn from, 5 for validation; 4 hidden units"),
])  # fmt: skip
def test_all_rows_of_a_file_are_accounted_for(rows, says, capsys):
    with progress.ProgressBar() as shown:
        shown.start(prepared(8, **rows))
    assert says in capsys.readouterr().out


def test_a_file_gets_a_line_of_progress_every_ten_seconds_and_the_last(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("grbm.runs.progress.time.perf_counter", lambda: now[0])
    record = {"accept_prob": None, "grad_norm": 1.0, "var_mean": 1.0}
    with progress.ProgressBar() as shown:
        shown.start(prepared(n_updates=8))
        for update in range(1, 9):
            now[0] += 4
            shown.update(update, record)
    told = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("  update")]
    assert told == ["3", "6", "8"]


@pytest.mark.parametrize(
    ("is_leader", "prepares", "says"), [(True, 0.6, True), (True, 0.0, False), (False, 0.6, False)]
)
def test_who_waits_for_the_data_is_told(monkeypatch, capsys, is_leader, prepares, says):
    """Once, by one of the processes, and only where it takes a while."""
    monkeypatch.setattr(progress, "PATIENCE", 0.3)
    with progress.ProgressBar(is_leader=is_leader) as shown:
        time.sleep(prepares)
        shown.start(prepared(n_updates=10))
        time.sleep(0.4)
    assert ("Preparing the data" in capsys.readouterr().out) == says
