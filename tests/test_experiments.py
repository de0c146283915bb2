"""`grbm reproduce table1` to `fig9`: each from tiny runs, which tables and figures share, and not twice."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import SpawnContext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import UserError, cli, runs
from grbm.data.images import tile
from grbm.data.tables import spread
from grbm.evaluate import references
from grbm.report.page import report
from grbm.report.sheets import filter_sheet
from grbm.reproduce import campaign, experiments
from grbm.reproduce.targets import FIGURES, TABLES, EverythingOptions
from grbm.runs import checkpoint
from grbm.runs.claiming import locked
from grbm.runs.config import CheckpointConfig
from grbm.runs.folder import save_status
from grbm.runs.sampling import generate, trajectory
from grbm.runs.training import train as train_run


def tiny(config):
    return replace(
        config,
        model=replace(config.model, n_hidden=8),
        objective=replace(config.objective, n_steps=3),
        train=replace(config.train, n_updates=3, batch_size=20),
        sampling=replace(config.sampling, n_steps=3),
    )


@dataclass(frozen=True)
class TinyOptions(EverythingOptions):
    """One run at a time, of `tiny` or other ``changes``, and few images to score."""

    jobs: int | None = 1
    fid_samples: int = 50
    scale: float | None = 0.0002
    changes: Callable = tiny


def reproduce(what, options):
    return experiments.target(what, options, lambda: None).make()


def reproduce_all(seconds, options):
    return experiments.reproduce_all(replace(options, budget=seconds), lambda: None)


@pytest.fixture(autouse=True, scope="module")
def _changed():
    """Runs are made smaller than `grbm reproduce` makes them."""
    made = experiments._config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "_config", lambda *args: getattr(args[-1], "changes", replace)(made(*args)))
        yield


@pytest.fixture(scope="module")
def options(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRBM_CACHE_DIR", str(folder / "cache"))
        patch.setattr(references, "mixture", partial(references.mixture, n_components=2))  # 20 of 784 columns take long
        yield TinyOptions(out=folder / "runs", data_dir=pictures)


@pytest.fixture(autouse=True)
def _no_pages(monkeypatch):
    """A run's page takes longer than its training here; one test has them."""
    monkeypatch.setattr(experiments, "report", lambda run: run.folder / runs.REPORT)


@pytest.mark.parametrize(
    "what", ["table1", *(pytest.param(x, marks=pytest.mark.whole) for x in TABLES if x != "table1")]
)
def test_a_table_puts_the_papers_number_beside_ours(what, options, capsys):
    text = reproduce(what, options)
    table = json.loads((options.folder / f"{what}.json").read_text())
    assert list(table["rows"]) == [*TABLES[what], "mnist-small"]
    assert table["rows"]["table1-gibbs-langevin"]["paper FID"] == 17.49
    assert all(row["Fréchet"] > 0 for row in table["rows"].values())
    assert list(table["references"]) == ["held-out images", "full-covariance Gaussian", "mixture of 20", "small VAE"]
    assert "17.49" in text
    assert "our recipe (mnist-small)" in text
    assert table["rows"]["mnist-small"]["paper FID"] is None
    assert all(row["seconds"] > 0 for row in table["rows"].values())
    assert "mixture of 20" in text
    assert "at scale 0.0002" in text
    pairs = {3 + 1: 6, 5: 10, 9: 36}[len(TABLES[what])]
    assert f"of {pairs} pairs stand in the paper's order" in " ".join(text.split())
    assert "60 training images, 60,000 in the paper" in " ".join(text.split())
    assert " to train" in capsys.readouterr().out
    assert reproduce(what, options) == text
    assert " 0 to train" in capsys.readouterr().out


def test_the_order_of_the_rows_counts_only_what_the_errors_allow(options):
    """Each pair that stands the other way round by two standard errors is named, and no other."""
    text = " ".join(reproduce("table1", options).split())
    rows = list(json.loads((options.folder / "table1.json").read_text())["rows"].values())[:5]
    right, wrong = 0, 0
    for better in rows:
        for worse in rows:
            if better["paper FID"] < worse["paper FID"]:
                gap = worse["Fréchet"] - better["Fréchet"]
                error = (worse["Fréchet ±"] ** 2 + better["Fréchet ±"] ** 2) ** 0.5
                right, wrong = right + (gap > 2 * error), wrong + (gap < -2 * error)
    assert f"Fréchet: {right} of 10 pairs" in text
    assert f"errors, {wrong} the other way round" in text
    assert text.count(" is better here than ") + text.count(" and than ") == wrong


def test_conditional_means_are_shown_of_the_same_runs(options, capsys):
    """Less noisy, so nearer to the data; nothing is trained again, and each output says which it shows."""
    states = " ".join(reproduce("table1", options).split())
    rows = json.loads((options.folder / "table1.json").read_text())["rows"]
    capsys.readouterr()
    means = " ".join(reproduce("table1", replace(options, mean=True)).split())
    assert " 0 to train" in capsys.readouterr().out
    assert "states v shown" in states
    assert "conditional means shown" in means
    other = json.loads((options.folder / "table1.json").read_text())["rows"]
    assert all(other[name]["Fréchet"] != rows[name]["Fréchet"] for name in TABLES["table1"])


def test_the_precision_of_the_runs_is_chosen_and_named(pictures, tmp_path):
    """In training, the command that repeats a run, and the notes of a figure; it is another run than before."""
    options = TinyOptions(out=tmp_path / "runs", data_dir=pictures)
    assert "; precision" not in reproduce("fig2", options)
    with pytest.raises(UserError, match="precision"):
        reproduce("fig2", replace(options, precision="fast"))
    fast = replace(options, precision="fast", out=tmp_path / "fast")
    assert "; precision fast; states v shown" in " ".join(reproduce("fig2", fast).split())
    config = runs.read(fast.folder / "table1-gibbs-langevin").config
    assert config.precision == "fast"
    assert " --precision fast " in config.command


@pytest.mark.whole
def test_a_run_that_leaves_the_finite_numbers_is_a_row_without_any(pictures, tmp_path, monkeypatch, capsys):
    """As unadjusted steps sometimes do; the table and its other rows are there all the same."""
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(references, "mixture", partial(references.mixture, n_components=2))

    def changes(config):
        config = tiny(config)
        if config.sampler.name != "langevin" or config.sampler.adjust_from is not None:
            return config
        wild = replace(config.sampling.sampler, step_size=1e30)
        return replace(config, sampling=replace(config.sampling, sampler=wild))

    monkeypatch.setattr(experiments, "report", report)
    options = TinyOptions(out=tmp_path / "runs", data_dir=pictures, changes=changes)
    text = " ".join(reproduce("table1", options).split())
    rows = json.loads((tmp_path / "runs" / "table1.json").read_text())["rows"]
    assert rows["table1-langevin"].keys() == {"paper FID", "seconds"}
    assert rows["table1-gibbs"]["Fréchet"] > 0
    assert "Langevin without adjustment 43.80 – –" in text
    assert "of 6 pairs" in text
    assert all((tmp_path / "runs" / name / runs.REPORT).is_file() for name in rows)


TITLES = {  # of the panels of each figure
    "fig2": ["from noise to digits"],
    "fig3": ["(a) log σ²: mean, and range over units", "(b) filters, by norm", "(c) samples"],
    "fig4": ["(a) Fashion-MNIST", "(b) CelebA", "(c) 2,000 pictures of CelebA"],
    "fig5": [
        *("(a) Gibbs", "(b) Langevin without", "(c) Langevin with", "(d) Gibbs-Langevin without"),
        *("(e) Gibbs-Langevin with", "training images"),
    ],
    **{what: ["", ""] for what in ("fig6", "fig7", "fig8", "fig9")},
}


@pytest.mark.parametrize(
    "what", [pytest.param(x, marks=() if x in ("fig2", "fig3", "fig5", "fig6") else pytest.mark.whole) for x in FIGURES]
)
def test_every_figure_shows_what_the_paper_shows_there(what, options, figures_drawn):
    """Each panel by its title, and each sheet of images is that of its own run, or of the data."""
    text = " ".join(reproduce(what, options).split())
    assert "at scale 0.0002" in text
    (figure,) = figures_drawn
    with Image.open(options.folder / f"{what}.png") as picture:
        assert picture.size == pytest.approx([150 * inches for inches in figure.get_size_inches()], abs=1)
    panels = [axes for axes in figure.axes if axes.has_data()]
    assert len(panels) == len(TITLES[what])
    for axes, title in zip(panels, TITLES[what], strict=True):
        shown = " ".join(axes.get_title().split()).removeprefix("Figure 2: ")
        assert shown.startswith(title) if title else shown == ""
    shown = [np.asarray(image.get_array()) for axes in panels for image in axes.images]
    made = [runs.read(options.folder / name) for name in FIGURES[what]]
    first, shape = made[0], made[0].image_shape
    if what == "fig2":
        states, steps = trajectory(first, 10, n_states=13)
        expected = [tile(states.transpose(0, 1).flatten(0, 1), shape, len(steps))]
        assert [label.get_text() for label in panels[0].get_xticklabels()] == [str(step) for step in steps]
    elif what == "fig3":
        expected = [filter_sheet(first.model.W, shape, 100), tile(generate(first, 100), shape, 10)]
        band = panels[0].lines[0].get_ydata()
        assert band[-1] == pytest.approx(first.metrics[-1]["log_var_mean"])
    elif what in ("fig4", "fig5"):
        expected = [tile(generate(run, 100), run.image_shape, 10) for run in made]
        if what == "fig5":
            config = replace(first.config, data_dir=options.data_dir)
            train = config.load_data().train
            expected.append(tile(train[spread(len(train), 100)], shape, 10))
    else:
        expected = [tile(part, shape, 16) for part in torch.split(generate(first, 512), 256)]
    for one, other in zip(shown, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.whole
def test_a_table_of_several_seeds_has_means_and_errors_over_seeds(options):
    """Seed 0 is the run that the other tables have; the error is the seeds' deviation over the root of their number."""
    text = reproduce("table2", replace(options, seeds=3))
    table = json.loads((options.folder / "table2.json").read_text())
    assert "Means over 3 seeds" in text
    for name, several in table["seeds"].items():
        values = np.array([row["Fréchet"] for row in several])
        assert len(set(values)) == 3, "three seeds, three runs"
        row = table["rows"][name]
        assert row["Fréchet"] == pytest.approx(values.mean())
        least = np.sqrt(np.mean([each["Fréchet ±"] ** 2 for each in several]) / 3)
        assert row["Fréchet ±"] == pytest.approx(max(values.std(ddof=1) / 3**0.5, least))
    assert runs.read(options.folder / "seed-2" / "table2-2048").config.seed == 2
    diverged = options.folder / "seed-1" / "table2-2048"
    save_status(diverged, replace(runs.read_status(diverged), ended="diverged"))
    again = reproduce("table2", replace(options, seeds=3))
    assert "1 stopped" in again
    assert "  table2-2048, seed 1: " in again, "told by name: it stands below the last kind of run"
    assert text.count("table2-2048: ") == 1, "what a row is, is said once for all seeds"
    with pytest.raises(UserError, match="--seeds is for tables"):
        reproduce("fig2", replace(options, seeds=2))


def test_figures_by_our_recipe_have_presets_in_place_of_the_papers_runs(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    options = TinyOptions(out=tmp_path / "runs", data_dir=pictures, scale=None, recipe="ours")
    assert "our recipe; 8 hidden units, 3 updates; conditional means shown" in reproduce("fig4", options)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        *("fashion-medium", "celeba-small", "celeba-64", "fig4.png")
    }
    assert runs.read(tmp_path / "runs" / "celeba-64").image_shape == (3, 64, 64)
    with pytest.raises(UserError, match="fig5 compares"):
        reproduce("fig5", options)


@pytest.mark.whole
def test_all_makes_what_the_time_allows_and_says_what_is_left(pictures, tmp_path, monkeypatch, capsys):
    """Six figures by our recipe, of tiny runs: in no time none of them; then the first of long runs is left under way;
    then all of them, from where that ended."""
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    options = TinyOptions(out=tmp_path / "runs", data_dir=pictures, scale=None, recipe="ours")

    def longer(config):
        return replace(tiny(config), train=replace(tiny(config).train, n_updates=1_000_000))

    assert "0 of 7 figures" in reproduce_all(0.0, options)
    assert not (tmp_path / "runs").exists()
    with monkeypatch.context() as patched:  # a clock by which the time is over as soon as one of its updates is there
        began = lambda: runs.read_metrics(tmp_path / "long" / "mnist-medium")  # noqa: E731
        for module in (campaign, experiments):
            patched.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.2 if began() else 0.0))
        text = reproduce_all(0.2, replace(options, changes=longer, out=tmp_path / "long"))
    assert re.search(r"fig2: 1 of 1 runs to train \(mnist-medium: update [\d,]+ of 1,000,000\)", text)
    assert "fig8: 1 of 1 runs to train" in text
    assert {path.name for path in (tmp_path / "long").iterdir()} == {"mnist-medium"}, "nothing else has begun"
    assert runs.read_status(tmp_path / "long" / "mnist-medium").ended == "interrupted"
    assert checkpoint.updates(tmp_path / "long" / "mnist-medium" / runs.CHECKPOINTS)
    assert "where the time was over" in capsys.readouterr().out
    assert reproduce_all(600.0, options).startswith("7 of 7 figures and tables are in ")
    assert {path.stem for path in (tmp_path / "runs").glob("*.png")} == {f"fig{k}" for k in (2, 3, 4, 6, 7, 8, 9)}
    others = replace(options, changes=longer)
    assert "other settings" in reproduce_all(0.0, others), "found before anything is trained"
    without = reproduce_all(0.0, replace(options, data_dir=tmp_path, out=tmp_path / "other"))
    assert re.search(rf"fig2: .*{re.escape(str(tmp_path))}", without), "where data are not, it is said"


def test_an_interrupted_run_goes_on_where_it_was_and_another_is_refused(pictures, tmp_path, capsys):
    options = TinyOptions(out=tmp_path / "whole", data_dir=pictures)
    reproduce("fig2", options)
    broken = replace(options, out=tmp_path / "broken")
    name = "table1-gibbs-langevin"
    config = replace(runs.RunConfig.read(tmp_path / "whole" / name / runs.CONFIG), data_dir=pictures)
    with pytest.raises(RuntimeError, match="power cut"):
        train_run(
            replace(config, checkpoint=CheckpointConfig(updates=1)), tmp_path / "broken" / name, on_update=_cut_at_2
        )
    capsys.readouterr()
    reproduce("fig6", broken)
    out = capsys.readouterr().out
    assert "1 to train" in out
    assert "from 2 on" in out
    first, again = (runs.read(tmp_path / which / name).model for which in ("whole", "broken"))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    with pytest.raises(UserError, match=r"other settings \(seed = 0, not 1\)"):
        reproduce("fig2", replace(options, seed=1))


def _cut_at_2(update, record):
    if update == 2:
        raise RuntimeError("power cut")


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_campaign_that_is_stopped_leaves_checkpoints_and_no_process(number, tmp_path):
    """Two runs side by side and a third that waits: the two are written, the third never begins."""
    code = f"""
from dataclasses import replace
from pathlib import Path
from grbm import cli
from grbm.reproduce import campaign
from grbm.runs.presets import PRESETS
config = PRESETS["digits"].config
config = replace(config, train=replace(config.train, n_updates=10**6), log=replace(config.log, tensorboard=False))
jobs = [campaign.Planned(name, config) for name in "abc"]
if __name__ == "__main__":
    campaign.train_missing(jobs, Path({str(tmp_path)!r}), at_once=2)
"""
    (tmp_path / "stopped.py").write_text(code)
    command = [sys.executable, str(tmp_path / "stopped.py")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not all(runs.read_metrics(tmp_path / name) for name in "ab"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    assert "to go on, give the same command again" in process.communicate(timeout=120)[1]
    assert not (tmp_path / "c").exists()
    for name in "ab":
        assert runs.read_status(tmp_path / name).ended == "interrupted"
        assert checkpoint.updates(tmp_path / name / runs.CHECKPOINTS)
        with locked(tmp_path / name):  # nobody trains in it any more
            pass


@pytest.mark.whole
def test_runs_side_by_side_and_what_becomes_of_them(tmp_path, capsys, monkeypatch):
    """Some that end and one that diverges: all are results. Two processes train five, and as each alone."""
    from grbm.runs.presets import PRESETS

    good = PRESETS["digits"].config
    good = replace(good, train=replace(good.train, n_updates=20), log=replace(good.log, tensorboard=False))
    bad = replace(good, train=replace(good.train, learning_rate=1e30, clip_norm=None))
    more = {f"seed {k}": replace(good, seed=k) for k in (1, 2, 3)}
    jobs = [campaign.Planned(name, config) for name, config in {"bad": bad, "good": good, **more}.items()]
    processes = SpawnContext.Process
    started = []
    monkeypatch.setattr(SpawnContext, "Process", lambda *args, **how: started.append(processes(**how)) or started[-1])
    campaign.train_missing(jobs, tmp_path / "aside", at_once=2)
    assert len(started) == 2
    assert not any(process.is_alive() for process in started)
    out = capsys.readouterr().out
    assert "good: " in out
    assert "bad: " in out
    assert runs.read(tmp_path / "aside" / "bad").status.ended == "diverged"
    assert campaign.missing(jobs, tmp_path / "aside") == []
    for name, config in {"good": good, **more}.items():
        train_run(config, tmp_path / name)
        alone, aside = runs.read(tmp_path / name), runs.read(tmp_path / "aside" / name)
        assert aside.status.ended == "finished"
        assert runs.model_digest(alone.model) == runs.model_digest(aside.model)


@pytest.mark.whole
def test_a_process_that_died_while_it_waited_is_replaced(tmp_path):
    from grbm.runs.presets import PRESETS

    config = PRESETS["digits"].config
    planned = campaign.Planned("a", replace(config, train=replace(config.train, n_updates=2)))
    worker = campaign._begin(planned, [], tmp_path, 1)
    assert isinstance(campaign._answer(worker), str)
    worker.process.kill()
    worker.process.join()
    idle = [worker]
    other = campaign._begin(planned._replace(name="b"), idle, tmp_path, 1)
    assert (idle, other.process.pid == worker.process.pid) == ([], False)
    assert isinstance(campaign._answer(other), str)
    campaign._dismiss(other)
    assert runs.read(tmp_path / "b").status.ended == "finished"


def test_bad_input_is_one_sentence(tmp_path, capsys):
    for arguments, sentence in (
        (["table4"], "There is nothing called 'table4'"),
        (["table1", "--scale", "0"], "--scale must be above 0"),
        (["table1", "--jobs", "0"], "--jobs must be at least 1"),
        (["table1", "--fid-samples", "3"], "--fid-samples must be at least 100"),
        (["fig8", "--data-dir", str(tmp_path), "--out", str(tmp_path / "runs")], "CelebA are not in"),
    ):
        assert cli.main(["reproduce", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert cli.main(["reproduce"]) == 0
    assert "fig9" in capsys.readouterr().out
