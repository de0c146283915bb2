"""Coordinates of a table: lossless, clusters and all uncorrelated; constant and collinear columns put back exactly."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn import config_context
from sklearn.covariance import LedoitWolf, ledoit_wolf
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from grbm import Base, GaussianBernoulliRBM
from grbm.core.distributed import ALONE
from grbm.core.randomness import generator
from grbm.data import whitening
from grbm.data.standardise import standardise
from grbm.data.whitening import (
    _within,
    coarse,
    correlation,
    cross_validated,
    independent,
    suits_whitening,
    whiten,
)
from grbm.evaluate.baselines import baselines, compare
from grbm.evaluate.watching import gaussian_log_prob
from grbm.fitting.recipe import Facts, resolve
from grbm.model.reference import _clustered, best_mixture
from grbm.runs.preparing import open_data, prepare
from grbm.runs.presets import PRESETS
from grbm.runs.training import train
from tests.helpers import mean_z, z_bound


def table(n: int = 800) -> np.ndarray:
    """Three clusters in 4-D, in wild units, with a constant column, a sum of two others and one that is repeated."""
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(3, 4))
    mix = rng.normal(size=(4, 4))
    x = (centres[rng.integers(0, 3, n)] + 0.3 * rng.normal(size=(n, 4))) @ mix * [1e4, 1.0, 1e-3, 7.0] + [5, -1e3, 0, 2]
    return np.c_[x, np.full(n, 7.5), x[:, 0] / 1e4 + 2 * x[:, 1], x[:, 3]]


def test_constant_and_collinear_columns_are_found_and_put_back():
    x = table()
    found = whiten(x)
    assert found.constant == [4]
    assert found.collinear == [5, 6]
    z = found.transform.exactly(torch.tensor(x))
    assert z.shape == (800, 4)
    np.testing.assert_allclose(found.transform.inverse(z).numpy(), x, rtol=1e-9, atol=1e-9)
    assert found.transform.kept.tolist() == [True] * 4 + [False] * 3
    off = x.copy()
    off[0, 4] += 1
    off[1, 5] *= 1 + 1e-9
    off[2, 6] += 1e-6
    off[3, 4] = np.nan
    assert found.transform.breaks(torch.tensor(off)).nonzero().tolist() == [[0, 4], [1, 5], [2, 6]]
    assert not found.transform.breaks(torch.tensor(x)).any()


def test_whitening_is_a_change_of_coordinates_of_known_determinant():
    """A full-covariance Gaussian has the same likelihood in either coordinates, and hardly any correlation is left."""
    x = table()[:, :4]
    for fine in (True, False):
        found = whiten(x, fine=fine)
        z = found.transform.exactly(torch.tensor(x))
        jacobian = found.transform.to_z.double() / found.transform.scale[:, None]
        assert found.transform.log_det == pytest.approx(float(jacobian.slogdet().logabsdet))
        A, var = found.transform.loadings, torch.linspace(0.5, 2, found.transform.n_units).double()
        torch.testing.assert_close(found.transform.variances(var), (A.T @ var.diag() @ A).diagonal())
        correlation = np.corrcoef(z.T.numpy())
        assert np.abs(correlation - np.eye(4)).max() < 0.06  # shrinkage leaves a little
        covariance = np.cov(x.T, bias=True)
        y = np.linalg.solve(np.linalg.cholesky(covariance), (x - x.mean(0)).T)
        direct = -0.5 * ((y**2).sum(0).mean() + np.linalg.slogdet(2 * np.pi * covariance)[1])
        assert float(gaussian_log_prob(found, z).mean()) + found.transform.log_det == pytest.approx(direct, abs=0.01)
        variances = best_mixture(z.numpy(), ("diag",)).covariances_
        if fine:
            np.testing.assert_allclose(variances.min(0), 1, rtol=0.25)
        else:
            assert 0.5 < float(z.var(0, correction=0).min()) <= float(z.var(0, correction=0).max()) < 1.1


def test_few_rows_are_not_taken_for_collinear_ones():
    x = np.random.default_rng(0).normal(size=(12, 10))
    assert independent(x).all()
    found = whiten(x)
    assert found.transform.n_units == 10
    np.testing.assert_allclose(found.transform.inverse(found.transform.exactly(torch.tensor(x))).numpy(), x, atol=1e-9)


def test_whitening_needs_rows_and_not_their_statistics():
    with pytest.raises(ValueError, match="Whitening needs all rows"):
        standardise(torch.zeros(3, 2), "whiten")


@pytest.mark.whole
def test_simpler_models_are_scored_in_the_units_of_the_data():
    """Of a correlated Gaussian: its entropy, within the error over rows; independent features miss the correlation."""
    rng = np.random.default_rng(0)
    covariance = np.array([[4.0, 1.5], [1.5, 1.0]])
    train, test = (rng.multivariate_normal([1e3, -2], covariance, n) for n in (8000, 4000))
    train, test = (np.c_[x, x[:, 0] + x[:, 1], np.full(len(x), 3.0)] for x in (train, test))  # which change nothing
    found = {b.name: b.log_p for b in baselines(train, test)}
    frames = baselines(pandas.DataFrame(train), pandas.DataFrame(test))
    assert all(np.array_equal(b.log_p, found[b.name]) for b in frames)
    entropy = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
    missed = -0.5 * np.log(np.linalg.det(covariance) / 4.0)
    for name, expected in (("full-covariance Gaussian", -entropy), ("independent features", -entropy - missed)):
        assert abs(found[name].mean() - expected) < z_bound(2) * found[name].std() / 4000**0.5 + 0.002
    assert abs(found["mixture of Gaussians"].mean() + entropy) < 0.05
    assert -0.1 < found["kernel density"].mean() + entropy < 0.05
    better = compare(
        found["full-covariance Gaussian"], 0.0, next(b for b in baselines(train, test) if "independent" in b.name)
    )
    assert better.verdict == "better"
    assert better.difference == pytest.approx(missed, abs=0.05)
    assert compare(found["full-covariance Gaussian"], 1.0, next(iter(baselines(train, test)))).verdict == "level"


def test_tables_of_few_rows_have_no_rounds(tmp_path):
    """By default, in the estimator's recipe and in the preset; who asks for rounds has them."""
    assert [resolve({}, Facts(n, 3, True)).train.rounds for n in (255, 256)] == [0, 60]
    assert resolve({}, Facts(500, 41, True)).train.rounds == 0
    config = replace(PRESETS["array"].config, data=tmp_path / "x.npy")
    updates = {"train.n_updates": 40}
    for n, asked, expected in (
        (100, {}, (1500, 0)),
        (300, {}, (360, 60)),
        (100, {"train.rounds": 7}, (307, 7)),
        (300, updates, (40, 60)),
        (300, updates | {"train.rounds": 7}, (40, 7)),
        (300, {"sampler.name": "gibbs"}, (1500, 0)),
    ):
        np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(n, 3)))
        chosen = open_data(config, ALONE, asked).config.train
        assert (chosen.n_updates, chosen.rounds) == expected


def in_a_row(n: int, n_columns: int, nats: float) -> np.ndarray:
    """Columns that follow one another (n, N): each is worth so many nats to the next, in units of its own."""
    rng = np.random.default_rng(0)
    rho = (1 - np.exp(-2 * nats)) ** 0.5
    x = rng.normal(size=(n, n_columns))
    for k in range(1, n_columns):
        x[:, k] = rho * x[:, k - 1] + (1 - rho**2) ** 0.5 * x[:, k]
    return 10 ** np.linspace(-3, 3, n_columns) * x + 7


def in_two(x: np.ndarray, n_columns: int) -> np.ndarray:
    """The first columns have two values."""
    return np.where(np.arange(x.shape[1]) < n_columns, np.sign(x - x.mean(0)), x)


def test_what_correlation_is_worth():
    """Of a Gaussian whose columns follow one another: so many nats for each but the first."""
    assert correlation(in_a_row(20_000, 60, 0.8)) == pytest.approx(59 * 0.8, rel=0.01)
    assert correlation(in_a_row(20_000, 60, 0.0)) == pytest.approx(0, abs=0.1)


def test_coarse_columns():
    """One value in a quarter of the rows, wherever they are; of a sorted table too."""
    rng = np.random.default_rng(0)
    n = 20_000
    columns = rng.random(n), rng.integers(0, 2, n), rng.poisson(5, n), rng.poisson(0.5, n), rng.random(n).clip(0.3)
    x = np.stack(columns, 1)
    for rows in (x, x[:300], x[np.argsort(x[:, 3])]):
        assert coarse(rows).tolist() == [False, True, False, True, True]


@pytest.mark.parametrize("kind", ["dispersed", "factors", "alike"])
@pytest.mark.parametrize("shape", [(200, 60), (40, 60), (60, 8)])
def test_a_cross_validated_covariance_is_near_the_best_that_its_eigenvectors_allow(kind, shape):
    """In nats of unseen rows, exactly, beside Ledoit and Wolf's: above it, or level where that assumes what is true."""
    n, N = shape
    rng, gains = np.random.default_rng(0), []
    for _ in range(5):
        root = {"dispersed": rng.normal(size=(N, N // 2)), "factors": 0.5 * rng.normal(size=(N, 3)), "alike": 0}[kind]
        least = 0.1 if kind == "dispersed" else 1.0
        true = least * np.eye(N) + (root @ root.T if kind != "alike" else 0)
        x = rng.normal(size=(n, N)) @ np.linalg.cholesky(true).T
        x -= x.mean(0)
        found = cross_validated(x)
        vectors = np.linalg.eigh(x.T @ x)[1]
        best = vectors * np.einsum("ij,ik,kj->j", vectors, true, vectors) @ vectors.T
        gains.append([nats(found, true) - nats(other, true) for other in (ledoit_wolf(x)[0], best)])
        assert np.linalg.eigvalsh(found)[0] > 0
        np.testing.assert_allclose(vectors.T @ found @ vectors, np.diag(np.linalg.eigvalsh(found)), atol=1e-9)
    over_shrunk, best = np.mean(gains, 0)
    assert over_shrunk > {"dispersed": 0.05 * N, "factors": -0.004 * N, "alike": -0.01 * N}[kind]
    assert -0.08 * N < best < 0


def nats(covariance: np.ndarray, true: np.ndarray) -> float:
    """Of unseen rows, less those of the truth."""
    share = np.linalg.solve(covariance, true)
    return 0.5 * (np.linalg.slogdet(share)[1] + len(true) - np.trace(share))


def test_wide_tables_are_whitened_where_few_columns_are_coarse(tmp_path):
    """Up to 500 columns, without rounds beyond 40, but not where many are coarse and hang together loosely.

    Others are standardised, with chains that go on from data.
    """
    assert suits_whitening(in_two(in_a_row(200, 40, 0.0), 40))
    for worth in (0.0, 0.5, 0.8):
        assert suits_whitening(in_two(in_a_row(2000, 60, worth), 14))
    assert not suits_whitening(in_two(in_a_row(2000, 60, 0.5), 15))
    assert suits_whitening(in_two(in_a_row(2000, 60, 1.5), 15)), "correlation enough"
    assert suits_whitening(np.repeat(in_two(in_a_row(200, 40, 0.0), 40), 3, axis=1)), "copies do not count"
    few = in_two(in_a_row(600, 60, 0.5), 2)
    assert suits_whitening(np.hstack([few, np.repeat(few[:, :2], 20, axis=1)])), "nor those of coarse ones"
    assert suits_whitening(np.zeros((600, 60))), "no column at all; others refuse it"
    assert suits_whitening(in_a_row(600, 500, 0.5))
    assert not suits_whitening(in_a_row(600, 501, 0.5))
    usual = PRESETS["array"].config
    narrow, wide = ("whiten", "global-moves", 1500, 0), ("pixel", "parallel-tempering", 2000, 0)
    for n_coarse, expected in ((0, narrow), (50, wide)):
        np.save(tmp_path / "x.npy", in_two(in_a_row(600, 50, 0.5), n_coarse))
        config = open_data(replace(usual, data=tmp_path / "x.npy"), ALONE, {}).config
        train = config.train
        assert (config.dataset.standardise, config.sampler.name, train.n_updates, train.rounds) == expected
        assert config.objective.restart == 0


@pytest.mark.parametrize(("n_columns", "n_rows"), [(60, 500), (60, 1200), (12, 100), (45, 60)])
def test_the_gaussian_of_a_short_table_is_that_of_its_cross_validated_covariance(n_columns, n_rows):
    """On unseen rows it is above the shrunk one by nats: half of the directions vary little."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n_columns // 2, n_columns))
    x = rng.normal(size=(n_rows + 2000, n_columns // 2)) @ root + 0.5 * rng.normal(size=(n_rows + 2000, n_columns))
    train, test = x[:n_rows], x[n_rows:]
    found = whiten(train)
    assert found.contrasts.n == 1
    z = found.transform.exactly(torch.from_numpy(test))
    ours = float(gaussian_log_prob(found, z).mean()) + found.transform.log_det
    mean, std = train.mean(0), train.std(0)
    covariance = cross_validated((train - mean) / std) * std * std[:, None]
    assert ours == pytest.approx(multivariate_normal(mean, covariance).logpdf(test).mean(), abs=0.02)
    shrunk = next(b for b in baselines(train, test) if b.name == "full-covariance Gaussian")
    assert ours > shrunk.log_p.mean() + 0.05 * n_columns
    in_its_rows = float(gaussian_log_prob(replace(found, base=Base(z.mean(0), z.var(0))), z).mean()) - float(
        gaussian_log_prob(found, z).mean()
    )
    assert in_its_rows < 0.05 * n_columns, "hardly anything is to be gained by the true widths of its directions"


@pytest.mark.parametrize("groups", [2, 10])
def test_rows_in_turns_have_the_covariance_of_rows_in_any_order(groups):
    """Conditions one after another: a tenth of the rows must not be one of them."""
    rng = np.random.default_rng(0)
    x = np.tile(5 * rng.normal(size=(groups, 6)), (60 // groups, 1)) + rng.normal(size=(60, 6))
    x -= x.mean(0)
    found, other = (cross_validated(rows) for rows in (x, x[rng.permutation(60)]))
    assert np.abs(np.linalg.slogdet(np.linalg.solve(found, other))[1]) < 0.3


@pytest.mark.parametrize("shape", [(2, 3), (3, 1), (15, 4), (13, 30)])
def test_a_covariance_of_very_few_rows_is_positive(shape):
    x = np.random.default_rng(0).normal(size=shape)
    with config_context(transform_output="pandas"):
        assert np.linalg.eigvalsh(cross_validated(x - x.mean(0)))[0] > 0
        assert bool(whiten(x).transform.to_z.isfinite().all())


def test_copies_are_found_in_short_tables_too():
    """30 rows of 18 columns and two that are one of them: no chance, as it would be from 29 columns on."""
    x = np.random.default_rng(0).normal(size=(30, 18))
    assert independent(np.hstack([x, x[:, :1], 3 - x[:, 1:2]])).tolist() == [True] * 18 + [False] * 2


def test_clusters_that_overlap_are_as_wide_as_their_mixture_says():
    """Two deviations apart it is not sure whose a row is: rows less their expected means would vary half as much."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 2, 2000)
    x = rng.normal(size=(2000, 5)) + np.c_[2.0 * which, np.zeros((2000, 4))]
    x -= x.mean(0)
    tied = GaussianMixture(2, covariance_type="tied", means_init=[[-1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]).fit(x)
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0] * [1, 2, 3, 4, 5]
    moved = GaussianMixture(2, covariance_type="tied", means_init=tied.means_ @ turn).fit(x @ turn)
    for mixture, coordinates in ((tied, np.eye(5)), (moved, turn)):
        found = _within(x @ coordinates, mixture, coordinates)
        unit = np.sqrt(np.diag(mixture.covariances_))
        np.testing.assert_allclose(found / unit / unit[:, None], mixture.covariances_ / unit / unit[:, None], atol=0.06)


def test_means_that_are_learned_take_their_share_of_what_rows_vary():
    """Five rows for each of eight clusters: about their own means they vary by four fifths of the truth.

    The mean of twenty tables is within 0.1 of it, three standard errors.
    """
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        centres = 50 * rng.normal(size=(8, 3))
        x = np.repeat(centres, 5, 0) + rng.normal(size=(40, 3))
        tied = GaussianMixture(8, covariance_type="tied", means_init=centres).fit(x)
        found.append(np.trace(_within(x, tied, np.eye(3))) / 3)
    assert np.mean(found) == pytest.approx(1, abs=0.1)


def test_unseen_rows_of_a_cluster_are_as_wide_as_the_unit_of_a_short_table():
    """By the plain covariance within clusters two hundred rows would make them a quarter wider than they seem."""
    rng = np.random.default_rng(0)
    centres, mix = 2 * rng.normal(size=(2, 45)), rng.normal(size=(45, 45))
    which = rng.integers(0, 2, 4100)
    x = (centres[which] + rng.normal(size=(4100, 45))) @ mix
    train = x[:200]
    found = whiten(train)
    n_clusters = len(found.reference.weights)
    assert n_clusters in (2, 3)
    z = found.transform.exactly(torch.from_numpy(x[200:]))
    widths = torch.stack([z[which[200:] == k].var(0) for k in range(2)]).mean(0)
    assert float(widths.mean()) == pytest.approx(1, abs=0.1)
    torch.testing.assert_close(found.reference.factors, torch.eye(45).expand(n_clusters, -1, -1), rtol=0, atol=0.02)
    assert float(found.reference.log_prob(z.float()).mean()) > float(gaussian_log_prob(found, z).mean())
    mean, std = train.mean(0), train.std(0)
    covariance = cross_validated((train - mean) / std) * std * std[:, None]
    expected = multivariate_normal(mean, covariance).logpdf(x[200:]).mean()
    assert float(gaussian_log_prob(found, z).mean()) + found.transform.log_det == pytest.approx(expected, abs=2.0)


def test_a_wide_table_is_not_below_one_gaussian():
    """41 columns that follow one another, rows of unequal contrast, two passes: held-out rows gain by the contrast."""
    rows = in_a_row(900, 41, 1.4)
    rows = 7 + (rows - 7) * np.exp(0.4 * np.random.default_rng(1).normal(size=(900, 1)))
    train, test = rows[:500], rows[500:]
    machine = GaussianBernoulliRBM(n_iter=2, random_state=0).fit(train)
    scale = train.std(0)
    gaussian = LedoitWolf().fit(train / scale)
    theirs = multivariate_normal(gaussian.location_, gaussian.covariance_).logpdf(test / scale) - np.log(scale).sum()
    assert machine._recipe().train.rounds == 0, "41 units have none"
    apart = machine.score_samples(test) - theirs
    assert float(mean_z(apart, 0.0)) > 4


def test_hidden_units_beyond_what_rows_teach_begin_weak_in_the_preset_too(tmp_path):
    """300 rows (270 to learn from) of three columns teach 120 units at once."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 3)))
    config = replace(PRESETS["array"].config, data=tmp_path / "x.npy")
    opened = open_data(config, ALONE, {"model.n_hidden": 200})
    lengths = prepare(opened, tmp_path / "run", ALONE, "cpu", resume=False).state.model.W.norm(dim=0)
    assert float(lengths[120:].max()) < 0.02 * float(lengths[:120].min())


class Left(Exception):
    """A run was left in the middle."""


def leave(*_: object) -> None:
    raise Left


@pytest.mark.parametrize(("shape", "expected"), [((100, 3), 1500), ((300, 3), 360), ((90, 60), 1500)])
def test_a_resumed_run_goes_on_as_its_table_asked(tmp_path, shape, expected):
    """Few rows, the usual table, and a wide one: `grbm train array --resume` does not say what came of the preset."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=shape))
    config, seen = replace(PRESETS["array"].config, data=tmp_path / "x.npy"), []
    for resume in (False, True):
        with pytest.raises(Left):
            train(
                config,
                tmp_path / "run",
                asked={},
                resume=resume,
                on_start=lambda run: seen.append(run.config.train.n_updates),
                on_update=leave,
            )
    assert seen == [expected, expected]


def test_a_short_table_of_one_gaussian_has_no_clusters():
    """Two rows alone are no cluster, however narrow one about them would be: one component for each of four tables."""
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(50, 10))
        assert len(whiten(x).reference.weights) == 1


def test_clusters_hidden_among_many_directions_are_found_where_columns_show_them():
    """Four in 50 columns: once all directions are as wide as one another, k-means sees the three of them no more."""
    rng = np.random.default_rng(0)
    centres, which = rng.normal(size=(4, 50)), rng.integers(4, size=500)
    x = centres[which] + rng.normal(size=(500, 50))
    x = (x - x.mean(0)) / x.std(0)
    values, vectors = np.linalg.eigh(cross_validated(x))
    white = x @ vectors / np.sqrt(values)
    assert best_mixture(white, ("tied",), least=1 / 500).n_components == 1
    found = best_mixture(white, ("tied",), least=1 / 500, seen=x)
    assert sorted(found.weights_) == pytest.approx(sorted(np.bincount(which) / 500), abs=0.02)
    assert len(whiten(x).reference.weights) == 4
    few = np.repeat(x[:2], 30, 0)
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        start = _clustered(few, few, 4, 0, 0.1)
    assert start["weights_init"].sum() == pytest.approx(1), "clusters without a row do no harm"
    assert np.isfinite(start["means_init"]).all()


def test_steps_that_share_what_components_share_end_where_those_of_sklearn_do():
    """From the same clusters, with overlaps: the same weights, means, covariance and likelihood."""
    rng = np.random.default_rng(1)
    x = (0.8 * rng.normal(size=(4, 12)))[rng.integers(4, size=800)] + rng.normal(size=(800, 12))
    x = (x - x.mean(0)) @ rng.normal(size=(12, 12))
    ours = best_mixture(x, ("tied",), seed=3, seen=x, components=(4,))
    theirs = GaussianMixture(4, covariance_type="tied", random_state=3, max_iter=200).fit(x)
    order, same = np.argsort(ours.weights_), np.argsort(theirs.weights_)
    assert ours.bic(x) == pytest.approx(theirs.bic(x), abs=2.0)
    np.testing.assert_allclose(ours.weights_[order], theirs.weights_[same], atol=0.01)
    np.testing.assert_allclose(ours.means_[order], theirs.means_[same], atol=0.1)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, rtol=0.02, atol=0.02)


def test_a_short_table_keeps_its_clusters():
    rng = np.random.default_rng(0)
    which = rng.integers(0, 2, 60)
    x = 6 * which[:, None] * np.ones(10) + rng.normal(size=(60, 10))
    found = best_mixture((x - x.mean(0)) / x.std(0), ("full", "tied", "diag"), least=1 / 60)
    assert sorted(found.weights_) == pytest.approx(sorted([which.mean(), 1 - which.mean()]), abs=1e-6)


@pytest.mark.parametrize("shape", [(30, 40), (20, 30), (12, 12), (41, 40)])
@pytest.mark.parametrize("n_contrasts", [None, 2, 6, 50])
def test_tables_of_no_more_rows_than_columns_are_whitened(shape, n_contrasts):
    """Their plain covariance is singular, and all rows are equally far out by it; contrasts may be asked for."""
    x = np.random.default_rng(0).standard_t(2, size=shape)
    found = whiten(x, n_contrasts=n_contrasts)
    assert bool(found.transform.to_z.isfinite().all())
    assert (found.contrasts.n == 1) == (n_contrasts is None)
    assert bool(found.base.var.isfinite().all())


@pytest.mark.whole
def test_the_widest_contrast_is_beyond_the_furthest_of_many_rows():
    x = np.random.default_rng(0).standard_t(3, size=(20_001, 1)) * np.random.default_rng(1).normal(size=(20_001, 2))
    x[1] *= 50 / np.linalg.norm(x[1]) * np.linalg.norm(x, axis=1).max()  # in no selection of 4,000 evenly spaced rows
    found = whiten(x)
    assert found.contrasts.n > 1
    z = found.transform(torch.from_numpy(x[1:2])).float()
    far = float((2 * found.base.energy(z) / 2).sqrt())
    assert float(found.contrasts.log_scales[-1].exp()) == pytest.approx(2 * far, rel=0.2)


def test_the_base_of_a_short_table_varies_about_its_own_mean():
    """Shrinking keeps the sum of variances; rows at one contrast do not lie about 0, the mean of the table."""
    x = np.random.default_rng(0).standard_t(2, size=(15, 9))
    x[0] += 40
    found = whiten(x, fine=False, n_contrasts=3)
    assert found.contrasts.n > 1
    z = found.transform(torch.from_numpy(x)).float()
    contrasts = found.contrasts
    unit = contrasts.removed(z, lambda u: 0.5 * (u - contrasts.centre).square().sum(-1), generator(0, "contrasts"))
    torch.testing.assert_close(found.base.mean, unit.mean(0), rtol=0, atol=1e-3)
    assert float(found.base.var.sum()) == pytest.approx(float(unit.var(0, correction=0).sum()), rel=1e-3)
    assert float(unit.square().mean(0).sum()) > 1.02 * float(found.base.var.sum())


def test_a_long_table_needs_no_cross_validated_covariance(monkeypatch):
    """A hundred rows a column are enough where there are more than 40 columns."""
    rows, called = np.random.default_rng(0).normal(size=(4700, 45)), []
    real = whitening.cross_validated
    monkeypatch.setattr(whitening, "cross_validated", lambda x: called.append(len(x)) or real(x))
    whiten(rows)
    assert 4700 not in called
    whiten(rows[:4400])
    assert 4400 in called


def test_the_narrowest_cluster_is_one_of_rows_enough():
    clusters = SimpleNamespace(
        weights_=np.array([0.6, 0.396, 0.004]), covariances_=np.array([[4.0, 1.0], [2.0, 3.0], [0.1, 0.1]])
    )
    np.testing.assert_array_equal(whitening._narrowest(clusters, 1000), [2.0, 1.0])  # four rows tell no variance
    clusters.weights_ = np.array([0.5, 0.3, 0.2])
    np.testing.assert_array_equal(whitening._narrowest(clusters, 1000), [0.1, 0.1])
    np.testing.assert_array_equal(whitening._narrowest(clusters, 3), [4.0, 1.0])  # of few rows the largest alone
