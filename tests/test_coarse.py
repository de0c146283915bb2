"""Coarse columns: which they are, cells and their probabilities, learning and draws of numbers that occur."""

import copy
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


def test_numbers_that_are_no_steps_apart_are_drawn_alone_where_each_is_in_twenty_rows():
    often, seldom = (np.tile(np.sort(RNG.normal(size=n)), 30)[:600] for n in (30, 31))
    found = grid_of(torch.tensor(np.stack([often, seldom], 1)), "auto")
    assert found.is_coarse.tolist() == [True, False]
    assert found.values[0].tolist() == sorted(set(often))


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


# Normal scores.

RAIN = np.where(RNG.random(N) < 0.6, 0.0, np.round(10 * RNG.gamma(1.0, 5.0, N)) / 10)
CENTRED = np.round(RNG.normal(0, 8, N)) * (RNG.random(N) < 0.7)  # in whole numbers, most often 0
SPIKES = np.stack([RAIN, CENTRED, GRADES], 1)


def test_columns_with_a_common_number_are_seen_as_normal_scores():
    """Their knots are ends of cells, and levels the shares of the rows below, but for half a row beyond either end."""
    assert grid().is_scored.tolist() == [False, False, True, False, False, False, False]
    found = grid_of(torch.tensor(SPIKES), "auto")
    assert found.is_scored.all()
    for k, scores in found._scores():
        x = SPIKES[:, k]
        values, counts = np.unique(x, return_counts=True)
        common = values[counts.argmax()]
        low, width = (float(part[0, k]) for part in found.cells(torch.full((1, 3), common, dtype=torch.float64)))
        at = [int((scores.knots - end).abs().argmin()) for end in (low, low + width)]
        torch.testing.assert_close(scores.knots[at], torch.tensor([low, low + width], dtype=torch.float64))
        share = float(scores.levels[at[1]] - scores.levels[at[0]])
        assert share == pytest.approx(counts.max() / N, abs=1.5 / N)
        below = [float((x < float(knot)).mean()) for knot in scores.knots]
        np.testing.assert_allclose(scores.levels, below, atol=2 / N)
    few = found._replace(knots=found.knots[:, :0], levels=found.levels[:, :0])
    assert not few.is_scored.any()
    assert torch.equal(few.inward(TABLE[:, :3]), TABLE[:, :3])


def test_stretches_between_knots_have_rows_enough():
    """But beside a number that has so many alone, and a gap before it has half a row."""
    rows = torch.tensor(np.r_[np.arange(0.0, 12), np.full(60, 40.0), np.arange(60.0, 72), np.arange(100.0, 114)])
    ((_, scores),) = grid_of(rows[:, None], "auto")._scores()
    # 98 rows: stretches of at least 9; 12 rows below the common one, in two; 26 above, the last 8 with those before.
    np.testing.assert_allclose(scores.knots, [-0.5, 8.5, 39.5, 40.5, 68.5, 113.5])
    np.testing.assert_allclose(scores.levels * 99, [0.5, 9.5, 12.5, 72.5, 81.5, 98.5])
    bare = torch.tensor(np.r_[np.arange(0.0, 9), np.full(60, 40.0), np.arange(60.0, 81)])[:, None]
    ((_, scores),) = grid_of(bare, "auto")._scores()
    np.testing.assert_allclose(scores.knots, [-0.5, 8.5, 39.5, 40.5, 68.5, 80.5])
    np.testing.assert_allclose(scores.levels * 91.5, [0.5, 9.5, 10.0, 70.0, 79.0, 91.0])


@pytest.mark.parametrize("k", range(3))
def test_normal_scores_are_a_change_of_variables(k):
    """Its slope is that of finite differences, a normal density has an integral of 1, and it goes back."""
    scores = dict(grid_of(torch.tensor(SPIKES), "auto")._scores())[k]
    reach = float(scores.knots[-1] - scores.knots[0])
    x = torch.linspace(float(scores.knots[0]) - reach, float(scores.knots[-1]) + reach, 400_001, dtype=torch.float64)
    y = scores.inward(x)
    torch.testing.assert_close(scores.outward(y), x, rtol=0, atol=1e-9 * reach)
    slope = scores.log_slope(x).exp()
    density = slope * (-0.5 * y.square()).exp() / math.sqrt(2 * math.pi)
    assert float(torch.trapezoid(density, x)) == pytest.approx(1.0, abs=1e-3)
    between = ((y.diff() / x.diff()) / slope[:-1] - 1).abs()
    assert float(between.quantile(0.999)) < 1e-2  # but at knots
    share = torch.special.ndtr(scores.inward(scores.knots))
    torch.testing.assert_close(share, scores.levels)
    assert scores.inward(torch.tensor([math.nan]).double()).isnan().all()
    assert scores.outward(torch.tensor([math.nan]).double()).isnan().all()


def test_probabilities_of_all_cells_sum_to_one_with_normal_scores(monkeypatch):
    monkeypatch.setattr("grbm.data.grid.POINTS", 1024)  # this machine's density is far from that of any scores
    table = torch.tensor(SPIKES[:, 1:])
    model = random_model(2, 4, 3, strength=0.5)
    found = grid_of(table, "auto")
    frame = Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), Base(torch.zeros(2), torch.ones(2)), grid=found)
    fitted = Fitted(frame, model)
    rows = torch.cartesian_prod(torch.arange(-40.0, 41).double(), found.values[1][:4])
    probability = fitted.log_prob(rows, exact.log_z(model)).exp() * found.cells(rows)[1].prod(1)
    assert float(probability.sum()) == pytest.approx(1.0, abs=0.01)
    drawn = fitted.sample(20_000, n_steps=50)
    of_zero = float(probability[rows[:, 0] == 0].sum())
    assert float((drawn[:, 0] == 0).double().mean()) == pytest.approx(of_zero, abs=0.015)


def test_a_common_number_is_learned_with_its_dependence():
    """Dry days in six of ten rows, more often when it is warm: within 0.06 nats of the truth; cells alone lose 0.5."""
    rng = np.random.default_rng(3)
    n, warm = 1500, rng.random(1500) < 0.5
    p_dry = np.where(warm, 0.9, 0.3)
    dry, amount = rng.random(n) < p_dry, 1 + np.minimum(rng.geometric(0.2, n) - 1, 39)
    heat = np.where(warm, 5.0, -5.0) + rng.normal(size=n)
    x = np.stack([np.where(dry, 0.0, amount), heat], 1)
    unit = np.log([np.exp(-0.5 * (heat - m) ** 2) / np.sqrt(8 * np.pi) for m in (5.0, -5.0)])
    rain = np.where(amount < 40, 0.2 * 0.8 ** (amount - 1.0), 0.8**39)
    of_rain = np.where(dry, [np.full(n, 0.9), np.full(n, 0.3)], [0.1 * rain, 0.7 * rain])
    truth = np.logaddexp(*(unit + np.log(of_rain)))[1000:].mean()
    nats = {}
    for name, common in (("scores", 0.2), ("cells", 2.0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("grbm.data.coarse.COMMON", common)
            rbm = GaussianBernoulliRBM(32, coarse="auto", n_iter=250, n_rounds=4, random_state=0).fit(x[:1000])
        nats[name] = rbm.score(x[1000:])
    assert truth - 0.1 < nats["scores"] < truth + 0.02
    assert nats["cells"] < truth - 0.3


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
    old = {name: x for name, x in good.items() if name not in ("grid_knots", "grid_levels")}
    unscored = copy.deepcopy(Frame.from_tensors(old))
    assert not unscored.grid.is_scored.any()
    assert unscored.tensors().keys() == old.keys()
    for wrong in (
        old | {"grid_knots": good["grid_knots"]},
        good | {"grid_levels": good["grid_levels"][:, 1:]},
        good | {"grid_levels": good["grid_levels"] + 1},
        good | {"grid_knots": -good["grid_knots"]},
        good | {"grid_knots": good["grid_knots"][:3], "grid_levels": good["grid_levels"][:3]},
        good | {"grid_knots": good["grid_knots"] * math.inf},
    ):
        with pytest.raises(ValueError, match="normal scores"):
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
    refused(["impute", tmp_path / "run", path, "--noise-std", "0.1"], capsys, "--noise-std 0.1: noise goes with")
    refused(["export", tmp_path / "run", tmp_path / "encoder.onnx"], capsys, "learned columns of a common number on")
    assert cli.main(["train", str(path), *TINY, "--out", str(tmp_path / "other")]) == 0
    assert "The same numbers occur again and again in count, grade." in " ".join(capsys.readouterr().err.split())


def test_nothing_is_said_of_zeros_that_are_learned_as_normal_scores(tmp_path):
    path = tmp_path / "x.csv"
    pandas.DataFrame({"rain": RAIN, "measured": COLUMNS["measured"]}).to_csv(path, index=False)
    usual, said = PRESETS["array"].config, dict[str, list[str]]()
    for how in ("none", "auto"):
        said[how] = []
        config = replace(usual, data=path, dataset=replace(usual.dataset, coarse=how))
        asked = {"dataset.coarse": how, "train.n_updates": 2, "train.rounds": 0}
        train(config, tmp_path / how, asked=asked, warn=said[how].append)
    assert any("('rain') holds 0, its lowest number" in text for text in said["none"])
    assert not any("lowest number" in text for text in said["auto"])
