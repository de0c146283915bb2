"""How likely rows are: p-values that are uniform where they should be, and numbers that do not fit their rows."""

import math

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from grbm import Base, GaussianBernoulliRBM, cli, runs
from grbm.data.frame import Frame
from grbm.data.transforms import Elementwise
from grbm.evaluate import exact
from grbm.evaluate.lines import along
from grbm.fitting.density import Fitted
from grbm.samplers.conditional import Filling
from tests.helpers import TINY, random_model, refused


def fitted(n_visible: int, n_hidden: int, seed: int) -> Fitted:
    model = random_model(n_visible, n_hidden, seed)
    mean, scale = torch.arange(n_visible).double(), torch.linspace(0.5, 3, n_visible).double()
    base = Base(torch.zeros(n_visible).double(), 2 * torch.ones(n_visible).double())
    return Fitted(Frame(Elementwise(mean, scale, torch.arange(n_visible)), base), model)


@pytest.mark.parametrize("seed", range(3))
def test_p_values_of_the_model_s_own_rows_are_uniform(seed):
    """Kolmogorov and Smirnov's test, of exact draws; each row far away has the least p-value that there is."""
    density = fitted(3, 4, seed)
    x = density.columns(exact.sample(density.model, 500, seed=seed)[0])
    p = density.p_values(x, n_draws=2000, seed=seed)
    assert stats.kstest(p.numpy(), "uniform").pvalue > 0.01
    assert (density.p_values(x[:5] + 1000, n_draws=100) == 1 / 101).all()


def test_p_values_of_rows_with_gaps_are_uniform():
    """Of exact draws of which each lacks some values: two patterns of gaps, and a share without."""
    density = fitted(3, 4, 1)
    x = density.columns(exact.sample(density.model, 600, seed=5)[0])
    x[:200, 0], x[200:400, 1:] = torch.nan, torch.nan
    p = density.p_values(x, n_draws=2000, seed=1)
    for part in torch.split(p, 200):
        assert stats.kstest(part.numpy(), "uniform").pvalue > 0.01
    far = torch.tensor([[1000.0, torch.nan, torch.nan], [torch.nan, torch.nan, torch.nan]], dtype=torch.float64)
    assert density.p_values(far).tolist() == [1 / 501, 1.0]


def conditional(density: Fitted, x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact mean and deviation of column k of rows x given what else they have."""
    gappy = x.clone()
    gappy[:, k] = torch.nan
    mean, var = exact.posterior(density.model, density.units(gappy))
    return density.columns(mean)[:, k], density.frame.transform.scale[k] * var[:, k].sqrt()


def test_numbers_are_judged_by_the_others_of_their_row(monkeypatch):
    """Exactly; and by chains where rows lack something."""
    density = fitted(3, 4, 1)
    x = density.columns(exact.sample(density.model, 8, seed=2)[0])
    x[6:, 0] = torch.nan
    found = density.surprises(x, Filling(n_steps=2000, burn_in=200, n_chains=16))
    for k in range(3):
        mean, std = conditional(density, x, k)
        torch.testing.assert_close(found.mean[:6, k], mean[:6], atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(found.std[:6, k], std[:6], atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(found.mean[:, k], mean, atol=0.05 * float(std.max()), rtol=0)
        torch.testing.assert_close(found.std[:, k], std, atol=0, rtol=0.05)
    torch.testing.assert_close(found.away, (x - found.mean) / found.std, equal_nan=True)
    monkeypatch.setattr("grbm.fitting.density.CHUNK", 4)  # numbers of rows with gaps at a time
    by_parts = density.surprises(x, Filling(n_steps=2000, burn_in=200, n_chains=16))
    torch.testing.assert_close(by_parts.mean, found.mean, atol=0.1 * float(std.max()), rtol=0)


@pytest.mark.parametrize("n_contrasts", [1, 3])
def test_numbers_of_whitened_rows_are_judged_exactly(n_contrasts):
    """Against the density of rows with other numbers in their place, on a fine grid."""
    x = np.random.default_rng(0).standard_t(2.5, size=(400, 2)) @ [[1.0, 0.8], [0.0, 0.6]] * [2.0, 30.0] + [1.0, -500.0]
    density = GaussianBernoulliRBM(10, n_iter=40, random_state=0, n_contrasts=n_contrasts).fit(x)._to_fill()
    assert density.model.contrasts.n == n_contrasts
    rows = torch.from_numpy(x[:4])
    found = density.surprises(rows)
    for k, width in ((0, 2.0), (1, 30.0)):
        for i in range(4):
            grid = found.mean[i, k] + width * torch.linspace(-60, 60, 24_001, dtype=torch.float64)
            others = rows[i].repeat(len(grid), 1)
            others[:, k] = grid
            p = density.log_prob(others, 0.0).softmax(0)
            mean = p @ grid
            assert float(found.mean[i, k]) == pytest.approx(float(mean), abs=1e-6 * width)
            assert float(found.std[i, k]) == pytest.approx(float((p @ (grid - mean).square()).sqrt()), rel=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_lines_reach_all_that_strong_units_move(sign):
    """Against the mixture that the 16 states of four hidden units make of a line; its ends are 80 widths apart, where
    weights of the wrong sign would leave no mass."""
    model = random_model(2, 4, 0)
    with torch.no_grad():
        model.W[0], model.W[1] = torch.tensor([3.0, -5.0, 8.0, -2.0]) * sign, torch.tensor([0.5, 0.2, -0.3, 0.1])
        model.log_var.zero_()
        model.mu.zero_()
        model.b.copy_(-(model.W[0].square() / 2))  # about as likely on as off, each alone
    z = torch.tensor([[0.3, -0.2], [4.0, 1.0], [-9.0, 0.0]], dtype=torch.float64)
    energy, a = model.freeze(), torch.tensor([1.0, 0.0], dtype=torch.float64)
    h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    mean = h @ energy.W[0] - z[:, :1]  # of t, given h: (3, 16)
    log_weights = h @ energy.hidden_logits(z).T + 0.5 * mean.T.square()
    log_weights -= energy.energy(z, torch.zeros_like(energy.b))
    found, share = along(model, z, a), log_weights.softmax(0).T
    torch.testing.assert_close(found.log_mass, log_weights.logsumexp(0) + 0.5 * math.log(2 * math.pi))
    torch.testing.assert_close(found.mean, (share * mean).sum(1))
    spread = (share * mean.square()).sum(1) - (share * mean).sum(1).square()
    torch.testing.assert_close(found.var, 1 + spread)


def test_features_that_make_a_row_odd_are_found():
    """Numbers that fit are about one deviation off; of a row with one wrong number that one is farthest off."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 3, -5], 0.1 * np.eye(3) + 0.9, size=600)
    table = pandas.DataFrame(x, columns=["a", "b", "c"])
    rbm = GaussianBernoulliRBM(8, random_state=0).set_output(transform="pandas").fit(table)
    away = rbm.surprises(table[:100], random_state=0)
    assert list(away.columns) == ["a", "b", "c"]
    assert away.index.equals(table[:100].index)
    assert 0.88 < away.to_numpy().std() < 1.12  # three errors of a deviation of 300 numbers
    wrong = table[:30].copy()
    for k in range(30):
        wrong.iloc[k, k % 3] += 6
    wrong.iloc[0, 1] = np.nan
    away, mean, std = rbm.surprises(wrong, return_expected=True, random_state=0)
    assert [np.nanargmax(row) for row in away.to_numpy()] == [k % 3 for k in range(30)]
    assert away.isna().sum().sum() == 1
    assert np.isnan(away.iloc[0, 1])
    np.testing.assert_allclose(away, (wrong - mean) / std)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_follow_from_others_are_off_where_they_differ(dtype):
    """By more than their digits."""
    x = np.random.default_rng(0).gamma(3.0, size=(400, 2)) + 1
    x = np.c_[x, x @ [2, 1]].astype(dtype)
    rbm = GaussianBernoulliRBM(4, random_state=0, n_iter=5).fit(x)
    assert rbm.collinear_ == [2]
    rows = x[:4].copy()
    rows[2, 2] += 1
    away = rbm.surprises(rows)
    assert away.dtype == dtype
    assert np.abs(away[[0, 1, 3]]).max() < 1
    assert np.abs(away[2]).min() > 1000


def test_numbers_beyond_bounds_are_as_far_off_as_can_be_and_tell_nothing_of_others():
    x = np.random.default_rng(0).gamma(3.0, size=(400, 2))
    x[:, 1] += x[:, 0]
    rbm = GaussianBernoulliRBM(4, random_state=0, n_iter=5, bounds={0: (0, None)}).fit(x)
    rows = np.array([[-2.0, 5.0], [np.nan, 5.0], [3.0, 5.0]])
    away = rbm.surprises(rows, random_state=0)
    assert away[0, 0] == -np.inf
    assert abs(away[0, 1] - away[1, 1]) < 0.3
    assert np.isnan(away[1, 0])
    assert np.isfinite(away[2]).all()
    np.testing.assert_array_equal(rbm.surprises(rows, random_state=0), away)
    assert not np.array_equal(rbm.surprises(rows, random_state=1), away, equal_nan=True)


def test_the_line_between_rows_and_anomalies():
    """One of 100 rows of the model is an anomaly by default, else the share that is asked for; log Z cancels."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 3], [[1, 0.9], [0.9, 1]], size=6000)
    rbm = GaussianBernoulliRBM(8, random_state=0).fit(x[:1000])
    share = (rbm.predict(x[1000:]) == -1).mean()
    assert (
        abs(share - 0.01) < 4 * math.sqrt(0.01 * (1 / 5000 + 1 / 2000)) + 0.005
    )  # the quantile of 2,000 draws; misfit
    np.testing.assert_allclose(rbm.decision_function(x[:50]), rbm.score_samples(x[:50]) - rbm.offset_, atol=1e-9)
    assert ((rbm.decision_function(x) < 0) == (rbm.predict(x) == -1)).all()
    gappy = x[1000:3000].copy()
    gappy[:, 1] = np.nan
    assert abs((rbm.predict(gappy) == -1).mean() - 0.01) < 4 * math.sqrt(0.01 * (1 / 2000 + 1 / 500))
    assert (rbm.predict([[9.0, np.nan], [np.nan, 3.0], [np.nan, np.nan]]) == [-1, 1, 1]).all()
    told = GaussianBernoulliRBM(8, random_state=0, contamination=0.2, n_iter=5)
    assert (told.fit_predict(x[:1000]) == -1).sum() == 200
    told.partial_fit(x[1000:1100])
    assert (told.predict(x[1000:1100]) == -1).sum() == 20


def test_the_line_of_limits_and_of_rows_without_values():
    """Densities by enumeration are normalised by their own log Z; and a row's score is its own."""
    x = np.maximum(np.random.default_rng(1).normal(0.5, size=(400, 2)), 0)
    x = x[x.max(1) > 0]
    rbm = GaussianBernoulliRBM(6, whiten=False, censor=(0, None), n_iter=30, random_state=0).fit(x)
    found = rbm.decision_function(x)
    np.testing.assert_allclose(found, rbm.score_samples(x) - rbm.offset_, atol=1e-6)
    inside = (x > 0).all(1)
    np.testing.assert_allclose(rbm.decision_function(x[inside]), found[inside], atol=1e-9)
    assert 0 < (rbm.predict(x) == -1).mean() < 0.2
    plain = GaussianBernoulliRBM(6, whiten=False, n_iter=30, random_state=0).fit(x)
    gappy = np.array([[np.nan, np.nan], [np.nan, 0.5], [30.0, np.nan]])
    assert plain.predict(gappy).tolist() == [1, 1, -1]
    assert plain.p_values(gappy)[0] == 1


def test_scores_without_density_do_not_move_the_line():
    """A column that is constant but in one held-out row gives that row −inf."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    x[:, 2] = 0
    rbm = GaussianBernoulliRBM(4, n_iter=5, random_state=0, contamination=0.002).fit(x)
    rbm._draw_line(torch.tensor(np.r_[x, [[0.0, 0.0, 1.0]]]))
    assert np.isfinite(rbm.decision_function(x)).all()


def test_a_model_that_does_not_describe_its_rows_says_so():
    x = np.random.default_rng(0).normal(size=(300, 3)) * [1, 1, 50]
    rbm = GaussianBernoulliRBM(8, random_state=0, whiten=False, n_iter=1, n_replicas=1).fit(x)
    with pytest.warns(ConvergenceWarning, match="does not describe"):
        assert (rbm.predict(x) == -1).mean() > 0.5


def test_the_estimator_tells_anomalies():
    """Of 300 rows with a wrong sign in one of two correlated columns, nearly all have small p-values."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], size=600)
    rbm = GaussianBernoulliRBM(8, random_state=0, n_iter=20).fit(x[:300])
    usual = rbm.p_values(x[300:], n_draws=1000)
    assert stats.kstest(usual, "uniform").pvalue > 0.001
    odd = x[300:][np.abs(x[300:]).min(1) > 0.7] * [1, -1]
    assert len(odd) > 50
    assert (rbm.p_values(odd, n_draws=1000) < 0.01).mean() > 0.9
    np.testing.assert_array_equal(rbm.p_values(x[300:], n_draws=1000), usual)


def test_a_file_is_scored_row_by_row(tmp_path, capsys):
    """The row that was spoilt comes first, by its name and number; rows with gaps are scored by what they have."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([10, 20, 30], [[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]], size=80)
    x[7, 1] -= 3
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    frame.loc[50, "c"] = math.nan
    frame.loc[60, :] = math.nan
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.drop(index=[7, 60]).to_csv(tmp_path / "good.csv", index=False)
    run = tmp_path / "run"
    assert cli.main(["train", str(tmp_path / "good.csv"), "--updates", "100", "--no-figures", "--out", str(run)]) == 0
    capsys.readouterr()
    assert cli.main(["score", str(run), str(tmp_path / "x.csv"), "--n", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("2 of 80 rows have gaps")
    assert said[1].startswith("Rows without values, which have no scores: 1")
    assert "rows have a p-value of 0.002 or less, where 0.16 are expected" in said[2]  # compared with 500 draws
    assert said[5].split()[0] == "7"
    assert "b 1" in said[5] or "a " in said[5]
    scores = pandas.read_csv(run / "scores" / "x.csv")
    assert list(scores.columns) == ["log_density", "p_value"]
    assert scores.index[scores["p_value"].isna()].tolist() == [60]
    assert scores["p_value"].idxmin() == 7
    read = runs.read(run)
    log_p = read.fitted.log_prob(torch.from_numpy(x[:5]), read.fitted.log_partition().value)
    np.testing.assert_allclose(scores["log_density"][:5], log_p, atol=0.2)  # log Z is estimated
    refused(["score", run, tmp_path / "x.csv"], capsys, "--overwrite")
    (tmp_path / "typo.csv").write_text('a,b,c\n1,2,3\n1,"x,1",3\n')
    for verb, *options in (("score",), ("impute",), ("encode",), ("evaluate", "--data")):
        where = "line 3, column 'b': 'x,1'"
        said = refused([verb, run, *options, tmp_path / "typo.csv"], capsys, where, "leave it empty")
        assert "train" not in said  # as advice to leave the column out would: the run needs it
    refused(["score", run, tmp_path / "x.csv", "--out", tmp_path / "x.abc"], capsys, ".csv")
    assert cli.main(["train", str(tmp_path / "good.csv"), *TINY, "--out", str(run), "--overwrite"]) == 0  # its files go
    assert not (run / "scores").exists()


def test_rows_that_rest_on_few_chains_are_told(tmp_path, monkeypatch, capsys):
    """Above twelve hidden units a censored row is annealed; here none has enough chains."""
    v = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{'<0' if a < 0 else format(a, '.4f')},{b:.4f}" for a, b in v]
    (tmp_path / "x.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    run = str(tmp_path / "run")
    assert cli.main(["train", str(tmp_path / "x.csv"), *TINY, "--n-hidden", "13", "--out", run]) == 0
    monkeypatch.setattr("grbm.report.odd.FEWEST", 15.9999)  # of 16 chains, all of which rows inside the limits have
    capsys.readouterr()
    assert cli.main(["score", run, str(tmp_path / "x.csv"), "--n", "0"]) == 0
    n = int((v[:, 0] < 0).sum())
    said = capsys.readouterr().out
    assert f"{n} rows have uncertain estimates" in said
    assert "rows have a p-value of 0.005 or less, where 0.3 are expected" in said  # compared with 200 draws


def test_rows_have_names_beside_their_scores(tmp_path, capsys, monkeypatch):
    """By the column that the run was told of, or another one; a file without it says so."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(60, 2)).round(4), columns=["a", "b"])
    frame.insert(0, "name", [f"row, no. {k}" for k in range(60)])
    frame["id"] = 1000 + np.arange(60)
    frame.loc[9, "a"] = -40.0
    frame.to_csv("x.csv", index=False)
    frame.to_parquet("x.parquet")
    frame[["a", "b"]].to_csv("plain.csv", index=False)
    assert cli.main(["train", "x.csv", "--index", "id", "--drop", "name", *TINY, "--out", "run"]) == 0
    assert runs.read(tmp_path / "run").columns == ("a", "b")
    capsys.readouterr()
    for file, options, title in (("x.csv", [], "id"), ("x.parquet", ["--index", "name"], "name")):
        assert cli.main(["score", "run", file, "--n", "1", *options, "--out", f"{title}{file[1:]}"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert ["row", title] == said[-3].split()[:2]
        assert str(frame[title][9]) in said[-2]
        assert " a -40, where" in said[-2]
    assert pandas.read_csv("id.csv")["id"].tolist() == frame["id"].tolist()
    written = pandas.read_parquet("name.parquet")
    assert list(written.columns) == ["name", "log_density", "p_value"]
    assert written["name"].tolist() == frame["name"].tolist()
    assert cli.main(["score", "run", "plain.csv", "--n", "1"]) == 0
    assert "no column 'id'" in capsys.readouterr().err
    assert list(pandas.read_csv("run/scores/plain.csv").columns) == ["log_density", "p_value"]
    refused(["score", "run", "plain.csv", "--index", "nothing", "--overwrite"], capsys, "plain.csv", "'nothing'")
    refused(["train", "digits", "--dataset.index", "id"], capsys, "--dataset.index goes with tables")
