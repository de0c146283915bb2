"""Columns with bounds: which they are, densities with the Jacobian, learning, gaps and draws within the bounds."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

from grbm import Base, GaussianBernoulliRBM, cli, runs
from grbm.core.errors import UserError
from grbm.data.bounding import bounds_of, read_bounds, sentences
from grbm.data.bounds import UNBOUNDED, Bounds
from grbm.data.frame import Frame
from grbm.data.limits import MANY, limits_in
from grbm.data.tables import spread
from grbm.data.transforms import Elementwise
from grbm.evaluate import exact
from grbm.fitting.density import Fitted
from grbm.model.censoring import UNCENSORED, Censoring
from grbm.report.figures import plane
from grbm.runs.presets import PRESETS
from grbm.runs.training import train
from tests.helpers import TINY, random_model, refused

INF = math.inf
RNG = np.random.default_rng(0)
N = 400
LATENT = RNG.normal(size=(N, 3)) @ [[1.0, 0.6, 0.3], [0.0, 1.0, 0.4], [0.0, 0.0, 1.0]]
TABLE = np.c_[np.exp(LATENT[:, 0]), 100 / (1 + np.exp(-LATENT[:, 1])), LATENT[:, 2]]
LOG_SLOPE = -np.log(TABLE[:, 0]) + np.log(100 / (TABLE[:, 1] * (100 - TABLE[:, 1])))
TOLD = {0: (0, None), 1: (0, 100)}


def ends(*pairs: tuple[float, float]) -> Bounds:
    return Bounds(*torch.tensor(pairs, dtype=torch.float64).T.contiguous())


FOUR = ends((0, INF), (-INF, 3), (-1, 2), (-INF, INF))


def found_in(x: np.ndarray, **how) -> Bounds:
    usual = {"is_auto": True, "told": {}, "without": torch.zeros(1, dtype=torch.bool)}
    return bounds_of(torch.tensor(x), **(usual | how))


# The scale without bounds.


def test_the_scale_has_an_inverse_and_its_slope_is_that_of_autograd():
    y = torch.tensor([-30.0, -2.0, 0.0, 1.0, 9.0]).double()[:, None].expand(-1, 4)
    x = FOUR.outward(y)
    torch.testing.assert_close(FOUR.inward(x)[1:4], y[1:4])
    assert not FOUR.breaks(x).any()
    x = FOUR.outward(y[1:4]).requires_grad_()
    (slope,) = torch.autograd.grad(FOUR.inward(x).sum(), x)
    torch.testing.assert_close(FOUR.log_slopes(x.detach()), slope.log())
    far = FOUR.outward(torch.tensor([[-900.0] * 4, [900.0] * 4]).double())
    assert not FOUR.breaks(far).any()
    assert not FOUR.breaks(FOUR.narrowed(far, torch.float32)).any()  # arrays in float32 keep the bounds too
    assert torch.equal(FOUR.narrowed(x, torch.float64), x)
    gaps = torch.full((1, 4), math.nan).double()
    assert FOUR.inward(gaps).isnan().all()
    assert FOUR.outward(gaps).isnan().all()
    assert (FOUR.log_slopes(gaps) == 0).all()
    with pytest.raises(UserError, match=r"Column 2 has the number 2, which must be above -1 and below 2"):
        FOUR.inward(torch.tensor([[1.0, 1.0, 2.0, 1.0]]))


def test_densities_of_columns_with_bounds_integrate_to_one():
    """Over the whole of an amount and a share, of a machine with several modes."""
    model = random_model(2, 4, 3, strength=0.5)
    bounds, transform = ends((0, INF), (-1, 2)), Elementwise.of(torch.tensor([0.3, -0.2]), torch.tensor([1.5, 0.8]))
    fitted = Fitted(Frame(transform, Base(torch.zeros(2), torch.ones(2)), bounds=bounds), model)
    amount = torch.linspace(-12, 12, 2401).double().exp()
    share = torch.linspace(-1, 2, 2003).double()[1:-1]
    x = torch.cartesian_prod(amount, share)
    p = fitted.log_prob(x, exact.log_z(model)).exp().view(len(amount), len(share))
    whole = torch.trapezoid(torch.trapezoid(p, share), amount)
    assert float(whole) == pytest.approx(1.0, abs=1e-3)
    assert torch.isneginf(fitted.log_prob(torch.tensor([[0.0, 1.0], [1.0, 2.5]]).double(), 0.0)).all()
    score = fitted.log_likelihood(torch.cat([x[:10], torch.zeros(1, 2).double()]), 0.0)
    assert (score.n_rows, score.n_without) == (10, 1)


def test_a_frame_keeps_its_bounds_and_damaged_ones_are_refused():
    frame = Frame(Elementwise.of(torch.zeros(4), torch.ones(4)), Base(torch.zeros(4), torch.ones(4)), bounds=FOUR)
    again = Frame.from_tensors(frame.tensors())
    assert all(torch.equal(a, b) for a, b in zip(again.bounds, FOUR, strict=True))
    assert again.inner.bounds is UNBOUNDED
    assert Frame.from_tensors(frame.inner.tensors()).bounds is UNBOUNDED
    good = frame.tensors()
    for wrong in (
        {name: x for name, x in good.items() if name != "bound_low"},
        good | {"bound_low": good["bound_high"]},
        good | {"bound_high": good["bound_high"][:2]},
        good | {"bound_high": torch.full((4,), math.nan)},
    ):
        with pytest.raises(ValueError, match="bounds"):
            Frame.from_tensors(wrong)
    limits = Censoring(*torch.tensor([[0.01, -INF, -INF, 0.0], [INF, INF, 1.5, INF]], dtype=torch.float64))
    inner = replace(frame.inner, censoring=limits.mapped(FOUR.ends_inward))
    both = inner.with_columns(frame.grid, FOUR, limits)
    assert all(torch.equal(a, b) for a, b in zip(both.censoring, limits, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(both.inner.censoring, inner.censoring, strict=True))
    at = both.columns(both.limits.low.clamp_min(-9)[None])[0]
    assert at[[0, 3]].tolist() == [0.01, 0.0]  # the limits themselves, which logarithms round
    assert both.outward(both.inner.censoring.low.clamp_min(-9)[None])[0, [0, 3]].tolist() == [0.01, 0.0]


# Which columns have bounds.


def test_bounds_are_found_of_amounts_shares_and_percentages():
    def normal():
        return RNG.normal(size=N)

    columns = {
        "amount": np.exp(normal()),
        "percentage": 100 / (1 + np.exp(normal())),
        "share": 1 / (1 + np.exp(normal())),
        "normal": normal(),
        "far from 0": 50 + normal(),
        "negative too": np.exp(normal()) - 0.5,
        "zeros": np.where(RNG.random(N) < 0.3, 0.0, np.exp(normal())),
        "small shares": np.exp(normal() - 4).clip(0, 0.4),
        "few values": RNG.choice([1.0, 10.0, 100.0], N),
        "amount below 100": 90 * (amount := np.exp(normal())) / amount.max(),
    }
    x = np.stack(list(columns.values()), 1)
    assert list(zip(*(end.tolist() for end in found_in(x)), strict=True)) == [
        (0, INF), (0, 100), (0, 1), *[(-INF, INF)] * 4, (0, INF), (-INF, INF), (0, INF),
    ]  # fmt: skip
    gappy = np.where(RNG.random(x.shape) < 0.2, np.nan, x)
    assert found_in(gappy).low.tolist() == found_in(x).low.tolist()
    assert found_in(x, is_auto=False) is UNBOUNDED
    assert found_in(x[:, 3:5]) is UNBOUNDED
    assert not found_in(
        np.c_[TABLE[:, 0], 2 * TABLE[:, 0] + TABLE[:, 1], TABLE[:, 1]]
    ).n  # bounds would break relations
    coarse = torch.tensor([True] + [False] * 9)
    assert found_in(x, without=coarse).is_bounded.tolist()[:2] == [False, True]


def test_bounds_are_told_by_name_or_number_and_checked():
    is_auto, told = read_bounds(["auto", "weight=0,", "1=0,100"])
    assert (is_auto, told) == (True, {"weight": (0, INF), "1": (0, 100)})
    assert read_bounds(["0,"]) == (False, {None: (0, INF)})
    assert read_bounds(()) == (False, {})
    assert read_bounds(["a=0,1", "a=0,1"]) == (False, {"a": (0, 1)})
    assert found_in(TABLE, told={"a ": (0, INF), 0: (0, INF)}, is_auto=False, columns=("a", "b", "c")).n == 1
    with pytest.raises(UserError, match="Bounds of column 'a' are given twice"):
        found_in(TABLE, told={"a": (0, INF), 0: (0, 1000)}, is_auto=False, columns=("a", "b", "c"))
    with pytest.raises(UserError, match="Bounds of all columns are given twice"):
        read_bounds(["0,1", "0,2"])
    for wrong in (["weights"], ["weight=0"], ["weight=a,b"], ["weight=2,1"], [","], ["weight=,"], [""]):
        with pytest.raises(UserError, match=r"weight|below"):
            read_bounds(wrong)
    how = {"is_auto": False, "columns": ("a", "b", "c"), "where": "x.csv"}
    assert found_in(TABLE, told={"a": (-1, INF), "1": (0, 200)}, **how).high.tolist() == [INF, 200, INF]
    with pytest.raises(UserError, match=r"x\.csv, column 'c', has numbers from -.*, which must be above 0; give wider"):
        found_in(TABLE, told={None: (0, INF)}, **how)
    with pytest.raises(UserError, match=r"'d', which is no column that is learned of x\.csv; it has a, b, c"):
        found_in(TABLE, told={"d": (0, INF)}, **how)
    with pytest.raises(UserError, match="is coarse"):
        found_in(TABLE, told={"a": (0, INF)}, without=torch.tensor([True, False, False]), **how)
    with pytest.raises(UserError, match="column 'b', is a linear function of column 'a'"):
        found_in(np.c_[TABLE[:, 0], 2 * TABLE[:, 0] + 1, TABLE[:, 2]], told={"b": (0, INF)}, **how)
    stats = [torch.tensor([-2.0, 0, 0]).double()]
    beyond = [type("Ends", (), {"low": stats[0], "high": torch.full((3,), 50.0).double()})()]
    constant = np.c_[TABLE[:, 0], np.zeros(N)]
    assert found_in(constant, told={None: (0, INF)}, **how).is_bounded.tolist() == [True, False]
    with pytest.raises(UserError, match="has numbers from -2 "):  # of rows held out
        found_in(TABLE, told={"a": (0, INF)}, stats=beyond, **how)


def test_what_does_not_go_with_bounds_is_refused():
    """A relation whose terms have bounds, and given limits; narrow bounds far from 0 do."""
    a, b = TABLE[:, 0], TABLE[:, 1]
    with pytest.raises(UserError, match="give none of them bounds"):
        found_in(np.c_[a, b, a + b], is_auto=False, told={0: (0, INF), 1: (0, INF)})
    with pytest.raises(ValueError, match="not with given ones"):
        GaussianBernoulliRBM(8, bounds=(0, None), censor=(0.5, None), n_iter=1).fit(np.maximum(TABLE[:, :2], 0.5))
    near = ends((1e7, 1e7 + 2))
    x = 1e7 + torch.rand(50, 1).double() * 2
    torch.testing.assert_close(near.outward(near.inward(x)), x, rtol=0, atol=1e-5)


def test_bounds_far_from_0_keep_every_digit_and_those_far_from_the_numbers_are_refused():
    """Unix times of this century, whose shares of a second count, and bounds beside which numbers are all alike."""
    late = ends((1.6e9, INF))
    x = 1.6e9 + torch.tensor([[0.001], [0.5], [300.0]]).double()
    assert torch.equal(late.ends_inward(x), late.inward(x))
    torch.testing.assert_close(late.outward(late.inward(x)), x, rtol=0, atol=1e-6)
    assert not late.breaks(late.narrowed(x, torch.float32)).any()
    assert late.breaks(x.float()).any()
    from_zero = GaussianBernoulliRBM(2, bounds={0: (0, None)}, n_iter=3, random_state=0).fit(TABLE[:, [0, 2]])
    table = TABLE[:, [0, 2]] + [1.6e9, 0.0]
    later = GaussianBernoulliRBM(2, bounds={0: (1.6e9, None)}, n_iter=3, random_state=0).fit(table)
    np.testing.assert_allclose(later.score_samples(table), from_zero.score_samples(TABLE[:, [0, 2]]), atol=1e-4)
    np.testing.assert_allclose(later.sample(9) - [1.6e9, 0.0], from_zero.sample(9), rtol=1e-4, atol=1e-5)
    narrow = (1.6e9 + 128 * np.ceil(np.exp(LATENT))).astype(np.float32)  # the next number of float32 is 128 away
    drawn = GaussianBernoulliRBM(2, bounds=(1.6e9, None), n_iter=1, random_state=0).fit(narrow).sample(400)
    assert drawn.dtype == np.float32
    assert (drawn.astype(np.float64) > 1.6e9).all()
    small = torch.tensor([[1e-35]]).double()
    assert torch.equal(ends((0, INF)).ends_inward(small), small.log())  # only numbers at bounds are moved
    for low in (-1e10, -1e14, -1e300):
        with pytest.raises(UserError, match="cannot be told apart at their distance from bounds: above -1e"):
            found_in(TABLE[:, 2:], is_auto=False, told={0: (low, INF)})
    assert found_in(TABLE[:, 2:], is_auto=False, told={0: (-1e5, INF)}).n == 1


def test_infinite_numbers_are_called_so_and_do_not_break_a_bound_that_is_not_there():
    x = torch.tensor([[1.0, 1.0, 0.0, INF], [INF, 1.0, 0.0, 0.0], [1.0, -INF, 0.0, -INF], [-INF, INF, INF, 0.0]])
    assert FOUR.breaks(x).tolist() == [[False] * 4] * 3 + [[True, True, True, False]]


def test_limits_of_tables_with_gaps():
    x = torch.tensor(np.c_[TABLE[:, 0], np.maximum(LATENT[:, 1], 0), LATENT[:, 2]])
    x[::7, 1] = math.nan
    marked = Censoring(torch.tensor([-INF, -INF, 0.5]).double(), torch.full((3,), INF).double())
    assert limits_in(x, "none") is UNCENSORED
    assert limits_in(x, "marks", marked).low.tolist() == [-INF, -INF, 0.5]
    assert limits_in(x, "auto", marked).low.tolist() == [-INF, 0.0, 0.5]
    assert limits_in(x.float(), "auto", marked).low.tolist() == [-INF, 0.0, 0.5]
    many = torch.cat([x[:, 1:2].nan_to_num(0.0)] * 60)  # only some of so many rows are looked at
    seen = many[spread(len(many), MANY)]
    many[torch.isin(torch.arange(len(many)), spread(len(many), MANY)).logical_not().nonzero()[0]] = -3.0
    assert (many.min(), seen.min()) == (-3, 0)
    assert limits_in(many, "auto").low.tolist() == [-INF]  # since not all stop there
    low = torch.tensor([0.5, -INF, -INF]).double()
    concentrations = np.c_[np.maximum(TABLE[:, 0], 0.5), TABLE[:, 1:]]
    top = np.where(RNG.random(N) < 0.1, 500.0, 50 + 5 * LATENT[:, 0])[:, None]  # without its limit a skewed amount
    at_top = Censoring(*torch.tensor([[-INF], [500.0]], dtype=torch.float64))
    assert found_in(top, limits=at_top) is UNBOUNDED
    assert found_in(top) is not UNBOUNDED
    found = found_in(concentrations, limits=Censoring(low, torch.full((3,), INF).double()))
    assert found.is_bounded.tolist() == [True, True, False]  # by the values above the limit


# Learning.


@pytest.fixture(scope="module")
def learned():
    return GaussianBernoulliRBM(16, bounds=TOLD, n_iter=40, random_state=0).fit(TABLE)


def test_learning_is_that_of_the_scale_by_hand_and_scores_have_its_jacobian(learned):
    by_hand = np.c_[np.log(TABLE[:, 0]), np.log(TABLE[:, 1] / (100 - TABLE[:, 1])), TABLE[:, 2]]
    plain = GaussianBernoulliRBM(16, n_iter=40, random_state=0).fit(by_hand)
    np.testing.assert_allclose(learned.score_samples(TABLE), plain.score_samples(by_hand) + LOG_SLOPE, atol=1e-6)
    shift = [a - b for a, b in zip(learned.validation_scores_, plain.validation_scores_, strict=True)]
    assert max(shift) == pytest.approx(min(shift), abs=1e-9)  # the mean over the same rows held out
    assert abs(shift[0] - LOG_SLOPE.mean()) < 4 * LOG_SLOPE.std() / math.sqrt(N // 10)
    np.testing.assert_allclose(learned.transform(TABLE), plain.transform(by_hand), atol=1e-5)
    drawn, own = learned.sample(500), plain.sample(500)
    np.testing.assert_allclose(drawn[:, 0], np.exp(own[:, 0]), rtol=1e-4)
    auto = GaussianBernoulliRBM(16, bounds="auto", n_iter=40, random_state=0).fit(TABLE)
    np.testing.assert_array_equal(auto.score_samples(TABLE), learned.score_samples(TABLE))


def test_draws_and_filled_gaps_keep_the_bounds(learned):
    drawn = learned.sample(2000)
    assert drawn[:, 0].min() > 0
    assert drawn[:, 1].min() > 0
    assert drawn[:, 1].max() < 100
    gappy = TABLE[:60].copy()
    gappy[:30, 0], gappy[30:, 1] = np.nan, np.nan
    mean, std = learned.impute(gappy, return_std=True)
    missing = np.isnan(gappy)
    assert mean[:, 0].min() > 0
    assert 0 < mean[:, 1].min() < mean[:, 1].max() < 100
    np.testing.assert_array_equal(mean[~missing], gappy[~missing])
    assert (std[~missing] == 0).all()
    low, high = learned.impute_quantiles(gappy, [0.05, 0.95])
    assert np.array_equal(learned.impute_quantiles(TABLE[:2], [0.5]), [TABLE[:2]])
    assert (low[:30, 0] > 0).all()
    assert (high[30:, 1] < 100).all()
    inside = (low[missing] <= TABLE[:60][missing]) & (TABLE[:60][missing] <= high[missing])
    assert 0.75 < inside.mean() <= 1
    given = learned.sample(40, given=[2.0, np.nan, np.nan])
    assert (given[:, 0] == 2).all()
    with pytest.raises(ValueError, match="noise goes with columns without bounds"):
        learned.impute(gappy, noise_std=[0.1, 0.0, 0.0])
    learned.impute(gappy, noise_std=[0.0, 0.0, 0.1])
    with pytest.raises(ValueError, match="noise_std must be finite"):
        learned._fitted().impute(torch.tensor(gappy), math.nan)
    with pytest.raises(UserError, match="Column 0 has the number -1, which must be above 0"):
        learned.impute(np.r_[gappy[:1], [[-1.0, np.nan, 0.0]]])


def test_the_mean_of_a_gap_is_that_of_the_column_and_not_of_its_scale():
    """Of one log-normal column beside another: E[x | other] = exp(m + s²/2), where exp(m) would be 27 % less."""
    z = RNG.normal(size=(4000, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    rbm = GaussianBernoulliRBM(8, bounds={1: (0, None)}, random_state=0).fit(np.c_[z[:, 0], np.exp(z[:, 1])])
    x0 = np.linspace(-1, 1, 30)
    mean, std = rbm.impute(np.c_[x0, np.full(30, np.nan)], return_std=True)
    expected = np.exp(0.6 * x0 + 0.32)
    ratio = mean[:, 1] / expected
    assert abs(np.log(ratio).mean()) < 4 * 0.8 / math.sqrt(30 * 100) + 0.03
    np.testing.assert_allclose(np.median(std[:, 1] / expected), math.sqrt(math.expm1(0.64)), rtol=0.15)


def test_draws_of_filled_rows_are_held_of_some_rows_at_a_time(learned, monkeypatch):
    """And of none without gaps."""
    seen, whole = [], Fitted._filled_as_learned

    def filled(self, x, *args):
        seen.append(x)
        return whole(self, x, *args)

    monkeypatch.setattr(Fitted, "_filled_as_learned", filled)
    monkeypatch.setattr("grbm.fitting.density.NUMBERS_DRAWN", 2 * 100 * 3)
    rows = TABLE[:50].copy()
    rows[[3, 8, 40], 0] = np.nan
    mean = learned.impute(rows)
    assert [len(x) for x in seen] == [2, 1]
    assert all(x.isnan().any(1).all() for x in seen)
    np.testing.assert_array_equal(mean[~np.isnan(rows)], rows[~np.isnan(rows)])
    assert (mean[[3, 8, 40], 0] > 0).all()


def test_what_others_say_of_a_number_does_not_hear_those_beyond_bounds(learned):
    row = TABLE[:1].copy()
    row[0, 0] = -1.0
    fitted = learned._fitted(np.float64)
    mean = fitted.surprises(torch.tensor(row)).mean
    alone, _ = fitted.impute(torch.tensor(np.where(row < 0, np.nan, [[math.nan, row[0, 1], math.nan]])))
    assert float(mean[0, 2]) == pytest.approx(float(alone[0, 2]), abs=0.3)


@pytest.mark.filterwarnings("error")
def test_the_figure_of_two_columns_with_bounds(tmp_path):
    path, folder = tmp_path / "x.csv", tmp_path / "run"
    pandas.DataFrame(TABLE[:, :2], columns=["amount", "cover"]).to_csv(path, index=False)
    usual = PRESETS["array"].config
    asked = {"dataset.bounds": ("auto",)}
    config = replace(
        usual,
        data=path,
        dataset=replace(usual.dataset, bounds=("auto",)),
        train=replace(usual.train, n_updates=20, rounds=0),
        model=replace(usual.model, n_hidden=4),
    )
    train(config, folder, asked=asked)
    run = runs.read(folder)
    left, middle, _, _ = plane(run, run.load_data()).axes
    assert (left.get_xlabel(), middle.get_ylabel()) == ("amount", "cover")
    assert middle.collections[0].get_array().max() > -10


def test_the_density_of_rows_with_gaps_has_the_jacobian_of_known_numbers(learned):
    """It integrates to one over what is known, of an amount alone and of a percentage alone."""
    for column, grid in ((0, np.exp(np.linspace(-9, 9, 1500))), (1, np.linspace(0, 100, 1502)[1:-1])):
        rows = np.full((len(grid), 3), np.nan)
        rows[:, column] = grid
        assert np.trapezoid(np.exp(learned.score_samples(rows)), grid) == pytest.approx(1.0, abs=0.02)


def test_rows_beyond_bounds_have_no_density_and_no_codes(learned):
    beyond = TABLE[:3].copy()
    beyond[0, 0], beyond[2, 1] = -1.0, 100.0
    with pytest.warns(UserWarning, match="2 of 3 rows lie beyond bounds"):
        scores = learned.score_samples(beyond)
    assert np.isneginf(scores).tolist() == [True, False, True]
    p = learned.p_values(beyond)
    assert p[0] == p[2] == pytest.approx(1 / 2001)
    with pytest.raises(UserError, match="Column 0 has the number -1, which must be above 0"):
        learned.transform(beyond)


@pytest.mark.filterwarnings("ignore")
def test_learning_goes_on_within_the_same_bounds():
    rbm = GaussianBernoulliRBM(8, bounds=(0, None), n_iter=2, random_state=0).fit(TABLE[:, :2])
    low = rbm._frame().bounds.low
    rbm.partial_fit(TABLE[:50, :2])
    assert torch.equal(rbm._frame().bounds.low, low)
    with pytest.raises(UserError, match="must be above 0"):
        rbm.partial_fit(-TABLE[:50, :2])
    older = pickle.loads(pickle.dumps(rbm))
    del older._bounds_told  # pickles of 0.1 lack it
    older.partial_fit(TABLE[:50, :2])
    for other in ("none", "auto", (0, 500), {0: (0, None)}):
        with pytest.raises(ValueError, match=r"bounds is .* now, but was another in learning"):
            rbm.set_params(bounds=other).partial_fit(TABLE[:50, :2])
    with pytest.raises(ValueError, match=r"bounds is \(0, None\) now"):
        GaussianBernoulliRBM(8, n_iter=1).fit(TABLE).set_params(bounds=(0, None)).partial_fit(TABLE[:50])
    with pytest.raises(ValueError, match=r"bounds is 'auto' now"):
        GaussianBernoulliRBM(8, n_iter=1).fit(TABLE).set_params(bounds="auto", warm_start=True).fit(TABLE)
    with pytest.raises(ValueError, match="a column with bounds needs all rows at once"):
        GaussianBernoulliRBM(8, bounds=(0, None)).partial_fit(TABLE[:50, :2])
    for wrong in ((0,), (2, 1), {0: 3.0}, ("a", 1), {0: ("a", None)}):
        with pytest.raises(ValueError, match="bounds must be"):
            GaussianBernoulliRBM(8, bounds=wrong, n_iter=1).fit(TABLE)
    frame = pandas.DataFrame(TABLE, columns=["a", "b", "c"])
    rbm = GaussianBernoulliRBM(8, bounds={"b": (0, 100)}, n_iter=1, random_state=0).fit(frame)
    assert rbm._frame().bounds.is_bounded.tolist() == [False, True, False]


def test_bounds_and_limits_go_together_in_one_column_and_in_several():
    """Concentrations above a detection limit, whose logarithms are learned, and zeros of rainfall."""
    x = TABLE.copy()
    x[:, 0] = np.maximum(x[:, 0], 0.4)
    x[:, 2] = np.maximum(x[:, 2], 0)
    how = {"censor": "auto", "n_iter": 300, "random_state": 0}
    rbm = GaussianBernoulliRBM(8, bounds="auto", **how).fit(x)
    frame = rbm._frame()
    assert frame.bounds.is_bounded.tolist() == [True, True, False]
    assert frame.censoring.low.tolist() == [0.4, -INF, 0.0]
    drawn = rbm.sample(2000, n_steps=50)
    assert drawn[:, 0].min() == 0.4
    for column, limit in ((0, 0.4), (2, 0.0)):
        assert (drawn[:, column] == limit).mean() == pytest.approx((x[:, column] == limit).mean(), abs=0.04)
    assert drawn[:, 1].max() < 100
    assert drawn[:, 2].min() == 0
    by_hand = np.c_[np.log(x[:, 0]), np.log(x[:, 1] / (100 - x[:, 1])), x[:, 2]]
    plain = GaussianBernoulliRBM(8, **how).fit(by_hand)
    slope = np.where(x[:, 0] > 0.4, -np.log(x[:, 0]), 0.0) + np.log(100 / (x[:, 1] * (100 - x[:, 1])))
    np.testing.assert_allclose(rbm.score_samples(x), plain.score_samples(by_hand) + slope, atol=1e-5)
    gappy = x[:40].copy()
    gappy[:, 0] = np.nan
    filled = rbm.sample(5, given=gappy)
    assert filled[:, 0].min() >= 0.4
    assert (filled[:, 0] == 0.4).any()
    mean = rbm.impute(gappy)
    assert (mean[:, 0] > 0.4).all()
    codes = rbm.transform(gappy)
    assert np.isfinite(codes).all()


def test_the_command_line_learns_the_same_and_keeps_the_bounds(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"whiten": 60, "by column": 20})
    monkeypatch.setattr("grbm.fitting.recipe.ROUNDS", 2)
    path, folder = tmp_path / "x.csv", tmp_path / "run"
    gappy = TABLE.copy()
    gappy[::5, 1] = np.nan
    pandas.DataFrame(gappy, columns=["amount", "cover", "height"]).to_csv(path, index=False)
    usual = PRESETS["array"].config
    asked = {"dataset.bounds": ("amount=0,", "cover=0,100")}
    dataset = replace(usual.dataset, held_out=0.0, bounds=asked["dataset.bounds"])
    config = replace(usual, data=path, seed=3, dataset=dataset)
    said: list[str] = []
    train(config, folder, asked=asked, warn=said.append)
    run, rbm = runs.read(folder), GaussianBernoulliRBM(bounds=TOLD, random_state=3).fit(gappy)
    own = rbm.to_model().state_dict()
    assert all(torch.equal(x, own[name]) for name, x in run.model.state_dict().items())
    looks = [line["nats_validation"] for line in run.metrics if line["nats_validation"] is not None]
    assert looks == rbm.validation_scores_
    assert any(
        "Draws keep the bounds of column 'amount' (above 0), column 'cover' (above 0 and below 100)" in x for x in said
    )
    new = tmp_path / "new.csv"
    assert cli.main(["sample", str(folder), "--n", "200", "--out", str(new)]) == 0
    drawn = pandas.read_csv(new)
    assert drawn["amount"].min() > 0
    assert drawn["cover"].between(0, 100, inclusive="neither").all()
    assert cli.main(["evaluate", str(folder)]) == 0
    assert cli.main(["doctor", str(folder)]) in (0, 3)
    assert cli.main(["report", str(folder)]) == 0
    pandas.DataFrame(gappy[:60], columns=["amount", "cover", "height"]).to_csv(tmp_path / "some.csv", index=False)
    assert cli.main(["impute", str(folder), str(tmp_path / "some.csv"), "--out", str(tmp_path / "filled.csv")]) == 0
    assert pandas.read_csv(tmp_path / "filled.csv")["cover"].between(0, 100, inclusive="neither").all()
    pandas.DataFrame([[-2.0, 50.0, 0.0], [1.0, 50.0, 0.0]], columns=["amount", "cover", "height"]).to_csv(
        tmp_path / "two.csv", index=False
    )
    assert cli.main(["score", str(folder), str(tmp_path / "two.csv")]) == 0
    printed = capsys.readouterr().out
    assert "rows have a p-value of 0.001 or less" in printed
    assert "amount -2, where" in printed  # the number beyond its bound is the odd one
    assert pandas.read_csv(folder / "scores" / "two.csv")["log_density"].tolist()[0] == -INF
    for command in ("encode", "impute"):
        said = refused([command, folder, tmp_path / "two.csv"], capsys, "The number -2 in row 0, column 'amount'")
        assert "--replicas" not in said
    refused(["impute", folder, path, "--noise-std", "0.1", "--overwrite"], capsys, "--noise-std 0.1: noise goes with")
    refused(["export", folder, tmp_path / "x.onnx"], capsys, "bounds")
    capsys.readouterr()
    assert cli.main(["train", str(path), *TINY, "--out", str(tmp_path / "other")]) == 0
    text = " ".join(capsys.readouterr().err.split())
    assert "All numbers keep the bounds of column 'amount' (above 0), column 'cover' (above 0 and below 100)" in text


def test_bounds_that_were_asked_for_and_not_found_are_said_to_be():
    assert list(sentences(UNBOUNDED, [])) == []
    assert "No column is learned within bounds" in next(sentences(UNBOUNDED, [], asked=True))
