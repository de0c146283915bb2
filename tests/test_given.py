"""Draws of some columns given the others, against the density on a grid."""

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from sklearn.datasets import make_moons

from grbm import GaussianBernoulliRBM, cli
from grbm.fitting.density import Fitted
from grbm.samplers.conditional import Filling
from tests.helpers import refused

N_DRAWS = 2000


def position_of(draws: np.ndarray, grid: np.ndarray, log_p: np.ndarray) -> np.ndarray:
    """Where draws lie in the distribution of a density on a grid: uniform where they are draws of it."""
    p = np.exp(log_p - log_p.max())
    below = np.concatenate([[0.0], np.cumsum(0.5 * (p[1:] + p[:-1]) * np.diff(grid))])
    return np.interp(draws, grid, below / below[-1])


def positions(fitted: Fitted, row: torch.Tensor, column: int, seed: int = 0) -> np.ndarray:
    """Positions of draws of a column given the others of a row (N,)."""
    gap = row.clone()
    gap[column] = torch.nan
    draws = fitted.sample_given(gap[None], Filling(60, 59, N_DRAWS, seed=seed))[0]
    assert draws.shape == (N_DRAWS, len(row))
    others = torch.arange(len(row)) != column
    assert (draws[:, others] == row[others]).all()
    grid = torch.linspace(float(draws[:, column].min()) - 1, float(draws[:, column].max()) + 1, 20_001).double()
    rows = row.repeat(len(grid), 1)
    rows[:, column] = grid
    return position_of(draws[:, column].numpy(), grid.numpy(), fitted.log_prob(rows, 0.0).numpy())


@pytest.fixture(scope="module")
def moons():
    return make_moons(400, noise=0.1, random_state=0)[0] * [2.0, 30.0] + [5.0, -100.0]


@pytest.mark.parametrize("settings", [{"n_rounds": 0}, {"whiten": False}, {"n_contrasts": 2, "n_rounds": 0}])
def test_draws_given_a_column_are_those_of_the_density(moons, settings):
    rows = moons if settings.get("whiten", True) else (moons - moons.mean(0)) / moons.std(0)
    rbm = GaussianBernoulliRBM(24, n_iter=60, random_state=0, **settings).fit(rows)
    fitted = rbm._fitted(np.float64)
    for column in (0, 1):
        where = positions(fitted, torch.from_numpy(rows[7].copy()), column)
        assert stats.kstest(where, "uniform").pvalue > 0.001


def test_samples_given_rows_are_one_row_after_another(moons):
    rbm = GaussianBernoulliRBM(16, n_iter=10, random_state=0).fit(moons)
    gaps = moons[:3].copy()
    gaps[:, 1] = np.nan
    draws = rbm.sample(5, given=gaps, random_state=2)
    assert draws.shape == (15, 2)
    np.testing.assert_array_equal(draws[:, 0], np.repeat(gaps[:, 0], 5))
    assert len(np.unique(draws[:, 1])) == 15
    np.testing.assert_array_equal(rbm.sample(5, given=gaps, random_state=2), draws)
    assert rbm.sample(4, given=gaps[0]).shape == (4, 2)
    assert rbm.sample(600, given=gaps[0]).shape == (600, 2)
    with pytest.raises(ValueError, match="whole numbers"):
        rbm.sample(2.5, given=gaps[0])
    frame = pandas.DataFrame(gaps, columns=["left", "up"])
    named = GaussianBernoulliRBM(16, n_iter=10, random_state=0).fit(pandas.DataFrame(moons, columns=["left", "up"]))
    assert named.sample(3, given=frame.iloc[0]).shape == (3, 2)
    with pytest.raises(ValueError, match="feature names"):
        named.sample(3, given=frame.iloc[0][["up", "left"]])
    by_name = named.sample(3, given={"left": gaps[0, 0]}, random_state=2)
    np.testing.assert_array_equal(by_name, named.sample(3, given=frame.iloc[:1].assign(up=np.nan), random_state=2))
    with pytest.raises(ValueError, match="No feature is named 'right'; they are left, up"):
        named.sample(3, given={"right": 1.0})
    with pytest.raises(ValueError, match="knows no names"):
        rbm.sample(3, given={"left": 1.0})
    filled, std = rbm.impute(gaps, return_std=True)
    assert (std[:, 0] == 0).all()
    many = rbm.sample(4000, given=gaps[:1])[:, 1]
    assert abs(many.mean() - filled[0, 1]) < 0.2 * std[0, 1]
    assert many.std() == pytest.approx(std[0, 1], rel=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory, moons):
    folder = tmp_path_factory.mktemp("given")
    np.savetxt(folder / "moons.csv", moons, delimiter=",", header="left,up", comments="")
    command = ["train", str(folder / "moons.csv"), "--out", str(folder / "run"), "--no-figures"]
    assert cli.main([*command, "--train.n-updates", "40", "--train.rounds", "0"]) == 0
    return folder


def test_the_command_draws_given_numbers_and_files(run, moons, capsys):
    (run / "some.csv").write_text(f"up\n{moons[0, 1]}\n{moons[1, 1]}\n")
    command = ["sample", str(run / "run"), "--n", "6"]
    assert cli.main([*command, "--given", str(run / "some.csv"), "--out", str(run / "drawn.csv")]) == 0
    said = capsys.readouterr().out
    assert "6 draws for each of 2 rows" in said
    assert "left" in said
    lines = (run / "drawn.csv").read_text().splitlines()
    assert lines[0] == "left,up"
    ups = [float(line.split(",")[1]) for line in lines[1:]]
    np.testing.assert_array_equal(ups, np.repeat(moons[:2, 1], 6))
    (run / "few.csv").write_text("left,up\n" + "1,2\n" * 5 + "3,\n")
    assert cli.main([*command, "--given", str(run / "few.csv"), "--out", str(run / "few_drawn.csv")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:2] == ["5", "up"]
    assert len(shown) == 3
    assert cli.main([*command, "--given", "left = 5.5"]) == 0
    assert (np.load(run / "run" / "samples" / "given.npy")[:, 0] == 5.5).all()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("right=1", "'right=1' names no column"),
        ("left=much", "'left=much' gives no number"),
        ("left=inf", "infinite"),
        ("left=1e300", "too large"),
        ("left=1,left=2", "'left' is given twice"),
        ("left", "'left' is neither"),
        ("left=1_000", "gives no number"),
        (",".join(["left=1"] * 60), "given twice"),
        ("nothing.csv", "nothing.csv"),
    ],
)
def test_what_cannot_be_given_is_said(run, capsys, given, said):
    refused(["sample", run / "run", "--given", given, "--overwrite"], capsys, said)


def test_files_without_a_column_of_the_run_and_with_words_are_refused(run, capsys):
    (run / "other.csv").write_text("down\n1\n2\n")
    (run / "words.csv").write_text("left,up\nfar,1\nnear,2\n")
    (run / "marks.csv").write_text("left\n<5\n6\n7\n")
    (run / "inf.csv").write_text("left\ninf\n6\n7\n")
    for name, said in (("marks.csv", "beyond a limit"), ("inf.csv", "is infinite")):
        refused(["sample", run / "run", "--given", run / name, "--overwrite"], capsys, said)
    (run / "whole.csv").write_text("left,up\n1,2\n")
    (run / "misspelt.csv").write_text("left,upp\n5.1,-98\n5,-99\n")
    refused(["sample", run / "run", "--given", run / "whole.csv", "--overwrite"], capsys, "nothing to draw")
    assert (
        cli.main(["sample", str(run / "run"), "--given", str(run / "misspelt.csv"), "--out", str(run / "m.csv")]) == 0
    )
    assert "upp are no columns" in capsys.readouterr().err
    for name, said in (("other.csv", "no column 'left'"), ("words.csv", "'left'")):
        refused(["sample", run / "run", "--given", run / name, "--overwrite"], capsys, said)
    refused(["sample", run / "run", "--given", "up=1", "--sampler", "gibbs"], capsys, "--sampler")


def test_files_are_read_as_the_run_reads_its_data(tmp_path, moons):
    """With the decimal mark that training was told, which the file itself does not show."""
    rows = "\n".join(f"{a:.3f};{b:.3f}".replace(".", ",") for a, b in moons)
    (tmp_path / "moons.csv").write_text(f"left;up\n{rows}\n")
    (tmp_path / "some.csv").write_text("left;other\n5,125;1,250\n4,500;2,500\n")
    run, quick = tmp_path / "run", ["--train.n-updates", "10", "--train.rounds", "0", "--no-figures"]
    assert cli.main(["train", str(tmp_path / "moons.csv"), "--decimal", ",", "--out", str(run), *quick]) == 0
    assert cli.main(["sample", str(run), "--given", str(tmp_path / "some.csv"), "--n", "2"]) == 0
    assert np.load(run / "samples" / "given.npy")[:, 0].tolist() == [5.125, 5.125, 4.5, 4.5]
