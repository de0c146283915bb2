"""The scikit-learn estimator: scikit-learn's own checks, exact densities, pipelines, and data of many kinds."""

import copy
import io
import pickle
import warnings

import joblib
import numpy as np
import pytest
import sklearn.datasets as sets
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import grbm
from grbm import GRBM, PCD, FitOptions, GaussianBernoulliRBM, ParallelTempering, TrainState, anchored_, train_step
from grbm.core.errors import DivergenceError, ScaleWarning
from grbm.evaluate import exact
from grbm.evaluate.ais import known
from grbm.evaluate.watching import Nats
from grbm.fitting.callbacks import Progress
from grbm.fitting.estimator import _teller
from grbm.learning.objectives import Adaptation
from tests.helpers import FEW_AND_MANY, assert_standard, mean_z


@parametrize_with_checks([GaussianBernoulliRBM(8, n_iter=5)])
@pytest.mark.filterwarnings("ignore::grbm.core.errors.ScaleWarning")  # some checks give features of mean 100
def test_scikit_learns_own_checks(estimator, check):
    if check.func.__name__.startswith("check_sample_weight_equivalence"):
        pytest.skip("It brings rows into another order, from which draws follow; tests/test_weights.py keeps theirs.")
    check(estimator)


def clusters(n: int, seed: int) -> np.ndarray:
    """Standardised points about four centres of unequal weight."""
    rng = np.random.default_rng(seed)
    centres = np.array([[1.2, 1.2, 0], [-1.2, 0.8, 0.5], [0, -1.5, -0.5], [1, -0.4, 1.5]])
    X = centres[rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])] + 0.35 * rng.normal(size=(n, 3))
    return (X - X.mean(0)) / X.std(0)


@pytest.fixture(scope="module")
def fitted_once() -> bytes:
    return pickle.dumps(GaussianBernoulliRBM(12, n_iter=300, whiten=False, random_state=0).fit(clusters(1000, 0)))


@pytest.fixture
def fitted(fitted_once) -> GaussianBernoulliRBM:
    """An estimator fitted once for all tests, a copy for each, which knows no log Z yet."""
    return pickle.loads(fitted_once)


def test_it_learns_a_density_better_than_a_gaussian(fitted):
    """Held-out nats per row, exact: -4.22 for a Gaussian, -2.78 here, -2.72 for four Gaussians, as they were made."""
    X, held_out = clusters(1000, 0), clusters(1000, 1)
    covariance = np.cov(X.T)
    _, log_det = np.linalg.slogdet(2 * np.pi * covariance)
    gaussian = -0.5 * (log_det + np.einsum("ni,ij,nj->n", held_out, np.linalg.inv(covariance), held_out)).mean()
    assert fitted.score(held_out) > gaussian + 1.3


def test_score_samples_is_the_log_density_of_the_mixture_that_the_model_is(fitted):
    X = clusters(50, 2)
    expected = exact.mixture(fitted.to_model(np.float64)).log_prob(torch.tensor(X)).numpy()
    np.testing.assert_allclose(fitted.score_samples(X), expected, atol=1e-9)
    assert fitted.log_partition()[1:5] == (0.0, "exact", "Exact.", True)


def test_above_20_components_it_is_ais_and_agrees_with_enumeration(fitted, monkeypatch):
    truth = exact.log_z(fitted.to_model(np.float64))
    monkeypatch.setattr(exact, "MAX_SUMMED", 5)
    found = fitted.log_partition()
    assert found.method == "AIS"
    assert 0 < found.error < 0.1
    assert_standard((found.value - truth) / found.error)


def test_an_uncertain_log_z_is_told(fitted, monkeypatch):
    """Each request for log Z and each score warns; after more steps log Z is sure and right, and scores use it."""
    truth, X = exact.log_z(fitted.to_model(np.float64)), clusters(10, 2)
    monkeypatch.setattr(exact, "MAX_SUMMED", 5)
    for _ in range(2):
        with pytest.warns(
            ConvergenceWarning, match=r"log Z is uncertain. Not converged: .*log_partition\(n_steps=20\)"
        ) as told:
            unsure = fitted.log_partition(n_steps=2, n_chains=20)
        assert told[0].filename == __file__
        assert not unsure.converged
    with pytest.warns(ConvergenceWarning, match="log Z is uncertain"):
        score = fitted.score(X)
    assert fitted.log_partition(n_steps=300).converged
    sure = fitted.log_partition()
    assert sure.value != unsure.value
    assert_standard((sure.value - truth) / sure.error)
    assert fitted.score(X) == pytest.approx(score + unsure.value - sure.value, abs=1e-6)


def test_codes_and_back_are_the_conditionals(fitted):
    X = clusters(50, 2)
    logits = (X / fitted.variances_) @ fitted.components_.T + fitted.intercept_hidden_
    H = fitted.transform(X)
    np.testing.assert_allclose(H, 1 / (1 + np.exp(-logits)), atol=1e-7)
    np.testing.assert_allclose(fitted.inverse_transform(H), H @ fitted.components_ + fitted.intercept_visible_)
    with pytest.raises(ValueError, match=r"12.*\(50, 3\)"):
        fitted.inverse_transform(X)


@FEW_AND_MANY
def test_samples_have_the_model_s_moments_and_repeat(fitted, n_chains):
    """The means of v and v² over annealed chains, from noise."""
    X = fitted.sample(n_chains)
    truth = exact.moments(fitted.to_model(np.float64))
    assert_standard(mean_z(X, truth.v), n_cases=2)
    assert_standard(mean_z(X**2, truth.v2), n_cases=2)
    np.testing.assert_array_equal(fitted.sample(10), fitted.sample(10))
    assert (fitted.sample(10, random_state=1) != fitted.sample(10, random_state=2)).all()
    here = clusters(20, 3)
    np.testing.assert_array_equal(fitted.gibbs(here, random_state=1), fitted.gibbs(here, random_state=1))
    assert fitted.gibbs(here, n_steps=3).shape == here.shape


def test_rows_that_come_out_have_the_names_of_those_that_went_in():
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"], index=range(100, 160))
    rbm = GaussianBernoulliRBM(2, n_iter=2, random_state=0).fit(X)
    assert isinstance(rbm.sample(3), np.ndarray)
    rbm.set_output(transform="pandas")
    assert list(rbm.sample(3).columns) == ["a", "b"]
    gappy = X.mask(X > 1)
    filled = rbm.impute(gappy, n_steps=8)
    assert list(filled.columns) == ["a", "b"]
    assert (filled.index == X.index).all()
    assert (filled[gappy.notna()] == gappy[gappy.notna()]).sum().sum() == gappy.notna().sum().sum()


def test_gaps_are_filled_and_noise_is_taken_away(fitted):
    """Against the exact posterior means: their root mean square error is 0.02, and 0.14 without tempering."""
    X = clusters(100, 4)
    rng = np.random.default_rng(0)
    gaps = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    model = fitted.to_model(np.float64)
    filled = fitted.impute(gaps, n_steps=1000, n_chains=8)
    np.testing.assert_array_equal(filled[~np.isnan(gaps)], X[~np.isnan(gaps)])
    expected = exact.posterior(model, torch.tensor(gaps))[0].numpy()
    assert np.square(filled - expected)[np.isnan(gaps)].mean() ** 0.5 < 0.06
    noisy = X + 0.5 * rng.normal(size=X.shape)
    clean = fitted.denoise(noisy, 0.5, n_steps=1000)
    expected = exact.posterior(model, torch.tensor(noisy), 0.25)[0].numpy()
    assert np.square(clean - expected).mean() ** 0.5 < 0.06
    assert np.square(clean - X).mean() < 0.7 * np.square(noisy - X).mean()
    assert not np.isnan(fitted.denoise(np.where(rng.random(X.shape) < 0.3, np.nan, noisy), [0.5, 0.5, 0.5])).any()
    assert (fitted.impute(gaps, random_state=1) != fitted.impute(gaps, random_state=2)).any()
    for wrong in (-0.5, np.nan, [1.0, -1.0, 1.0], [1.0, 1.0]):
        with pytest.raises(ValueError, match="noise_std"):
            fitted.denoise(X, wrong)


def test_what_is_asked_for_later_does_not_break_what_was_learned():
    rbm = GaussianBernoulliRBM(4, whiten=False, n_iter=1, n_replicas=1, random_state=0).fit(clusters(40, 0))
    assert rbm.set_params(n_contrasts=3).sample(2).shape == (2, 3)
    with pytest.raises(ValueError, match="n_contrasts=3"):
        rbm.fit(clusters(40, 0))


def test_partial_fit_begins_with_any_rows():
    """A single one, and some in which nothing varies."""
    X = clusters(40, 0)
    for first in (X[:1], np.ones((5, 3))):
        rbm = GaussianBernoulliRBM(4, n_replicas=1, random_state=0).partial_fit(first).partial_fit(X)
        assert np.isfinite(rbm.components_).all()


def test_partial_fit_is_training_step_by_step():
    """The average after four calls is that of one state driven by `train_step`, bit for bit."""
    X = clusters(512, 0)
    rbm = GaussianBernoulliRBM(8, batch_size=128, n_chains=32, n_replicas=3, learning_rate=0.02, random_state=3)
    rbm.partial_fit(X[:128])
    base, seed = rbm._frame().base, rbm._learned_with
    model = anchored_(GRBM(3, 8), torch.tensor(X[:128]), seed=seed)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.02), seed=seed)
    seen = X[:0]
    for k, chunk in enumerate(np.split(X, 4)):
        seen = np.r_[seen, chunk]
        if k:
            rbm.partial_fit(chunk)
            base = rbm._frame().base
        np.testing.assert_allclose(base.mean, seen.mean(0), atol=1e-6)
        np.testing.assert_allclose(base.var, (len(seen) * seen.var(0) + 10) / (len(seen) + 10), rtol=1e-6)
        objective = PCD(ParallelTempering(base, 3), 5, 32, probabilities=True)
        options = FitOptions(centred=True, min_var=0.02, average_decay=0.99)
        train_step(state, objective, torch.tensor(chunk).float(), options)
        state.adaptation = Adaptation(state.adaptation.state_dict)  # as from a file
        np.testing.assert_allclose(rbm.components_, state.average.W.detach().T, atol=1e-6)
        np.testing.assert_allclose(rbm.v_samples_, state.persistent[-1], atol=1e-6)


def test_learning_goes_on_bit_for_bit_through_a_file():
    X = clusters(512, 0)
    whole, parts = (GaussianBernoulliRBM(8, batch_size=128, n_chains=32, random_state=3) for _ in range(2))
    for chunk in np.split(X, 4):
        whole.partial_fit(chunk)
    for chunk in np.split(X, 4):
        parts.partial_fit(chunk)
        file = io.BytesIO()
        joblib.dump(parts, file)
        parts = joblib.load(io.BytesIO(file.getvalue()))
    for name in ("components_", "intercept_hidden_", "intercept_visible_", "variances_", "v_samples_"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    assert whole.n_iter_ == 4
    assert whole.n_updates_ == 4
    before = whole.score(X)
    for _ in range(30):
        whole.partial_fit(X)
    assert whole.score(X) > before + 0.1
    for changed in ({"n_chains": 16}, {"n_replicas": 1}, {"n_replicas": 3}, {"n_chains": 1}):
        whole.set_params(**changed).partial_fit(X)  # new chains
        assert whole.v_samples_.shape == (whole.n_chains, 3)
    with pytest.raises(ValueError, match="n_components is 9"):
        whole.set_params(n_components=9).partial_fit(X)


def test_a_fit_that_fails_leaves_nothing_half_learned():
    rbm = GaussianBernoulliRBM(4, n_iter=2, n_replicas=1, whiten=False, random_state=0).fit(clusters(100, 0))
    with pytest.warns(ScaleWarning), pytest.raises(DivergenceError):
        rbm.fit(1e12 * np.random.default_rng(0).normal(size=(100, 5)))
    with pytest.raises(NotFittedError):
        rbm.transform(clusters(10, 0))
    assert rbm.partial_fit(clusters(100, 0)[:, :2]).components_.shape == (4, 2)


def test_what_a_gpu_is_not_waited_for_is_told_in_the_end(monkeypatch):
    """As on a GPU, where gradients are looked at every 25 updates: each call looks once more."""
    monkeypatch.setattr("grbm.learning.guard.is_deferred", lambda energy: True)
    rbm = GaussianBernoulliRBM(4, n_replicas=1, batch_size=50, random_state=0).partial_fit(clusters(100, 0))
    before = rbm._frame().base
    with pytest.raises(DivergenceError, match="standardised"):
        rbm.partial_fit(1e12 * clusters(100, 0))
    assert torch.equal(rbm._frame().base.var, before.var)  # rows that could not be learned were not seen


def test_parameters_do_what_they_say():
    X = np.repeat(clusters(300, 0)[:, :1], 3, axis=1) + 1e-3 * np.random.default_rng(0).normal(size=(300, 3))
    settings = {"n_iter": 100, "n_replicas": 1, "whiten": False, "random_state": 0}
    floor = GaussianBernoulliRBM(8, min_variance=0.3, **settings).fit(X)
    assert floor.variances_.min() == pytest.approx(0.3, rel=0.05)
    still = GaussianBernoulliRBM(8, learning_rate=1e-9, **settings).fit(X)
    start = GaussianBernoulliRBM(8, **(settings | {"n_iter": 0})).fit(X)
    np.testing.assert_allclose(still.components_, start.components_, atol=1e-6)
    restarted = GaussianBernoulliRBM(8, restart=1.0, **settings).fit(X)
    assert (restarted.v_samples_ != GaussianBernoulliRBM(8, **settings).fit(X).v_samples_).all()


def test_gibbs_steps_leave_where_they_started(fitted):
    """From one point far away: after 1 step the mean is that of p(v | h ~ p(h | v0)), after 100 it is forgotten."""
    far = np.tile([[3.0, -3.0, 3.0]], (20_000, 1))
    one, many = fitted.gibbs(far, n_steps=1), fitted.gibbs(far, n_steps=100)
    expected = fitted.inverse_transform(fitted.transform(far[:1]))[0]
    assert_standard(mean_z(one, expected))
    assert float(mean_z(many, expected).abs().max()) > 20
    for wrong in (lambda: fitted.gibbs(far, n_steps=0), lambda: fitted.sample(0), lambda: fitted.sample(3, n_steps=-1)):
        with pytest.raises(ValueError, match="at least 1"):
            wrong()


def test_reversed_arrays_and_few_rows():
    X = clusters(300, 0)
    rbm = GaussianBernoulliRBM(4, n_iter=2, random_state=0).fit(X[::-1])
    np.testing.assert_array_equal(rbm.transform(X[::-1]), rbm.transform(X)[::-1])
    H, gaps = rbm.transform(X), np.where(X > 1, np.nan, X)
    np.testing.assert_array_equal(rbm.inverse_transform(H[::-1]), rbm.inverse_transform(H)[::-1])
    np.testing.assert_array_equal(rbm.score_samples(X[::-1]), rbm.score_samples(X)[::-1])
    for view in (X[::-1], X[:, ::-1]):
        whole = np.ascontiguousarray(view)
        np.testing.assert_array_equal(rbm.gibbs(view, random_state=1), rbm.gibbs(whole, random_state=1))
    for view in (gaps[::-1], gaps[:, ::-1]):
        whole = np.ascontiguousarray(view)
        np.testing.assert_array_equal(rbm.impute(view, random_state=1), rbm.impute(whole, random_state=1))
    again = copy.deepcopy(rbm).partial_fit(np.ascontiguousarray(X[::-1]))
    np.testing.assert_array_equal(rbm.partial_fit(X[::-1]).components_, again.components_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianBernoulliRBM(4, random_state=0).partial_fit(X[:3]).score(X)  # three rows tell little about scales


def test_one_random_state_one_result_whatever_the_threads():
    X = clusters(300, 0)
    a, b, c = (
        GaussianBernoulliRBM(8, n_iter=5, random_state=seed, n_jobs=n_jobs).fit(X)
        for seed, n_jobs in ((1, 1), (1, 2), (2, None))
    )
    np.testing.assert_array_equal(a.components_, b.components_)
    assert (a.components_ != c.components_).any()
    assert torch.get_num_threads() == 1  # as the tests set it


def test_float32_stays_float32():
    X = clusters(300, 0)
    single = GaussianBernoulliRBM(8, n_iter=3, random_state=0).fit(X.astype(np.float32))
    double = GaussianBernoulliRBM(8, n_iter=3, random_state=0).fit(X)
    for rbm, dtype in ((single, np.float32), (double, np.float64)):
        assert rbm.components_.dtype == dtype
        assert rbm.transform(X.astype(dtype)).dtype == dtype
        assert rbm.sample(3).dtype == dtype
        assert rbm.impute(X.astype(dtype)).dtype == dtype
    np.testing.assert_allclose(single.components_, double.components_, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("few_looks")
def test_pipeline_grid_search_pandas_and_skops():
    pandas, skops = pytest.importorskip("pandas"), pytest.importorskip("skops.io")
    X, y = sets.load_iris(return_X_y=True, as_frame=True)
    rbm = GaussianBernoulliRBM(16, n_iter=10, random_state=0)
    pipeline = make_pipeline(StandardScaler(), rbm, LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipeline, {"gaussianbernoullirbm__learning_rate": [0.01, 0.1]}, cv=2).fit(X, y)
    by_hand = []
    for train, test in StratifiedKFold(2).split(X, y):
        scaler = StandardScaler().fit(X.iloc[train])
        Z, held_out = scaler.transform(X.iloc[train]), scaler.transform(X.iloc[test])
        rate = search.best_params_["gaussianbernoullirbm__learning_rate"]
        coder = clone(rbm).set_params(learning_rate=rate).fit(Z)
        classifier = LogisticRegression(max_iter=1000).fit(coder.transform(Z), y.iloc[train])
        by_hand.append(classifier.score(coder.transform(held_out), y.iloc[test]))
    assert search.best_score_ == np.mean(by_hand)
    assert search.best_score_ > 0.8
    sizes = {"gaussianbernoullirbm__n_components": [2, 8]}
    alone = GridSearchCV(make_pipeline(StandardScaler(), rbm), sizes, cv=2).fit(X)
    assert np.isfinite(alone.best_score_)  # by log-likelihood

    Z = pandas.DataFrame(StandardScaler().fit_transform(X), columns=X.columns)
    rbm = clone(rbm).set_output(transform="pandas").fit(Z)
    codes = rbm.transform(Z)
    assert list(codes.columns) == [f"gaussianbernoullirbm{j}" for j in range(16)]
    assert list(rbm.feature_names_in_) == list(X.columns)
    data = skops.dumps(rbm)
    unknown = skops.get_untrusted_types(data=data)
    assert unknown == ["grbm.fitting.estimator.GaussianBernoulliRBM"]
    again = skops.loads(data, trusted=unknown)
    pandas.testing.assert_frame_equal(again.transform(Z), codes)
    np.testing.assert_array_equal(again.score_samples(Z), rbm.score_samples(Z))
    again.partial_fit(Z)


@pytest.mark.parametrize(
    ("n_iter", "looks"), [(3, 1), (30, 3), (35, 4), pytest.param(800, 40, marks=pytest.mark.whole)]
)
def test_looks_at_held_out_rows_are_ten_updates_apart_at_least(n_iter, looks):
    """And some forty of them; one update is a pass over these rows. Where nothing is held out a look costs nothing."""
    rbm = GaussianBernoulliRBM(4, n_iter=n_iter, random_state=0).fit(clusters(100, 0))
    assert len(rbm.validation_scores_) == looks
    told = []
    rbm.set_params(whiten=False, n_iter=3).fit(clusters(100, 0), callback=told.append)
    assert [progress.update for progress in told] == list(range(1, 1 + rbm.n_updates_))


def test_verbose_prints_progress(capsys):
    GaussianBernoulliRBM(4, n_iter=100, batch_size=50, verbose=1, random_state=0).fit(clusters(100, 0))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    said = [
        "Preparing 100 rows of 3 columns: mixtures of Gaussians are fitted.",
        "Learning from 90 rows with 4 hidden units.",
    ]
    assert lines[:2] == [f"[GaussianBernoulliRBM] {text}" for text in said]
    assert lines[-1].startswith("[GaussianBernoulliRBM] Update 100 of 100, held-out log-likelihood")
    GaussianBernoulliRBM(4, n_iter=10, batch_size=50, verbose=1, whiten=False, random_state=0).fit(clusters(100, 0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("[GaussianBernoulliRBM] Update 20 of 20, mean squared reconstruction error")


def test_verbose_prints_a_line_every_five_seconds(capsys, monkeypatch):
    """Of updates that take two seconds each, as rounds of large tables do: a line after three of them."""
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("grbm.fitting.estimator.time.perf_counter", lambda: float(next(clock)))
    tell = _teller(0, torch.zeros(1, 2), 0.0)
    for update in range(1, 31):
        tell(Progress(update, 1000, Nats(update, 1.0, 0.1, known(0.0)), None, None, None))
    assert len(capsys.readouterr().out.splitlines()) == 10


def test_what_a_number_of_passes_leaves_out_is_said(capsys):
    GaussianBernoulliRBM(4, n_iter=1, verbose=1, random_state=0).fit(clusters(300, 0))
    assert "n_rounds=60" in capsys.readouterr().out.splitlines()[0]
    GaussianBernoulliRBM(4, n_iter=1, n_rounds=0, verbose=1, random_state=0).fit(clusters(300, 0))
    assert "n_rounds" not in capsys.readouterr().out


def test_unscaled_features_are_named():
    pandas = pytest.importorskip("pandas")
    X = clusters(300, 0)
    rbm = GaussianBernoulliRBM(4, n_iter=2, whiten=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rbm.fit(X)
        clone(rbm).fit(np.c_[X, np.zeros(300)])  # a constant column is no matter
    with pytest.warns(ScaleWarning, match=r"\d+ times") as told:
        rbm.score_samples(50 * X)
    assert told[0].filename == __file__
    with pytest.warns(ScaleWarning) as told:
        make_pipeline(rbm, LogisticRegression()).fit(X + 50, X[:, 0] > 0)
    assert told[0].filename == __file__
    with pytest.raises(ValueError, match=r"impute\(X\)"):
        rbm.gibbs(np.where(X > 2, np.nan, X))
    with pytest.raises(ValueError, match="device gpu is not usable"):
        clone(rbm).set_params(device="gpu").fit(X)
    for column in (1e-3 * X[:, 1], 10 * X[:, 1], X[:, 1] + 50, np.full(300, 100.0)):
        table = pandas.DataFrame({"a": X[:, 0], "rain": column})
        with pytest.warns(ScaleWarning, match=r"1 of 2 features are far .*feature 1 \('rain'\).*StandardScaler"):
            rbm.fit(table)
    with pytest.warns(ScaleWarning):
        clone(rbm).partial_fit(X + 50)
    with pytest.warns(ScaleWarning), pytest.raises(DivergenceError, match="standardised"):
        rbm.fit(1e6 * X)
    with pytest.warns(ScaleWarning, match="feature 1 "), pytest.raises(DivergenceError, match="visible unit 1 "):
        rbm.fit(X * np.where(np.arange(X.shape[1]) == 1, 1e6, 1))


def test_wide_tables_of_many_columns_with_two_values_are_standardised():
    """As behind a StandardScaler, in all that is reported; a feature that does not vary is no matter."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 60)) + 3 * rng.normal(size=(300, 60))
    X[:, :20] = np.sign(X[:, :20])
    X = np.c_[X * np.geomspace(1e-5, 1e-2, 60) + np.linspace(-9, 9, 60), np.full(300, 7.0)]
    scaler = StandardScaler().fit(X[:, :60])
    few = {"n_iter": 20, "min_variance": 0.05, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = GaussianBernoulliRBM(12, **few).fit(X)

    def scaled(rows):
        return scaler.transform(rows[:, :60])

    other = GaussianBernoulliRBM(12, whiten=False, **few).fit(scaled(X))
    assert ours.constant_ == [60]
    np.testing.assert_allclose(ours.components_[:, :60], other.components_ * scaler.scale_, rtol=1e-3, atol=1e-9)
    centre = scaler.inverse_transform(other.intercept_visible_[None])[0]
    np.testing.assert_allclose(ours.intercept_visible_, [*centre, 7], rtol=1e-3)
    np.testing.assert_allclose(ours.variances_, [*other.variances_ * scaler.scale_**2, 0], rtol=1e-3)
    log_det = np.log(scaler.scale_).sum()
    np.testing.assert_allclose(ours.score_samples(X), other.score_samples(scaled(X)) - log_det, atol=0.01)
    gappy, noise = X.copy(), 0.3 * np.r_[scaler.scale_, 1]
    gappy[::2, 3] = np.nan
    filled, expected = (ours.impute(gappy), other.impute(scaled(gappy)))
    np.testing.assert_allclose(scaled(filled), expected, atol=1e-3)
    filled, expected = ours.denoise(gappy[:20], noise), other.denoise(scaled(gappy[:20]), 0.3)
    np.testing.assert_allclose(scaled(filled), expected, atol=1e-3)
    np.testing.assert_allclose(scaled(ours.sample(300)), other.sample(300), atol=1e-3)
    with pytest.warns(ScaleWarning, match=r"\d+ times"):
        ours.score_samples(X.mean(0) + 50 * (X - X.mean(0)))
    further = X.mean(0) + 0.5 * (X - X.mean(0)) + 2 * X.std(0)
    ours.partial_fit(further)
    other.partial_fit(scaled(further))
    np.testing.assert_allclose(scaled(ours.sample(300)), other.sample(300), atol=1e-3)
    few_rows = GaussianBernoulliRBM(4, n_iter=2, random_state=0).fit(X[:10])
    assert np.abs(few_rows.to_coordinates(X[:10])).max() < 10


def varied() -> dict[str, np.ndarray]:
    """Twelve tables: scales from 1e-3 to 1e6, constant and duplicated columns, 20 to 20,000 rows."""
    rng = np.random.default_rng(0)
    few = sets.load_linnerud(return_X_y=True)[0]
    blobs = sets.make_blobs(20_000, 10, centers=7, random_state=0)[0]
    informative = sets.make_classification(2000, 30, n_informative=5, n_redundant=20, random_state=0)[0]
    heavy = rng.standard_cauchy((500, 8))
    counts = rng.poisson(0.01, (3000, 12)).astype(float)
    return {
        "iris": sets.load_iris().data,
        "wine": sets.load_wine().data,
        "breast cancer": sets.load_breast_cancer().data,
        "diabetes": 1e-3 * sets.load_diabetes().data,
        "linnerud, 20 rows": few,
        "digits, constant columns": sets.load_digits().data,
        "blobs, 20,000 rows": 1e6 * blobs,
        "classification, duplicated columns": np.c_[informative, informative[:, :5], informative[:, :1]],
        "swiss roll": sets.make_swiss_roll(1500, random_state=0)[0],
        "low rank": sets.make_low_rank_matrix(1000, 50, effective_rank=3, random_state=0),
        "heavy tails": heavy,
        "rare counts": counts,
    }


def _neither_diverges_nor_warns(name: str, **settings: int) -> None:
    Z = StandardScaler().fit_transform(varied()[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rbm = GaussianBernoulliRBM(random_state=0, **settings).fit(Z)
    for values in (rbm.components_, rbm.variances_, rbm.transform(Z), rbm.sample(100)):
        assert np.isfinite(values).all()
    assert rbm.n_updates_ >= 1500
    if not name.startswith(("blobs", "heavy")):  # more replicas; outliers held out
        independent = -0.5 * (np.log(2 * np.pi) + np.var(Z, 0) / np.maximum(np.var(Z, 0), 0.02)).sum()
        constant = -0.5 * np.log(np.maximum(np.var(Z, 0), 0.02)).sum()
        assert rbm.score(Z) > independent + constant - 0.5  # independent normal features, of nine tenths of the rows


TABLES = tuple(varied())
QUICK = ("linnerud, 20 rows", "digits, constant columns")


@pytest.mark.usefixtures("few_looks")
@pytest.mark.parametrize("name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.whole) for x in TABLES])
def test_default_training_on_varied_data(name):
    """Defaults but for fewer hidden units, no tempering and fewer looks, so that it takes seconds."""
    _neither_diverges_nor_warns(name, n_components=16, n_replicas=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_default_training_on_varied_data_with_all_defaults(name):
    _neither_diverges_nor_warns(name)


@pytest.mark.whole
@pytest.mark.usefixtures("few_looks")
def test_far_clusters_get_their_shares():
    """Seven tight clusters in ten dimensions, exact nats per row: -0.04 for the mixture that they are, -14 for
    independent features, -17 or so for chains without tempering; here -1.8 to -0.9 with seeds 1 to 12, -6 with 0."""
    X = sets.make_blobs(5000, 10, centers=7, random_state=0)[0]
    shares = np.bincount(sets.make_blobs(5000, 10, centers=7, random_state=0)[1]) / 5000
    centres = np.stack([X[sets.make_blobs(5000, 10, centers=7, random_state=0)[1] == k].mean(0) for k in range(7)])
    scaler = StandardScaler().fit(X)
    rbm = GaussianBernoulliRBM(16, n_iter=75, random_state=1).fit(scaler.transform(X))
    assert rbm.score(scaler.transform(X)) > -3
    assert rbm.v_samples_.shape == (256, 10)
    drawn = scaler.inverse_transform(rbm.sample(2000))
    nearest = np.square(drawn[:, None] - centres).sum(-1).argmin(1)
    assert (np.abs(np.bincount(nearest, minlength=7) / 2000 - shares) < 0.08).all()
    rbm.partial_fit(scaler.transform(X[:100]))


@pytest.mark.whole
def test_half_a_digit_is_filled_in_better_than_by_regressions():
    """The lower half of 540 digits from the upper one: squared error per pixel (standardised) below the column means'
    (1.43) and IterativeImputer's, fitted on whole digits (1.25) or along with the halves (1.16). Here 1.1 or less."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    X, y = sets.load_digits(return_X_y=True)
    train, test = train_test_split(X, test_size=0.3, random_state=0, stratify=y)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    halves = np.where(np.arange(64) >= 32, np.nan, test)

    def error(filled: np.ndarray) -> float:
        return float(np.square(filled - test)[:, 32:].mean())

    rbm = GaussianBernoulliRBM(128, n_replicas=1, random_state=0, n_iter=250).fit(train)
    ours = error(rbm.impute(halves))
    whole = error(IterativeImputer(random_state=0).fit(train).transform(halves))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        along = error(IterativeImputer(random_state=0).fit_transform(np.r_[train, halves])[len(train) :])
    assert ours < 0.97 * min(whole, along, error(np.where(np.isnan(halves), 0, halves)))


def test_the_public_name_is_the_class():
    assert grbm.GaussianBernoulliRBM is GaussianBernoulliRBM
    with pytest.raises(AttributeError, match="no attribute"):
        grbm.Nothing  # noqa: B018


def test_a_notebook_shows_what_was_learned_and_how_good_it_is():
    X = np.random.default_rng(0).normal(size=(100, 3))
    rbm = GaussianBernoulliRBM(n_components=4, n_iter=3, random_state=0)
    assert "call fit(X)" in rbm._repr_html_()
    shown = rbm.fit(X)._repr_mimebundle_()
    assert shown["text/plain"] == repr(rbm)
    assert f"{rbm._seen[0]:,} rows of 3 columns" in shown["text/html"]
    assert f"{rbm.best_validation_score_:.4g} nats per row" in shown["text/html"]
    assert "full-covariance Gaussian" not in shown["text/html"]
    rbm.is_gaussian_ = True
    assert "full-covariance Gaussian" in rbm._repr_html_()
    with config_context(display="text"):
        assert set(rbm._repr_mimebundle_()) == {"text/plain"}
