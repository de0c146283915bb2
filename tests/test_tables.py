"""`grbm reproduce table1` to `fig9`: each from tiny runs, which tables and figures share, and not twice."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from grbm import UserError, campaign, cli, runs
from grbm.tables import FIGURES, TABLES, Options, reproduce


def tiny(config):
    return replace(
        config,
        model=replace(config.model, n_hidden=8),
        objective=replace(config.objective, n_steps=3),
        train=replace(config.train, n_updates=3, batch_size=20),
        sampling=replace(config.sampling, n_steps=3),
    )


@pytest.fixture(scope="module")
def options(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRBM_CACHE_DIR", str(folder / "cache"))
        yield Options(folder / "runs", "paper", 0.0002, pictures, changes=tiny)


@pytest.mark.parametrize("what", TABLES)
def test_a_table_puts_the_papers_number_beside_ours(what, options, capsys):
    text = reproduce(what, options, lambda dataset: None, 50)
    table = json.loads((options.folder / f"{what}.json").read_text())
    assert list(table["rows"]) == TABLES[what]
    assert table["rows"]["table1-gibbs-langevin"]["paper FID"] == 17.49
    assert all(row["Fréchet"] > 0 for row in table["rows"].values())
    assert list(table["references"]) == ["held-out images", "one Gaussian", "mixture of 20", "autoencoder"]
    assert "17.49" in text
    assert "mixture of 20" in text
    assert "at scale 0.0002" in text
    pairs = {3 + 1: 6, 5: 10, 9: 36}[len(TABLES[what])]
    assert f"of {pairs} pairs stand in the paper's order" in text
    assert " to train" in capsys.readouterr().out
    assert reproduce(what, options, lambda dataset: None, 50) == text
    assert " 0 to train" in capsys.readouterr().out


def test_the_order_of_the_rows_is_that_of_their_distances(options):
    """Each pair out of order is named, and no other."""
    text = " ".join(reproduce("table1", options, lambda dataset: None, 50).split())
    rows = json.loads((options.folder / "table1.json").read_text())["rows"].values()
    printed, ours = ([row[column] for row in rows] for column in ("paper FID", "Fréchet"))
    pairs = [(i, j) for i in range(5) for j in range(i)]
    agreeing = sum((printed[i] - printed[j]) * (ours[i] - ours[j]) > 0 for i, j in pairs)
    assert f"Fréchet: {agreeing} of 10 pairs" in text
    assert text.count(" is better than ") == 10 - agreeing


@pytest.mark.parametrize("what", FIGURES)
def test_every_figure_is_drawn(what, options):
    text = reproduce(what, options, lambda dataset: None, 50)
    with Image.open(options.folder / f"{what}.png") as picture:
        pixels = np.asarray(picture.convert("L"))
    assert pixels.shape[1] > 400
    assert pixels.std() > 10
    assert "at scale 0.0002" in " ".join(text.split())


def test_an_interrupted_run_goes_on_and_another_is_refused(pictures, tmp_path, capsys):
    options = Options(tmp_path, "paper", 0.0002, pictures, changes=tiny)
    reproduce("fig2", options, lambda dataset: None, 50)
    folder = tmp_path / "table1-gibbs-langevin"
    (folder / runs.STATUS).write_text('{"update": 1, "message": "interrupted at update 1"}')
    capsys.readouterr()
    reproduce("fig6", options, lambda dataset: None, 50)
    assert "1 to train" in capsys.readouterr().out
    assert runs.read_status(folder) == ""
    with pytest.raises(UserError, match=r"other settings \(seed = 0, not 1\)"):
        reproduce("fig2", options._replace(seed=1), lambda dataset: None, 50)


def test_runs_side_by_side_and_what_becomes_of_them(tmp_path, capsys):
    """One that ends and one that diverges: both are results."""
    from grbm.presets import PRESETS

    good = PRESETS["digits"].config
    good = replace(good, train=replace(good.train, n_updates=20), log=replace(good.log, tensorboard=False))
    bad = replace(good, train=replace(good.train, learning_rate=1e30, clip_norm=None))
    jobs = [campaign.Job("good", good), campaign.Job("bad", bad)]
    campaign.train_missing(jobs, tmp_path, at_once=2)
    out = capsys.readouterr().out
    assert "good: " in out
    assert "bad: " in out
    assert runs.read(tmp_path / "good").status == ""
    assert runs.read(tmp_path / "bad").status != ""
    assert campaign.missing(jobs, tmp_path) == []


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
