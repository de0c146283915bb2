"""Rows with gaps: a full-covariance Gaussian by EM, the density of what rows have, and learning from them."""

import copy
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import make_moons

from grbm import GaussianBernoulliRBM, cli
from grbm.core.errors import UserError
from grbm.core.randomness import generator
from grbm.fitting.callbacks import Progress
from grbm.fitting.density import Fitted
from grbm.fitting.gaps import Gaps, Gaussian, Refill, by_em, fit_gaussian, gaussian_draws
from grbm.fitting.recipe import Facts, resolve
from grbm.fitting.start import unseen_of
from grbm.runs import read
from grbm.runs.presets import PRESETS
from grbm.runs.training import train
from grbm.samplers.conditional import Filling
from tests.helpers import TINY, assert_standard, refused, z_bound

NAN = math.nan


def test_a_gaussian_is_the_most_likely_one_of_incomplete_rows():
    """Where one column alone has gaps, that is the regression on the other (Anderson 1957), in closed form."""
    rng = generator(0, "pairs")
    first = torch.randn(20_000, generator=rng, dtype=torch.float64)
    second = 0.8 * first + 0.6 * torch.randn(20_000, generator=rng, dtype=torch.float64)
    gappy = torch.stack([first, second.masked_fill(first > 0.2, NAN)], 1)
    found = fit_gaussian(gappy)
    x, y = gappy[first <= 0.2].T
    slope = torch.cov(torch.stack([x, y]))[0, 1] / x.var()
    mean = y.mean() + slope * (first.mean() - x.mean())
    left = (y - y.mean() - slope * (x - x.mean())).square().mean()
    torch.testing.assert_close(found.mean, torch.stack([first.mean(), mean]), atol=3e-3, rtol=0)
    var = first.var(correction=0)
    expected = torch.stack([var, slope * var, slope * var, left + slope**2 * var]).view(2, 2)
    torch.testing.assert_close(found.covariance, expected, atol=5e-3, rtol=0)


def test_log_prob_of_what_rows_have_is_that_of_the_gaussian_of_their_columns():
    covariance = torch.tensor([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]], dtype=torch.float64)
    mean = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    y = torch.tensor([[0.1, NAN, 1.0], [NAN, NAN, -0.5], [1.0, 2.0, 3.0], [NAN, NAN, NAN]], dtype=torch.float64)
    found = Gaussian(mean, covariance).log_prob(y)
    expected = torch.zeros(4, dtype=torch.float64)
    for i, has in enumerate(([0, 2], [2], [0, 1, 2])):
        some = torch.distributions.MultivariateNormal(mean[has], covariance[has][:, has])
        expected[i] = some.log_prob(y[i, has])
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize(("correlation", "share"), [(0.0, 0.5), (0.6, 0.5), (0.98, 0.3)])
def test_few_rows_are_shrunk_as_far_as_the_truth_asks_for(correlation, share):
    """Nearly as well as by the best of the strengths; each fixed one is more than a nat off for one of the three."""
    rng = np.random.default_rng(int(100 * correlation))
    truth = np.full((12, 12), correlation) + (1 - correlation) * np.eye(12)
    x = rng.multivariate_normal(np.zeros(12), truth, size=100)
    gappy = torch.from_numpy(np.where(rng.random(x.shape) < share, NAN, x))

    def lost(fitted: Gaussian) -> float:
        """KL of the truth from it, in nats."""
        q = torch.distributions.MultivariateNormal(fitted.mean, fitted.covariance)
        p = torch.distributions.MultivariateNormal(torch.zeros(12).double(), torch.from_numpy(truth))
        return float(torch.distributions.kl_divergence(p, q))

    best = min(lost(by_em(gappy, more)) for more in (1.0, 3.0, 10.0, 30.0))
    assert lost(fit_gaussian(gappy)) < best + 0.1


def test_draws_of_the_gaussian_fill_gaps_and_leave_the_rest():
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([3, -1, 0], [[4, 1.9, 0], [1.9, 1, 0.3], [0, 0.3, 1]], size=4000)
    gappy = np.where(rng.random(x.shape) < 0.4, NAN, x)
    drawn = gaussian_draws(gappy, seed=1)
    known = ~np.isnan(gappy)
    np.testing.assert_array_equal(drawn[known], gappy[known])
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(x.T), atol=0.12)
    np.testing.assert_array_equal(drawn, gaussian_draws(gappy, seed=1))
    assert (drawn != gaussian_draws(gappy, seed=2))[~known].all()


def test_matched_rows_have_the_moments_of_the_shrunk_gaussian():
    """In a constant column nothing moves; where columns follow from others, draws stay what they are. Neither kind
    has a part in how much is shrunk."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5)) * [1, 2, 3, 1, 5] + [10, 0, -5, 0, 3]
    x[:, 3] = 7.0
    gappy = np.where(rng.random(x.shape) < 0.3, NAN, x)
    varies, scale = np.arange(5) != 3, np.nanstd(gappy, 0)[[0, 1, 2, 4]]
    standard = (gappy[:, varies] - np.nanmean(gappy[:, varies], 0)) / scale
    matched = gaussian_draws(gappy, times=3, match=True)
    assert matched.shape == (90, 5)
    assert (matched[:, 3] == 7.0).all()
    y = (matched[:, varies] - np.nanmean(gappy[:, varies], 0)) / scale
    truth = fit_gaussian(torch.from_numpy(standard))
    np.testing.assert_allclose(y.mean(0), truth.mean, atol=1e-12)
    np.testing.assert_allclose(np.cov(y.T, bias=True), truth.covariance, atol=1e-12)
    drawn = gaussian_draws(gappy, times=3)
    away = (drawn - matched)[:, varies] / scale
    assert 1e-3 < np.abs(away).mean() < 0.5  # moved, but not turned
    gappy[:, 0] = x[:, 0]
    follows = np.c_[gappy, x[:, 0] + 1]
    np.testing.assert_array_equal(gaussian_draws(follows, match=True), gaussian_draws(follows))
    np.testing.assert_allclose(gaussian_draws(follows), np.c_[gaussian_draws(gappy), x[:, 0] + 1])


def test_a_gaussian_that_is_kept_of_few_rows_is_the_shrunk_one():
    """To 0.05 nats; that of rows filled by its draws, which is not shrunk, is 0.24 away."""
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(12, 12))
    x, new = rng.normal(size=(75, 12)) @ mix, rng.normal(size=(400, 12)) @ mix
    gappy = np.where(rng.random(x.shape) < 0.3, NAN, x)
    rbm = GaussianBernoulliRBM(random_state=0).fit(gappy)
    assert rbm.is_gaussian_
    centre, scale = np.nanmean(gappy, 0), np.nanstd(gappy, 0)
    truth = fit_gaussian(torch.from_numpy((gappy - centre) / scale))
    expected = truth.log_prob(torch.from_numpy((new - centre) / scale)).numpy() - np.log(scale).sum()
    assert rbm.score(new) == pytest.approx(expected.mean(), abs=0.05)
    rows, recipe = torch.from_numpy(gappy), rbm._recipe()
    assert (Gaps(rows, 0).by_gaussian(recipe)[:75] != rows).all()
    filled = Gaps(rows, 0).by_gaussian(replace(recipe, standardise="pixel"))  # where limits are values that repeat
    assert (filled[:75] == rows)[~rows.isnan()].all()


def test_a_gaussian_that_is_kept_leaves_narrow_directions_narrow():
    """Shrinkage would cost 5 nats and more where two columns, without gaps, differ by a hundred thousandth."""
    rng = np.random.default_rng(3)
    first = rng.normal(size=590)
    x = np.c_[first, first + 1e-5 * rng.normal(size=590), rng.normal(size=(590, 2))]
    for n in (30, 90):  # with rows enough, and with few
        gappy = x[:n].copy()
        gappy[:, 2:][rng.random((n, 2)) < 0.3] = NAN
        filled = gaussian_draws(gappy, times=8, match=True)
        assert np.std(filled[:, 1] - filled[:, 0]) < 1.5e-5


def nats_on_a_grid(fitted: Fitted, row: np.ndarray, column: int, log_z: float) -> float:
    """log ∫ p(x) dx over one column of a row."""
    grid = np.linspace(-300, 300, 60_001)
    rows = np.tile(row, (len(grid), 1))
    rows[:, column] = grid
    return float(np.log(np.trapezoid(np.exp(fitted.log_prob(torch.from_numpy(rows), log_z).numpy()), grid)))


@pytest.mark.parametrize("settings", [{}, {"n_contrasts": 3}, {"whiten": False}])
def test_the_density_of_what_a_row_has_is_the_integral_over_what_it_lacks(settings):
    x = make_moons(400, noise=0.1, random_state=0)[0] * [2.0, 3.0] + [1.0, -2.0]
    if "n_contrasts" in settings:
        x = np.random.default_rng(0).standard_t(1.5, size=(400, 2)).clip(-40, 40)
    x = x if settings.get("whiten", True) else (x - x.mean(0)) / x.std(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = GaussianBernoulliRBM(10, n_iter=40, random_state=0, **settings).fit(x)._fitted(np.float64)
    log_z, rows = fitted.log_partition().value, x[[3, 50, 120, 200, 300]]
    z = []
    for column in (0, 1):
        gappy = rows.copy()
        gappy[:, column] = NAN
        found = fitted.estimate(torch.from_numpy(gappy), log_z)
        expected = [nats_on_a_grid(fitted, row, column, log_z) for row in rows]
        if settings.get("whiten", True):
            z += ((found.log_p.numpy() - expected) / found.error.numpy()).tolist()
            assert (found.error < 0.3).all()
            assert_standard(z, n_cases=1)
        else:  # by enumeration
            np.testing.assert_allclose(found.log_p, expected, atol=1e-6)
            assert (found.error == 0).all()
    both = fitted.estimate(torch.from_numpy(np.concatenate([rows, gappy])), log_z).log_p
    np.testing.assert_array_equal(both[:5], fitted.log_prob(torch.from_numpy(rows), log_z))
    assert (both[5:] != both[:5]).all()


@pytest.fixture(scope="module")
def skewed():
    """Two clusters; in one of them the second column is mostly missing, as its first tells."""
    rng = np.random.default_rng(0)
    which = rng.random(3000) < 0.5
    x = np.where(which[:, None], [4.0, 6.0], [0.0, -2.0]) + rng.normal(size=(3000, 2)) * [0.5, 1.0]
    gappy = x.copy()
    gappy[which & (rng.random(3000) < 0.8), 1] = NAN
    return x, gappy


def test_what_is_learned_is_not_biased_by_which_rows_have_gaps(skewed):
    """Complete rows alone, five sixths of them in one cluster, would be off by 2.7 in the second column; three seeds
    are off by 0.30 to 0.34."""
    x, gappy = skewed
    settings = {"n_components": 24, "n_iter": 100, "random_state": 0}
    fitted = GaussianBernoulliRBM(**settings).fit(gappy)
    drawn = fitted.sample(4000)
    assert abs(drawn[:, 0].mean() - x[:, 0].mean()) < 0.3
    assert abs(drawn[:, 1].mean() - x[:, 1].mean()) < 0.4
    complete = GaussianBernoulliRBM(**settings | {"n_iter": 30}).fit(gappy[~np.isnan(gappy).any(1)]).sample(4000)
    assert complete[:, 0].mean() < x[:, 0].mean() - 1
    filled, std = fitted.impute(gappy, return_std=True)
    gaps = np.isnan(gappy)
    np.testing.assert_array_equal(filled[~gaps], x[~gaps])
    assert np.sqrt(np.square(filled - x)[gaps].mean()) < 1.25  # of 1, by the true density
    assert 0.8 < np.mean(np.abs(filled - x)[gaps] < 1.645 * std[gaps]) < 0.97
    again = GaussianBernoulliRBM(**settings).fit(gappy)
    np.testing.assert_array_equal(again.components_, fitted.components_)


@pytest.mark.parametrize("n_rounds", [0, 3])
def test_refills_are_draws_of_the_model_in_training(skewed, monkeypatch, n_rounds):
    """Every other update here and every round, of the rows with gaps alone, whose known values stay, from the first
    look on that finds it better than a full-covariance Gaussian; without them other weights come."""
    _, gappy = skewed
    settings = {"n_components": 8, "n_iter": 10, "n_rounds": n_rounds, "random_state": 0}
    fitted = GaussianBernoulliRBM(**settings).fit(gappy)
    real, made, good = Refill.after, [], []

    def after(refill: Refill, progress: Progress) -> None:
        before = refill.rows.clone()
        real(refill, progress)
        changed = (refill.rows != before).any(1).nonzero()[:, 0]
        if progress.best is not None and progress.best.mean >= refill.least:
            good.append(progress.update)
        if len(changed):
            made.append(progress.update)
            assert torch.equal(changed, refill.numbers)
            x = refill.fitted.frame.columns(refill.rows[changed].double())
            known = ~refill.gappy.isnan()
            torch.testing.assert_close(x[known], refill.gappy[known], atol=1e-4, rtol=0)

    monkeypatch.setattr(Refill, "after", after)
    GaussianBernoulliRBM(**settings).fit(gappy)
    stochastic = fitted.n_updates_ - n_rounds
    assert made == [update for update in good if update > stochastic or update % 2 == 0]
    assert 2 < made[0] < stochastic / 2
    assert len([update for update in made if update > stochastic]) == n_rounds
    monkeypatch.setattr(Refill, "after", lambda refill, progress: None)
    assert (GaussianBernoulliRBM(**settings).fit(gappy).components_ != fitted.components_).any()


def test_a_gaussian_fills_gaps_until_a_model_is_better(skewed, monkeypatch):
    _, gappy = skewed
    rows = Gaps(torch.from_numpy(gappy), 0)
    recipe = GaussianBernoulliRBM(8, n_iter=10, random_state=0).fit(gappy)._recipe()
    assert (rows.by_model(recipe, 100) != rows.drawn).any()
    monkeypatch.setattr("grbm.fitting.gaps.gaussian_score", lambda frame, unseen: math.inf)
    assert torch.equal(rows.by_model(recipe, 100), rows.drawn)


def test_gaps_go_through_every_method_that_knows_what_to_do(skewed):
    _, gappy = skewed
    fitted = GaussianBernoulliRBM(12, n_iter=5, random_state=0).fit(gappy)
    codes = fitted.transform(gappy[:20])
    assert np.isfinite(codes).all()
    assert ((codes >= 0) & (codes <= 1)).all()
    assert np.isfinite(fitted.score_samples(gappy[:20])).all()
    first = fitted.components_.copy()
    fitted.partial_fit(gappy[:200])
    assert (fitted.components_ != first).any()
    before, n_updates = fitted.components_.copy(), fitted.n_updates_
    fitted.set_params(warm_start=True).fit(gappy)
    assert fitted.n_updates_ > n_updates
    assert (fitted.components_ != before).any()
    masked = np.ma.masked_invalid(gappy)
    same = GaussianBernoulliRBM(12, n_iter=5, random_state=0).fit(masked)
    np.testing.assert_array_equal(same.components_, first)
    for censored in ({"whiten": False, "censor": (None, 7.0)}, {"whiten": False}):
        z = (gappy - np.nanmean(gappy, 0)) / np.nanstd(gappy, 0)
        other = GaussianBernoulliRBM(8, n_iter=3, random_state=0, **censored).fit(z)
        assert np.isfinite(other.score_samples(z[:5])).all()


@pytest.mark.parametrize("settings", [{"whiten": False}, {"n_rounds": 0}])
def test_codes_of_rows_with_gaps_are_means_over_what_is_missing(skewed, settings):
    """On a grid of the missing value, weighted by the density."""
    _, gappy = skewed
    z = (gappy - np.nanmean(gappy, 0)) / np.nanstd(gappy, 0)
    fitted = GaussianBernoulliRBM(6, n_iter=5, random_state=0, **settings).fit(z)
    row = z[np.isnan(z).any(1)][:1]
    grid = np.linspace(-12, 12, 4001)
    rows = np.c_[np.full(4001, row[0, 0]), grid]
    density = np.exp(fitted.score_samples(rows))
    expected = (density[:, None] * fitted.transform(rows)).sum(0) / density.sum()
    is_exact = "whiten" in settings
    np.testing.assert_allclose(fitted.transform(row)[0], expected, atol=1e-4 if is_exact else 0.15)
    both = fitted.transform(np.concatenate([row, rows[:1]]).astype(np.float64))
    assert both.dtype == np.float64


def test_columns_that_follow_from_others_keep_doing_so_or_are_refused():
    """Gaps in a column that is a sum of others would break the relation; a constant one stays what it is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    x = np.c_[x, x.sum(1), np.full(400, 0.1), rng.normal(size=400)]
    gappy = x.copy()
    gappy[:60, 3], gappy[50:90, 4] = NAN, NAN
    fitted = GaussianBernoulliRBM(8, n_iter=5, random_state=0).fit(gappy)
    assert (fitted.collinear_, fitted.constant_) == ([2], [3])
    assert (fitted.impute(gappy)[:, 3] == 0.1).all()
    wrong = gappy[:1].copy()
    wrong[0, 3:] = 9.0, NAN
    with pytest.warns(UserWarning, match="no density"):
        assert fitted.score_samples(wrong) == -np.inf
    wrong[0, 2:4] = 9.0, 0.1
    with pytest.warns(UserWarning, match="no density"):
        assert fitted.score_samples(wrong) == -np.inf
    wrong[0, 0] = NAN  # without which the relation tells nothing
    assert np.isfinite(fitted.score_samples(wrong))
    assert (fitted.score_samples(np.full((1, 5), NAN)) == 0).all()
    for column in (0, 2):
        broken = gappy.copy()
        broken[200:230, column] = NAN
        with pytest.raises(ValueError, match="Column 2 is a linear function of columns 0, 1 "):
            GaussianBernoulliRBM(8, n_iter=5).fit(broken)


@pytest.mark.parametrize("settings", [{}, {"n_contrasts": 3}, {"bounds": (0.0, None)}])
def test_validation_scores_what_is_known_of_rows_with_gaps(settings):
    """As `Fitted.estimate` does, in the units of the columns; whatever the gaps are filled with."""
    x = np.exp(make_moons(400, noise=0.1, random_state=0)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = GaussianBernoulliRBM(10, n_iter=40, random_state=0, **settings).fit(x)._fitted(np.float64)
    frame, log_z, gappy = fitted.frame, fitted.log_partition().value, torch.from_numpy(x[:60].copy())
    gappy[:20, 0], gappy[20:40, 1] = NAN, NAN
    known = frame.inward(gappy)
    expected = fitted.estimate(gappy, log_z)
    free_energy = torch.no_grad()(copy.deepcopy(fitted.model).float().free_energy)
    unseen = unseen_of(frame, known.nan_to_num(123.0), None, known, seed=0)
    assert unseen.rows.shape == (60, 128, 2)
    found = unseen.log_prob(free_energy) - log_z + unseen.log_det
    error = float((expected.error.square().sum() * (1 + 512 / 128)).sqrt())  # of the sum, of as many draws
    assert abs(float((found - expected.log_p).sum())) < z_bound(3) * error
    complete = unseen_of(frame, known[40:], None, known[40:], seed=0)
    assert complete.offsets is None
    torch.testing.assert_close(
        complete.log_prob(free_energy).mean() - log_z + complete.log_det,
        expected.log_p[40:].mean(),
        atol=1e-5,
        rtol=0,
    )


def test_rounds_on_rows_with_gaps_have_a_prior(tmp_path):
    """As strong as numbers are missing, in the estimator and in runs; none where all are known or another is asked."""
    asked = {"standardise": "whiten"}
    assert [resolve(asked, Facts(300, 3, True, missing)).train.prior for missing in (0.0, 0.25)] == [0.0, 1.5]
    assert resolve({"train.prior": 0.5} | asked, Facts(300, 3, True, 0.25)).train.prior == 0.5
    x = np.random.default_rng(0).normal(size=(400, 2))
    x[::4, 0] = np.nan
    assert Gaps(torch.from_numpy(x), 0).facts == Facts(400, 2, True, 0.125)
    np.save(tmp_path / "x.npy", x)
    options = ["--out", tmp_path / "run", "--train.n-updates", 2, "--train.rounds", 1]
    assert cli.main(["train", *map(str, (tmp_path / "x.npy", *options))]) == 0
    assert read(tmp_path / "run").config.train.prior == pytest.approx(6 * 100 / 740)  # complete rows are held out
    assert GaussianBernoulliRBM(4, n_iter=1, random_state=0).fit(x)._recipe().train.prior == 0.75


def test_limits_are_those_of_the_known_values():
    """Of censored columns with gaps: found, kept, and no draw lies beyond."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(500, 3)) @ rng.normal(size=(3, 3))).clip(min=0)
    gappy = np.where(rng.random(x.shape) < 0.1, NAN, x)
    for censor in ((0, None), "auto"):
        fitted = GaussianBernoulliRBM(6, n_iter=5, random_state=0, censor=censor).fit(gappy)
        assert (fitted.sample(200) >= 0).all()
        assert (fitted.sample(200) == 0).any(0).all()
        assert (fitted.impute(gappy) >= 0).all()


def test_nearly_collinear_columns_stay_so():
    rng = np.random.default_rng(5)
    a = rng.normal(size=600)
    x = np.c_[a, a + 0.003 * rng.normal(size=600), rng.normal(size=600)]
    gappy = np.where(rng.random(x.shape) < 0.08, NAN, x)
    drawn = gaussian_draws(gappy[~np.isnan(gappy).all(1)])
    assert np.std(drawn[:, 1] - drawn[:, 0]) < 0.02


def test_batches_of_partial_fit_may_lack_a_column(skewed):
    """And each is filled by other random numbers."""
    _, gappy = skewed
    fitted = GaussianBernoulliRBM(6, n_iter=5, random_state=0).fit(gappy)
    row = np.array([[4.0, NAN]])
    drawn = []
    for _ in range(3):
        drawn.append(float(fitted._redrawn(Gaps(torch.from_numpy(row), 0))[0, 1]))
        fitted.partial_fit(row)
    assert len(set(drawn)) == 3


def test_wide_tables_with_gaps_are_refused():
    x = np.random.default_rng(0).normal(size=(30, 501))
    x[0, 0] = NAN
    with pytest.raises(ValueError, match="501 columns; gaps are learned in up to 500"):
        GaussianBernoulliRBM(4, n_iter=1).fit(x)


def test_rows_with_gaps_have_no_whitened_intervals(skewed):
    fitted = GaussianBernoulliRBM(6, n_iter=5, random_state=0).fit(skewed[1])._fitted()
    rows = torch.from_numpy(skewed[1])
    with pytest.raises(ValueError, match="gaps"):
        fitted.latent(rows)
    score = fitted.log_likelihood(rows, 3.0)
    assert score.mean == float(fitted.estimate(rows, 3.0).log_p.mean())
    assert score.n_rows == len(rows)


def test_rows_and_columns_without_values_are_said(skewed):
    gappy = skewed[1][:200].copy()
    gappy[3] = NAN
    with pytest.warns(UserWarning, match="Rows of X without any value: 1,"):
        GaussianBernoulliRBM(4, n_iter=1, random_state=0).fit(gappy)
    gappy[:, 1] = NAN
    with pytest.raises(ValueError, match="Feature 1 of X has no values"):
        GaussianBernoulliRBM(4, n_iter=1).fit(gappy)
    with pytest.raises(ValueError, match="first rows of partial_fit"):
        GaussianBernoulliRBM(4).partial_fit(skewed[1])


# Runs.


def configured(path, **changed):
    usual = PRESETS["array"].config
    trained = replace(usual.train, n_updates=66, rounds=6)
    parts = {"train": trained, "model": replace(usual.model, n_hidden=8)}
    return replace(usual, data=path, checkpoint=replace(usual.checkpoint, updates=23), **parts | changed)


def write_table(path, x):
    pandas.DataFrame(x, columns=["a", "b"]).to_csv(path, index=False)
    return path


def test_a_run_with_gaps_resumes_to_the_same_bytes(skewed, tmp_path, capsys):
    """Left before the rounds, and among them, which begin with the rows that were drawn last."""
    config = configured(write_table(tmp_path / "x.csv", skewed[1][:400]))

    class Left(Exception):
        pass

    def leave(at: int, update: int) -> None:
        if update == at:
            raise Left

    said = []
    train(config, tmp_path / "whole", warn=said.append)
    n = int(np.isnan(skewed[1][:400]).any(1).sum())
    assert said[0] == f"{config.where}: {n} of 400 rows have gaps. Training fills gaps by draws from the model."
    for at in (40, 63):
        with pytest.raises(Left):
            train(config, tmp_path / "parts", on_update=lambda u, _, at=at: leave(at, u), resume=at == 63)
    begun = []
    train(config, tmp_path / "parts", resume=True, on_start=lambda run: begun.append(run.state.update))
    assert begun == [46]
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    fitted = read(tmp_path / "whole").fitted
    write_table(tmp_path / "other.csv", [[4.0, NAN], [0.0, -2.0]])
    run, other = str(tmp_path / "whole"), str(tmp_path / "other.csv")
    assert cli.main(["encode", run, other, "--out", str(tmp_path / "codes.npy")]) == 0
    codes = np.load(tmp_path / "codes.npy")
    np.testing.assert_allclose(codes, fitted.encode(torch.tensor([[4.0, NAN], [0.0, -2.0]])), rtol=1e-5)
    capsys.readouterr()
    assert cli.main(["evaluate", run, "--data", other]) == 0
    assert "1 of them have gaps: their log-likelihood is of the values" in capsys.readouterr().out
    drawn = fitted.sample_given(torch.tensor([[4.0, NAN]]), Filling(100, 0, 200))[0, :, 1]
    assert abs(float(drawn.mean()) - 6) < 1


def test_tables_with_gaps_that_cannot_be_learned_are_refused(tmp_path, capsys):
    """In one sentence: related columns, numbers too large; few rows are learned without those that have gaps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    total = np.c_[x, x[:, 0] + x[:, 1]]
    total[:5, 3] = NAN
    large = x.copy()
    large[3] = 1e200, NAN, 0
    for name, table, said in (("total", total, "linear function of columns 0, 1"), ("large", large, "divide it")):
        pandas.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False, header=False)
        refused(["train", tmp_path / f"{name}.csv", "--out", tmp_path / "run"], capsys, said)
    few = x[:15].copy()
    few[3, 0] = NAN
    pandas.DataFrame(few).to_csv(tmp_path / "few.csv", index=False, header=False)
    assert cli.main(["train", str(tmp_path / "few.csv"), *TINY, "--out", str(tmp_path / "few")]) == 0
    assert "1 of 15 rows have gaps and are left out" in capsys.readouterr().err


def test_another_gap_is_another_table(skewed, tmp_path):
    """What was known of a row with gaps, and which of its numbers are missing, are of the data that a run resumes."""
    x = skewed[1][:200].copy()
    config = configured(write_table(tmp_path / "x.csv", x))
    row = int(np.isnan(x).any(1).argmax())

    def leave(update: int, record: object) -> None:
        if update == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_update=leave)
    x[row, 0] += 0.5
    write_table(tmp_path / "x.csv", x)
    with pytest.raises(UserError, match="data are not those"):
        train(config, tmp_path / "run", resume=True)


def test_rows_with_gaps_are_left_out_where_they_cannot_be_learned(skewed, tmp_path):
    """Of a subset of rows; and too few complete ones say nothing about what was learned."""
    x = skewed[1][:400]
    config = configured(write_table(tmp_path / "x.csv", x))
    said = []
    subset = replace(config, dataset=replace(config.dataset, subset=100))
    train(subset, tmp_path / "run", warn=said.append)
    assert "left out of learning" in said[0]
    few = skewed[0][:400].copy()
    few[19:, 1] = NAN
    write_table(tmp_path / "x.csv", few)
    with pytest.raises(UserError, match=r"Only 19 of 400 rows have no gaps, .* needs 20; .* missing in: b 381\."):
        train(config, tmp_path / "other")


def test_arrays_may_have_gaps_too(tmp_path):
    """The same numbers in an array and in text are learned alike."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).round(4)
    x[rng.random(x.shape) < 0.1] = NAN
    np.save(tmp_path / "x.npy", x)
    write_table(tmp_path / "x.csv", x)
    weights = []
    for name in ("x.npy", "x.csv"):
        said, run = [], tmp_path / f"of {name}"
        train(configured(tmp_path / name), run, asked={"train.n_updates": 5}, warn=said.append)
        assert any("of 200 rows have gaps" in text for text in said)
        weights.append(read(run).model.W)
    assert torch.equal(*weights)


def test_quantiles_are_those_of_the_conditional_density():
    """Of a full-covariance Gaussian, in closed form."""
    x = np.random.default_rng(0).normal(size=(500, 2)) @ [[1.0, 0.8], [0, 0.6]] + [3, -1]
    rbm = GaussianBernoulliRBM(8, random_state=0, n_iter=0, n_rounds=0).fit(x)
    rbm._best["W"][:] = 0
    transform, machine = rbm._frame().transform, rbm.to_model(np.float64)
    mean = transform.inverse(machine.mu.detach()[None])[0].numpy()
    to_x = (transform.to_x * transform.scale).numpy()
    covariance = to_x.T * machine.var.detach().numpy() @ to_x
    rows, shares = np.array([[3.0, NAN], [NAN, 0.5], [1.0, 2.0]]), [0.1, 0.5, 0.9]
    found = rbm.impute_quantiles(rows, shares, n_draws=4000)
    assert found.shape == (3, 3, 2)
    np.testing.assert_array_equal(found[:, 2], [[1.0, 2.0]] * 3)
    np.testing.assert_array_equal(found[:, 0, 0], 3.0)
    for row, known, column in ((0, 0, 1), (1, 1, 0)):
        slope = covariance[known, column] / covariance[known, known]
        std = math.sqrt(covariance[column, column] - slope * covariance[known, column])
        expected = mean[column] + slope * (rows[row, known] - mean[known]) + np.array([-1.2816, 0, 1.2816]) * std
        # a quantile of 4,000 draws varies by at most 1.71/√4000 deviations
        np.testing.assert_allclose(found[:, row, column], expected, atol=4 * 1.71 / 4000**0.5 * std)
    for wrong in ([1.5], [[0.1]], [NAN]):
        with pytest.raises(ValueError, match="quantiles"):
            rbm.impute_quantiles(rows, wrong)
    assert np.array_equal(rbm.impute_quantiles(rows[2:], shares), [rows[2:]] * len(shares))


def test_the_command_line_writes_quantiles(skewed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "x.csv", skewed[1][:100])
    assert cli.main(["train", "x.csv", *TINY, "--out", "run"]) == 0
    assert cli.main(["impute", "run", "x.csv", "--quantiles", "0.25", "0.75", "--steps", "20"]) == 0
    given = skewed[1][:100]
    low, high = (pandas.read_csv(f"run/imputed/x.q{share}.csv").to_numpy() for share in (0.25, 0.75))
    known = ~np.isnan(given)
    np.testing.assert_array_equal(low[known], np.asarray(given)[known])
    assert (low < high)[~known].all()
    capsys.readouterr()
    refused(["impute", "run", "x.csv", "--quantiles", "1.5", "--overwrite"], capsys, "--quantiles", "1.5")
    refused(["impute", "run", "x.csv", "--quantiles", "0.5", "--noise-std", "1", "--overwrite"], capsys, "--noise-std")
    refused(["impute", "run", "x.csv", "--quantiles", "0.25"], capsys, "x.csv")  # is there already
