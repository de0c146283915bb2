"""`grbm reproduce fig1` from end to end, at a size that says nothing about learning."""

import json
import re

import numpy as np
import pytest
import torch

from grbm import UserError
from grbm.data import MIXTURES
from grbm.reproduce import figure1
from grbm.reproduce.figure1 import RULES, TITLES, panels
from grbm.reproduce.targets import Figure1Options
from grbm.runs.presets import PAPER_SAMPLERS


def made(folder, n_updates, n_samples=100, **options) -> str:
    """The table of Figure 1 from short runs in ``folder``."""
    return figure1.target(Figure1Options(out=folder, **options), n_updates, n_samples).make()


def assert_is_figure_1(figure, methods: set[str], rules: set[str]) -> None:
    """Truth and data in the first column of each block, and a titled density over samples for each run."""
    table = np.array(figure.axes).reshape(8, len(TITLES) + 1)
    for k, (name, mixture) in enumerate(MIXTURES.items()):
        for above, rule in ((4 * k, "program"), (4 * k + 2, "printed")):
            (mesh,), (points,) = table[above, 0].collections, table[above + 1, 0].collections
            axis = torch.linspace(-10, 10, 200, dtype=torch.float64)
            truth = mixture.log_prob(torch.cartesian_prod(axis, axis))
            np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), truth)
            assert table[above, 0].get_title() == f"{name}: true density"
            data = next(p for p in panels("short", 0) if p.mixture == name).config.load_data().train[:]
            np.testing.assert_allclose(points.get_offsets(), data)
            assert len(table[above + 1, 0].patches) == 3  # the modes
            for column, method in enumerate(TITLES, start=1):
                here = "ours" if method == "recommended" else rule
                is_there = method in methods and here in rules and (rule, method) != ("printed", "recommended")
                for axes in table[above : above + 2, column]:
                    assert axes.has_data() == is_there, (name, rule, method)
                if is_there:
                    title = TITLES[method] if here == "ours" else f"{TITLES[method]}\n{RULES[rule]}"
                    assert table[above, column].get_title().startswith(title)
                    assert len(table[above + 1, column].collections[0].get_offsets()) == 1000
                    shown = "conditional means" if here == "program" else "samples"
                    assert table[above + 1, column].get_title() == f"{shown} from noise"


def test_a_row_of_figure_1_is_trained_scored_and_drawn(tmp_path, capsys):
    options = {"n_updates": 2, "n_samples": 100, "only": ("gibbs",), "rules": ("printed",), "jobs": 1}
    table = made(tmp_path, **options)
    assert "2 to train" in capsys.readouterr().out
    rows = json.loads((tmp_path / "table-of-some.json").read_text())
    assert [(row["mixture"], row["method"]) for row in rows] == [(mixture, "gibbs") for mixture in MIXTURES]
    for row in rows:
        assert f"{row['kl']:.3f}" in table
    chosen = [p for p in panels("short", 0, 2) if (p.method, p.rule) == ("gibbs", "printed")]
    assert_is_figure_1(figure1._draw(chosen, tmp_path), {"gibbs"}, {"printed"})


@pytest.mark.whole
def test_figure_1_runs_and_draws(tmp_path, capsys, figures_drawn):
    table = made(tmp_path, n_updates=2, n_samples=100)
    assert (tmp_path / "figure1.png").is_file()
    assert_is_figure_1(figures_drawn[-1], set(TITLES), set(RULES))
    rows = json.loads((tmp_path / "table.json").read_text())
    assert len(rows) == 22
    assert {row["method"] for row in rows} == {*PAPER_SAMPLERS, "recommended"}
    assert all(row["updates"] == 2 and row["kl"] > 0 for row in rows)
    assert "Gibbs-Langevin, adjusted" in table
    assert "22 to train" in capsys.readouterr().out
    with pytest.raises(UserError, match="n_updates"):
        made(tmp_path, n_updates=3)


def test_the_papers_five_samplers_have_the_papers_settings():
    todo = {panel.name: panel.config for panel in panels("paper", 0)}
    assert len(todo) == 22
    for name in PAPER_SAMPLERS:
        for mixture in ("isotropic", "anisotropic"):
            config, program = todo[f"{mixture}-printed-{name}-0"], todo[f"{mixture}-program-{name}-0"]
            assert (config.model.n_hidden, config.train.batch_size, config.train.n_updates) == (256, 100, 500_000)
            assert (config.objective.name, config.objective.n_steps, config.train.clip_norm) == ("modified-cd", 100, 10)
            assert (config.train.optimizer, config.train.learning_rate) == ("sgd", 0.01)
            assert config.dataset.n_points == program.dataset.n_points == 1000
            differ = {k for k, x in config.identity().items() if program.identity()[k] != x}
            assert {k.partition(".")[0] for k in differ} <= {"sampler", "sampling", "train", "objective"}
            assert (program.train.variance_rate, program.train.keep_last) == (1, True)
            assert (program.sampling.n_steps, program.sampling.mean) == (99, True)
            marginal = name.startswith("langevin")
            assert (program.objective.probabilities, program.objective.data_draws) == (marginal, marginal)
            sampler = program.sampler
            assert sampler == program.sampling.sampler
            if name != "gibbs":
                assert (sampler.step_size, sampler.temperature, sampler.per_unit) == (10, 100, None)
            assert sampler.accept_temperature == (1 if name == "gibbs-langevin-adjusted" else None)


@pytest.mark.whole
def test_seeds_and_samplers_can_be_chosen_and_nothing_runs_twice(tmp_path, capsys, figures_drawn):
    table = made(tmp_path, n_updates=2, n_samples=100, seeds=2, only=("gibbs",), jobs=1)
    rows = json.loads((tmp_path / "table-of-some.json").read_text())
    assert sorted((row["mixture"], row["rule"], row["seed"]) for row in rows) == [
        (m, rule, seed) for m in ("anisotropic", "isotropic") for rule in ("printed", "program") for seed in (0, 1)
    ]
    assert len({row["kl"] for row in rows}) == 8
    assert not (tmp_path / "figure1.png").exists()
    assert (tmp_path / "plateaus.png").is_file()
    plateaus = figures_drawn[0].axes
    assert [axes.get_title() for axes in plateaus] == [f"{m}, {RULES['program']}:\nGibbs" for m in MIXTURES]
    assert [[line.get_label() for line in axes.lines] for axes in plateaus] == [["seed 0", "seed 1"]] * 2
    assert "plateaus.png" in table
    assert "8 to train" in capsys.readouterr().out
    again = made(tmp_path, n_updates=2, n_samples=100, seeds=2, only=("gibbs",), jobs=1)
    assert again == table
    assert " 0 to train" in capsys.readouterr().out
    printed = made(tmp_path, n_updates=2, n_samples=100, only=("gibbs",), rules=("printed",), jobs=1)
    with pytest.raises(UserError, match="No row of --rules ours has a sampler of --only gibbs"):
        made(tmp_path, n_updates=2, n_samples=100, only=("gibbs",), rules=("ours",))
    assert "as the program ran Gibbs" not in printed
    assert re.search(r"as printed  +Gibbs", printed)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=tmp_path.name):
        made(tmp_path, n_updates=2, n_samples=100, only=("gibbs",))
    assert table.count("Gibbs  ") >= 8
