"""Coarse columns: which they are, cells and their probabilities, learning and draws of numbers that occur."""

import math
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

from grbm import Base, GaussianBernoulliRBM, cli, runs
from grbm.core.errors import UserError
from grbm.data.coarse import grid_of
from grbm.data.frame import Frame
from grbm.data.grid import CONTINUOUS, Grid
from grbm.data.tables import StoredTable
from grbm.data.transforms import Elementwise
from grbm.evaluate import exact
from grbm.fitting.callbacks import Progress
from grbm.fitting.density import Fitted
from grbm.fitting.gaps import Refill
from grbm.runs.presets import PRESETS
from grbm.runs.training import train
from tests.helpers import TINY, random_model, refused

RNG = np.random.default_rng(0)
N = 600
COUNTS = RNG.poisson(40, N).astype(float)
TENTHS = RNG.integers(-300, 300, N) / 10
GRADES = RNG.choice([1.0, 2.0, 5.0, 9.5], N)
COLUMNS = {
    "counts": COUNTS,
    "tenths": np.round(30 * RNG.normal(size=N)) / 10,
    "grades": GRADES,
    "measured": RNG.normal(size=N),
    "rounded little": np.round(RNG.normal(size=N), 6),
    "constant": np.full(N, 7.0),
    "thirds": RNG.integers(0, 60, N) / 3,
}
TABLE = torch.tensor(np.stack(list(COLUMNS.values()), 1))


def grid() -> Grid:
    return grid_of(TABLE, "auto")


# What occurs.


def test_coarse_columns_are_found():
    found = grid()
    assert found.is_coarse.tolist() == [True, True, True, False, False, False, True]
    torch.testing.assert_close(found.step[[0, 1, 6]], torch.tensor([1.0, 0.1, 1 / 3], dtype=torch.float64))
    assert found.values[2][:4].tolist() == [1.0, 2.0, 5.0, 9.5]
    assert found.low.tolist() == [0.0, -math.inf, -math.inf, -math.inf, -math.inf, -math.inf, 0.0]
    whole = torch.tensor(RNG.permutation(np.arange(1000.0, 1500.0)))[:, None]
    assert float(grid_of(whole, "auto").step) == 1.0  # none repeats; but draws are whole too
    assert grid_of(whole, "auto", share=0.5) is CONTINUOUS
    gappy = TABLE.clone()
    gappy[::3] = math.nan
    assert grid_of(gappy, "auto").is_coarse.tolist() == found.is_coarse.tolist()
    assert grid_of(TABLE, "none") is CONTINUOUS
    assert grid_of(TABLE[:, [3, 5]], "auto") is CONTINUOUS


def test_steps_are_the_greatest_common_divisor():
    """Not the smallest difference that occurs."""
    x = torch.tensor(np.repeat(np.cumsum([6.0, 10.0] * 15), 5))[:, None]
    assert float(grid_of(x, "auto").step) == pytest.approx(2.0)


def test_the_lowest_number_drawn_occurs():
    halves = torch.tensor(RNG.integers(0, 60, N) + 0.5)[:, None]
    assert float(grid_of(halves, "auto").rounded(torch.tensor([[-0.3]]).double())) == 0.5


def test_columns_with_a_linear_relation_keep_it():
    total = np.stack([COUNTS, GRADES, COUNTS + 2 * GRADES, RNG.poisson(30, N)], 1)
    assert grid_of(torch.tensor(total), "auto").is_coarse.tolist() == [False, False, False, True]


def test_what_does_not_go_with_coarse_columns_is_refused(tmp_path, capsys):
    with pytest.raises(UserError, match="auto or none"):
        grid_of(TABLE, "yes")
    with pytest.raises(UserError, match="memory"):
        grid_of(StoredTable(lambda index: TABLE.numpy()[index], torch.arange(N), 7), "auto")
    with pytest.raises(ValueError, match="limits"):
        GaussianBernoulliRBM(4, coarse="auto", censor=(0, None)).fit(TABLE.numpy())
    np.savetxt(tmp_path / "x.csv", TABLE.numpy(), delimiter=",")
    both = ["--dataset.coarse", "auto", "--dataset.censor", "0,", "--dataset.standardise", "pixel"]
    refused(["train", tmp_path / "x.csv", *both, "--out", tmp_path / "run"], capsys, "limits")
    refused(["train", "digits", "--dataset.coarse", "auto", "--out", tmp_path / "run"], capsys, "tables")


# Cells.


def test_numbers_come_back_from_any_place_of_their_cells():
    found = grid()
    for x in (TABLE, TABLE.float()):
        placed = found.spread(x, seed=1)
        assert placed.dtype == x.dtype
        coarse = found.is_coarse
        torch.testing.assert_close(found.rounded(placed.double()), TABLE, atol=1e-5, rtol=1e-6)
        assert torch.equal(placed[:, ~coarse], x[:, ~coarse])
        assert (placed != x)[:, coarse].double().mean() > 0.99
    assert found.rounded(TABLE[:, :3] @ torch.zeros(3, 7).double() + math.nan).isnan().all()
    places = torch.stack(list(found.points(TABLE)))
    for k, width in ((0, 1.0), (1, 0.1)):
        u = ((places[:, :, k] - TABLE[:, k]) / width + 0.5).sort(0).values
        torch.testing.assert_close(u, ((torch.arange(64) + 0.5) / 64).double()[:, None].expand(-1, N))
    written = [repr(float(x)) for x in found.rounded(found.spread(TABLE, 3))[:50, 1]]
    assert max(map(len, written)) <= 5  # "-12.3", not 12.299999999999999


def test_numbers_far_away_are_drawn_as_the_nearest_that_occur():
    far = torch.tensor([[-1e3, 1e3, 1e3, 5.0, 1e9, 3.0, -4.0], [3.4, 0.26, 3.6, 5.0, 0.0, 3.0, 0.4]]).double()
    found = grid().rounded(far)
    assert found[0].tolist() == [0.0, 1000.0, 9.5, 5.0, 1e9, 3.0, 0.0]
    np.testing.assert_allclose(found[1], [3.0, 0.3, 5.0, 5.0, 0.0, 3.0, 1 / 3])


def test_probabilities_of_all_cells_sum_to_one():
    """Of a model of two columns, in steps of 0.5 and of four values, whose cells cover all but the far tails."""
    model = random_model(2, 4, 3, strength=0.5)
    steps = 0.5 * torch.arange(-60, 61).double()
    values = torch.tensor([-9.0, -1.0, 0.5, 11.0]).double()
    nan = torch.full((4,), math.nan).double()
    cells = Grid(
        torch.tensor([0.5, 0.0]).double(), torch.zeros(2).double(), torch.full((2,), -torch.inf).double(),
        torch.stack([nan, values]),
    )  # fmt: skip
    base = Base(torch.zeros(2), torch.ones(2))
    fitted = Fitted(Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), base, grid=cells), model)
    rows = torch.cartesian_prod(steps, values)
    log_z = exact.log_z(model)
    probability = fitted.log_prob(rows, log_z).exp() * cells.cells(rows)[1].prod(1)
    assert float(probability.sum()) == pytest.approx(1.0, abs=0.02)  # 16 places in cells up to 10 wide
    narrow = cells._replace(step=torch.tensor([0.5, 0.5]).double(), values=torch.stack([nan, nan]))
    fitted = replace(fitted, frame=replace(fitted.frame, grid=narrow))
    rows = torch.cartesian_prod(steps, steps)
    assert float((fitted.log_prob(rows, log_z).exp() * 0.25).sum()) == pytest.approx(1.0, abs=1e-3)


def test_a_grid_is_kept_and_a_damaged_one_refused():
    base = Base(torch.zeros(7), torch.ones(7))
    frame = Frame(Elementwise.of(torch.zeros(7), torch.ones(7)), base, grid=grid())
    again = Frame.from_tensors(frame.tensors())
    for a, b in zip(again.grid, frame.grid, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert not any(name.startswith("grid") for name in replace(frame, grid=CONTINUOUS).tensors())
    assert Frame.from_tensors(replace(frame, grid=CONTINUOUS).tensors()).grid is CONTINUOUS
    good = frame.tensors()
    fewer = {name: x for name, x in good.items() if name != "grid_low"}
    for wrong in (
        fewer,
        good | {"grid_step": -good["grid_step"]},
        good | {"grid_values": good["grid_values"].flip(1)},
        good | {"grid_values": good["grid_values"][:, 0]},
        good | {"grid_origin": good["grid_origin"][:3]},
    ):
        with pytest.raises(ValueError, match="grid"):
            Frame.from_tensors(wrong)


# Learning.


@pytest.fixture(scope="module")
def survey():
    """Grades that depend on counts, and a measurement of both; 600 rows."""
    counts = RNG.poisson(12, N).astype(float)
    grades = np.digitize(counts + RNG.normal(size=N), [9, 12, 15]) + 1.0
    return np.stack([counts, grades, counts / 10 + grades + RNG.normal(size=N)], 1)


def test_the_estimator_learns_cells_and_draws_numbers_that_occur(survey):
    rbm = GaussianBernoulliRBM(16, coarse="auto", n_iter=150, random_state=0).fit(survey)
    drawn = rbm.sample(4000)
    assert set(np.unique(drawn[:, 1])) == {1.0, 2.0, 3.0, 4.0}
    assert (drawn[:, 0] == np.round(drawn[:, 0])).all()
    assert drawn[:, 0].min() >= 0
    for grade in (1, 2, 3, 4):
        p = (survey[:, 1] == grade).mean()
        assert abs((drawn[:, 1] == grade).mean() - p) < 0.05
    far = survey[:2].copy()
    far[:, 1] = 1000, 4.4  # no grades: they have no cells, and no other grade's density
    assert rbm.p_values(far)[0] < 0.001
    assert (rbm.score_samples(far) != rbm.score_samples(np.c_[far[:, 0], [4, 4], far[:, 2]])).all()
    gappy = survey[:40].copy()
    gappy[:, 1] = np.nan
    filled = rbm.impute(gappy, n_steps=40)
    assert set(np.unique(filled[:, 1])) <= {1.0, 2.0, 3.0, 4.0}
    assert (filled[:, 1] == survey[:40, 1]).mean() > 0.5
    np.testing.assert_array_equal(filled[:, [0, 2]], survey[:40, [0, 2]])
    given = rbm.sample(50, given=[3.0, np.nan, np.nan], n_steps=40)
    assert (given[:, 0] == 3).all()
    assert (given[:, 1] == 1).mean() > 0.9
    # Cells of 1 by 1: with a probability in place of a density none of two columns is above 1.
    nats = rbm.score_samples(np.c_[survey[:100, :2], np.full(100, np.nan)])
    assert nats.max() < 0
    plain = GaussianBernoulliRBM(16, n_iter=2, random_state=0).fit(survey)
    assert len(np.unique(plain.sample(100, n_steps=10)[:, 1])) == 100
    gappy = survey.copy()
    gappy[::4, 0] = np.nan
    learned = GaussianBernoulliRBM(16, coarse="auto", n_iter=2, random_state=0).fit(gappy).partial_fit(survey[:100])
    assert (learned.sample(100, n_steps=10)[:, 0] % 1 == 0).all()


def test_gaps_of_coarse_columns_are_drawn_in_cells(survey, monkeypatch):
    """As learning sees the others: not as numbers that occur."""
    real, seen = Refill.after, []

    def after(refill: Refill, progress: Progress) -> None:
        real(refill, progress)
        seen.append(refill.fitted.frame.transform.inverse(refill.rows[refill.numbers])[:, 1])

    monkeypatch.setattr(Refill, "after", after)
    gappy = survey.copy()
    gappy[::5, 1] = np.nan
    GaussianBernoulliRBM(8, coarse="auto", n_iter=3, random_state=0).fit(gappy)
    away = (seen[-1] - seen[-1].round()).abs()
    assert abs(float(away.mean()) - 0.25) < 0.05


def test_the_command_line_learns_the_same_and_writes_numbers_that_occur(survey, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"whiten": 60, "by column": 20})
    monkeypatch.setattr("grbm.fitting.recipe.ROUNDS", 2)
    gappy = survey.copy()
    gappy[::5, 1] = np.nan
    path = tmp_path / "x.csv"
    pandas.DataFrame(gappy, columns=["count", "grade", "measured"]).to_csv(path, index=False)
    usual = PRESETS["array"].config
    config = replace(usual, data=path, seed=3, dataset=replace(usual.dataset, held_out=0.0, coarse="auto"))
    said: list[str] = []
    train(config, tmp_path / "run", asked={"dataset.coarse": "auto"}, warn=said.append)
    run, rbm = runs.read(tmp_path / "run"), GaussianBernoulliRBM(random_state=3, coarse="auto").fit(gappy)
    own = rbm.to_model().state_dict()
    assert all(torch.equal(x, own[name]) for name, x in run.model.state_dict().items())
    assert run.frame.grid.is_coarse.tolist() == [True, True, False]
    assert not any("again and again" in text for text in said)
    assert cli.main(["sample", str(tmp_path / "run"), "--n", "50", "--out", str(tmp_path / "new.csv")]) == 0
    drawn = pandas.read_csv(tmp_path / "new.csv")
    assert set(drawn["grade"]) <= {1, 2, 3, 4}
    assert (drawn["count"] % 1 == 0).all()
    capsys.readouterr()
    assert cli.main(["train", str(path), *TINY, "--out", str(tmp_path / "other")]) == 0
    assert "The same numbers occur again and again in count, grade." in " ".join(capsys.readouterr().err.split())
