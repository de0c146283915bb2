"""Weights of rows: 2 is a row twice and 0 none, in learning, validation and scores."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from grbm import GRBM, GaussianBernoulliRBM, TrainState, cli, runs
from grbm.core.errors import UserError
from grbm.core.randomness import generator
from grbm.data.frame import Frame
from grbm.data.standardise import base_of, standardise
from grbm.data.tables import measure
from grbm.data.weighting import COPIES, checked, effective, mean_and_error, repeated, rounded, some_of
from grbm.data.whitening import whiten
from grbm.evaluate import exact
from grbm.evaluate.baselines import Baseline, compare
from grbm.evaluate.watching import HeldOut, Watch, gaussian_log_prob, is_gaussian_enough
from grbm.fitting.density import Fitted
from grbm.fitting.recipe import Facts, resolve
from grbm.fitting.start import frame_of, held_out, watch_of
from grbm.runs.presets import PRESETS
from grbm.runs.training import train
from grbm.samplers.conditional import Filling
from grbm.samplers.moments import Moments, gradient
from tests.helpers import TINY, assert_standard, exact_gradient, mean_z, random_model, refused

RNG = np.random.default_rng(0)
ROWS = np.concatenate([RNG.normal(size=(150, 3)), 0.5 * RNG.normal(size=(150, 3)) + 3])
WHOLE = RNG.integers(0, 4, size=300)
REAL = np.where(ROWS[:, 0] > 1.5, 5.3, 0.4) * RNG.uniform(0.5, 1.5, size=300)


def weights(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# From weights to rows.


def test_whole_weights_repeat_rows_exactly():
    found = repeated(weights(2, 0, 1, 3), seed=0)
    assert found.rows.tolist() == [0, 0, 2, 3, 3, 3]
    assert found.n_pass == 6


@pytest.mark.parametrize(
    ("given", "counts"),
    [((0.5, 1.0, 0.0, 1.5), [1, 2, 0, 3]), ((0.2, 0.3), [2, 3]), ((4e6, 6e6, 2e6), [2, 3, 1])],
)
def test_multiples_of_a_unit_repeat_rows_exactly_too(given, counts):
    found = repeated(weights(*given), seed=0)
    assert found.rows.bincount(minlength=len(given)).tolist() == counts
    assert found.n_pass == sum(weight > 0 for weight in given)


def test_other_weights_are_rounded_to_the_next_whole_numbers_of_ten_copies():
    w = torch.from_numpy(REAL)
    share = COPIES * len(w) * w / w.sum()
    counts = torch.stack([repeated(w, seed).rows.bincount(minlength=len(w)) for seed in range(400)]).double()
    assert bool(((counts >= share.floor()) & (counts <= share.ceil())).all())
    assert bool((counts.sum(1) - COPIES * len(w)).abs().max() <= 1)
    chance = share - share.floor()
    up = (counts > share.floor()).double().mean(0)
    error = (chance * (1 - chance) / 400).sqrt()
    assert_standard(((up - chance) / error)[error > 0], n_cases=int((error > 0).sum()))


def test_rounding_adds_little_to_the_error_of_a_mean():
    w, x = torch.from_numpy(REAL), torch.from_numpy(ROWS[:, 0])
    mean, error = mean_and_error(x, w)
    found = torch.stack([x[repeated(w, seed).rows].mean() for seed in range(200)])
    assert float((found - mean).square().mean().sqrt()) < 0.1 * error  # 1 % of its variance


def test_rows_of_little_weight_are_there_by_chance():
    n = [len(rounded(torch.full((10,), 0.25, dtype=torch.float64), seed)) for seed in range(400)]
    assert set(n) == {2, 3}
    assert abs(np.mean(n) - 2.5) < 4 * 0.5 / 20


@pytest.mark.parametrize(("given", "word"), [
    ((1, -1), "row 1, counting from 0, is -1"), ((np.nan, 1), "row 0, .* is missing"),
    ((np.inf, 1), "row 0, .* is inf"), ((0, 0), "all be 0"), ((1, 1, 1), "2 numbers"),
])  # fmt: skip
def test_what_is_no_weight_is_refused(given, word):
    with pytest.raises(UserError, match=word):
        checked(np.array(given, dtype=float), 2, "sample_weight")


@pytest.mark.parametrize("factor", [1e307, 1e-300, 1e-310])
def test_the_size_of_weights_does_not_matter(factor):
    w = torch.from_numpy(REAL)
    assert effective(factor * w) == pytest.approx(effective(w), rel=1e-6)
    x = torch.from_numpy(ROWS[:, 0])
    np.testing.assert_allclose(mean_and_error(x, factor * w), mean_and_error(x, w), rtol=1e-6)
    assert len(some_of(x, 1000, factor * w)) == len(some_of(x, 1000, w))
    counts = [repeated(k * w, 0).rows.bincount(minlength=300) for k in (1, factor)]
    assert int((counts[0] - counts[1]).abs().sum()) <= 2  # the last digits may round one row the other way


def test_a_row_of_nearly_all_the_weight_is_named():
    w = torch.ones(120, dtype=torch.float64)
    w[7] = 1e6 + 0.5
    with pytest.raises(UserError, match="Row 7, counting from 0, has nearly all"):
        repeated(w, 0)


def test_rows_are_worth_what_equal_ones_would_be():
    assert effective(weights(3, 3, 3, 0)) == pytest.approx(3)
    assert effective(weights(1, 2)) == pytest.approx(9 / 5)


def test_some_rows_stand_for_all():
    rows = torch.arange(300.0)[:, None]
    some = some_of(rows, 1000, torch.from_numpy(REAL))
    assert len(some) == round(effective(torch.from_numpy(REAL)))
    mean, error = mean_and_error(rows[:, 0].double(), torch.from_numpy(REAL))
    assert abs(float(some.mean()) - mean) < 0.5 * error
    assert torch.equal(some_of(rows, 3), rows[[0, 149, 299]])


def test_rows_that_are_there_once_stand_for_all_too():
    rows, w = torch.arange(300.0)[:, None], torch.from_numpy(REAL)
    once = some_of(rows, 1000, w, copies=False)[:, 0]
    assert len(once) == len(once.unique()) == int((w / w.max()).sum())
    mean, error = mean_and_error(rows[:, 0].double(), w)
    assert abs(float(once.mean()) - mean) < error < abs(149.5 - mean)


def test_the_error_of_a_weighted_mean_is_how_much_it_varies():
    rng = generator(0, "many means")
    w = torch.from_numpy(REAL)
    found = [mean_and_error(torch.randn(300, generator=rng, dtype=torch.float64), w) for _ in range(2000)]
    means, errors = torch.tensor(found).T
    assert float(means.std()) == pytest.approx(float(errors.mean()), rel=0.06)  # 2,000 means: 1.6 % of an error
    x = torch.randn(50, generator=rng)
    plain = mean_and_error(x)
    assert plain == (float(x.mean()), float(x.std()) / 50**0.5)
    np.testing.assert_allclose(mean_and_error(x, torch.full((50,), 0.3, dtype=torch.float64)), plain, rtol=1e-6)
    np.testing.assert_allclose(mean_and_error(x, 1 + 1e-9 * torch.rand(50, generator=rng)), plain, rtol=1e-5)


# The gradient.


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_is_that_of_the_weighted_log_likelihood(seed):
    """By autograd through the sum over all hidden states; M = 6."""
    model, rng = random_model(3, 6, seed), generator(seed, "rows")
    v = torch.randn(7, 3, generator=rng, dtype=torch.float64)
    w = torch.randint(0, 4, (7,), generator=rng).double()
    w[0] = 2
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 6)
    var = model.log_var.exp()
    mean = model.mu + states @ model.W.T
    log_mass = states @ model.b + 0.5 * ((mean**2 - model.mu**2) / var).sum(1)
    log_z = (log_mass + 0.5 * (2 * torch.pi * var).log().sum()).logsumexp(0)
    log_p = -model.free_energy(v) - log_z
    ((w * log_p).sum() / w.sum()).backward()
    found = exact_gradient(model, v[repeated(w, seed).rows])
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_rows_with_gaps_is_on_average_that_of_what_they_have(seed):
    """Refills are draws of the missing values given the known ones, so the positive phase is right on average."""
    model, rng = random_model(3, 4, seed, strength=0.7), generator(seed, "rows")
    x = torch.randn(400, 3, generator=rng, dtype=torch.float64)
    transform = standardise(measure(x), "none")
    fitted = Fitted(Frame(transform, base_of(transform, measure(x))), model)
    row = torch.randn(3, generator=rng, dtype=torch.float64)
    row[seed] = torch.nan
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    var = model.log_var.exp()
    mean = model.mu + states @ model.W.T
    log_mass = states @ model.b + 0.5 * ((mean**2 - model.mu**2) / var).sum(1)
    known = ~row.isnan()
    fit = -0.5 * ((row - mean)[:, known].square() / var[known] + (2 * torch.pi * var[known]).log()).sum(1)
    ((log_mass + fit).logsumexp(0) - log_mass.logsumexp(0)).backward()  # log p of the known values, by enumeration
    v = fitted.sample_given(row[None], Filling(n_steps=60, burn_in=59, n_chains=20_000, seed=seed))[0]
    energy = model.freeze()
    h = energy.hidden_logits(v).sigmoid()
    negative = exact.moments(model)
    parts = [gradient(energy, Moments.of(v[k : k + 1], h[k : k + 1]), negative) for k in range(0, len(v), 20)]
    for name, parameter in model.named_parameters():
        each = torch.stack([part[name] for part in parts]).flatten(1)
        z = mean_z(each, parameter.grad.flatten())
        assert_standard(z[z.isfinite()], n_cases=100)


# The estimator.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "how", [{}, {"whiten": False, "n_iter": 2}, {"coarse": "auto", "n_iter": 3}, {"n_rounds": 2, "n_iter": 2}]
)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_row_of_weight_two_is_learned_as_two_rows(how, gaps, monkeypatch):
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"whiten": 40, "by column": 20})
    x = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS) if gaps else ROWS
    x = np.c_[x, np.round(ROWS[:, 0])]
    one = GaussianBernoulliRBM(random_state=0, n_components=8, **how).fit(x, sample_weight=WHOLE)
    other = GaussianBernoulliRBM(random_state=0, n_components=8, **how).fit(np.repeat(x, WHOLE, axis=0))
    for name in ("components_", "intercept_hidden_", "intercept_visible_", "variances_", "v_samples_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.validation_scores_ == other.validation_scores_
    assert one.n_iter_ == other.n_iter_


@pytest.mark.filterwarnings("ignore")
def test_held_out_rows_are_scored_by_their_weights(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "grbm.fitting.estimator.watch_of", lambda *args: seen.append(args[2].weights) or watch_of(*args)
    )
    GaussianBernoulliRBM(4, n_iter=1, random_state=0).fit(ROWS, sample_weight=WHOLE)
    assert set(seen[0].tolist()) == {1.0, 2.0, 3.0}


def test_partial_fit_counts_rows_by_their_weights_too():
    one, other = (GaussianBernoulliRBM(8, random_state=0) for _ in range(2))
    for part in (slice(0, 100), slice(100, 300)):
        one.partial_fit(ROWS[part], sample_weight=WHOLE[part])
        other.partial_fit(np.repeat(ROWS[part], WHOLE[part], axis=0))
    np.testing.assert_array_equal(one.components_, other.components_)
    before = one.components_.copy()
    assert one.partial_fit(ROWS[:1], sample_weight=[1e-9]) is one
    np.testing.assert_array_equal(one.components_, before)
    with pytest.raises(ValueError, match=r"adds up to 2e\+08 rows"):
        one.partial_fit(ROWS[:2], sample_weight=[1e8, 1e8])
    with pytest.raises(ValueError, match="adds up to less than one"):
        GaussianBernoulliRBM(8, random_state=0).partial_fit(ROWS[:1], sample_weight=[1e-9])


def test_a_row_without_weight_is_as_if_it_were_not_there():
    """Even one that would be refused, or without any value."""
    wild = np.r_[ROWS, [[1e200, 0, 0], [np.nan] * 3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = GaussianBernoulliRBM(8, n_iter=2, random_state=0).fit(wild, sample_weight=[1.0] * 300 + [0.0, 0.0])
    other = GaussianBernoulliRBM(8, n_iter=2, random_state=0).fit(ROWS)
    np.testing.assert_array_equal(one.components_, other.components_)


@pytest.mark.filterwarnings("ignore")
def test_samples_have_the_weighted_means():
    rbm = GaussianBernoulliRBM(16, n_iter=20, random_state=0, validation_fraction=0).fit(ROWS, sample_weight=REAL)
    z = mean_z(torch.from_numpy(rbm.sample(4000)), np.average(ROWS, axis=0, weights=REAL))
    assert float(z.abs().max()) < 8  # the plain means are 50 errors away
    plain = mean_z(torch.from_numpy(rbm.sample(4000)), ROWS.mean(0))
    assert float(plain.abs().min()) > 25


def test_a_score_is_weighted():
    rbm = GaussianBernoulliRBM(6, n_iter=2, random_state=0).fit(ROWS)
    log_p = rbm.score_samples(ROWS)
    assert rbm.score(ROWS, sample_weight=REAL) == pytest.approx(np.average(log_p, weights=REAL), rel=1e-9)
    assert rbm.score(ROWS) == log_p.mean()
    with pytest.raises(ValueError, match="non-zero"):
        rbm.score(ROWS, sample_weight=np.zeros(300))


def test_a_pass_over_weights_that_are_no_numbers_of_rows_is_as_many_rows_as_there_are():
    for w in (REAL, 1000 * REAL, None):
        rbm = GaussianBernoulliRBM(4, n_iter=3, batch_size=40, random_state=0).fit(ROWS, sample_weight=w)
        assert (rbm.n_iter_, rbm.n_updates_) == (3, 18)


# Copies where their number must not pass for knowledge.


def test_held_out_rows_count_by_their_copies():
    same = torch.arange(60).repeat_interleave(torch.arange(60) % 3 + 1)
    learned_from, scored, counts = held_out(len(same), 0.2, 0, same)
    assert len(set(same[scored].tolist())) == len(scored)
    assert not set(same[scored].tolist()) & set(same[learned_from].tolist())
    assert counts.tolist() == [int(same[k]) % 3 + 1 for k in scored]
    assert held_out(200, 0.2, 0).counts is None
    assert len(held_out(300, 0.2, 0, torch.arange(30).repeat_interleave(10)).scored) == 0  # of 30 rows


def test_copies_do_not_ask_for_more_clusters():
    x = np.random.default_rng(3).standard_t(8, size=(150, 2))
    often, same = np.repeat(x, 10, axis=0), np.repeat(np.arange(150), 10)
    assert len(whiten(often, n_contrasts=1, same=same).reference.weights) == 1
    assert len(whiten(often, n_contrasts=1).reference.weights) > 1  # ten times as many rows would have


@pytest.mark.parametrize("seed", range(3))
def test_uneven_weights_do_not_ask_for_clusters(seed):
    """A full-covariance Gaussian; weights of some rows are as large as those of a hundred others together."""
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(1000, 3)), np.exp(1.5 * rng.normal(size=1000))
    rows = repeated(torch.from_numpy(w), seed).rows.numpy()
    found = whiten(x[rows], n_contrasts=1, same=rows, seed=seed)
    assert len(found.reference.weights) <= 2
    assert len(whiten(x[rows], n_contrasts=1, seed=seed).reference.weights) > 5


def test_few_rows_are_as_few_when_they_are_repeated():
    """Their covariance is shrunk as theirs is, and not as that of ten times as many."""
    x = np.random.default_rng(4).normal(size=(25, 6))
    once, often, as_many = (
        whiten(rows, n_contrasts=1, same=same).transform.to_z
        for rows, same in (
            (x, None),
            (np.repeat(x, 10, axis=0), np.repeat(np.arange(25), 10)),
            (np.repeat(x, 10, axis=0), None),
        )
    )
    precision = once @ once.T  # coordinates may be turned
    torch.testing.assert_close(often @ often.T, precision)
    assert float((as_many @ as_many.T - precision).abs().max()) > 0.1


def test_whitening_counts_copies_once():
    x = torch.from_numpy(np.random.default_rng(3).standard_t(8, size=(150, 2)))
    recipe = resolve({"standardise": "whiten", "model.contrasts": 1}, Facts(150, 2, suits_whitening=True))
    same = torch.arange(150).repeat_interleave(10)
    often = x.repeat_interleave(10, 0)
    n_clusters = [len(frame_of(recipe, often, measure(often), same=s).reference.weights) for s in (same, None)]
    assert n_clusters[0] == 1 < n_clusters[1]


def test_validation_is_weighted():
    """And so is the choice between the model and a full-covariance Gaussian, which may turn on it."""
    rows = torch.from_numpy(ROWS)
    frame = whiten(ROWS, n_contrasts=1)
    z = frame.transform(rows).float()
    model = GRBM(3, 4, seed=0)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    w = torch.from_numpy(REAL)
    found = Watch(frame.jumps(), HeldOut(z, weights=w), seed=0).look(state)
    log_p = -model.free_energy(z).detach().double() - found.log_z.log_z
    assert found.mean == pytest.approx(float((w * log_p).sum() / w.sum()))
    apart = log_p - gaussian_log_prob(frame, z)
    better, worse = apart.argmax(), apart.argmin()
    assert apart[worse] < 0
    shift = 1 - float(apart[better])
    best = found._replace(log_z=found.log_z._replace(log_z=found.log_z.log_z - shift))
    pair = z[torch.stack([better, worse])]
    unseen = [HeldOut(pair, weights=weights(*ws)) for ws in ((1e6, 1), (1, 1e6))]
    verdicts = [is_gaussian_enough(frame, model, best, rows, z[:0]) for rows in unseen]
    assert verdicts == [False, True]


def test_weights_count_in_comparisons():
    ours, theirs = np.array([1.0, 2.0, 5.0]), np.array([1.5, 1.0, 1.0])
    found = compare(ours, 0.0, Baseline("full-covariance Gaussian", theirs), weights(1, 1, 2))
    assert found.difference == pytest.approx((-0.5 + 1 + 8) / 4)
    assert found.mean == pytest.approx(4.5 / 4)


# The command line.


@pytest.fixture
def survey(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pandas.DataFrame(ROWS, columns=["a", "b", "c"])
    frame.insert(1, "w", REAL)
    frame.loc[7, "w"] = 0
    frame.to_csv("survey.csv", index=False)
    return frame


@pytest.mark.filterwarnings("ignore")
def test_the_command_line_learns_what_the_estimator_learns(tmp_path, monkeypatch, survey):
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"whiten": 60, "by column": 20})
    monkeypatch.setattr("grbm.fitting.recipe.ROUNDS", 2)
    config = PRESETS["array"].config
    dataset, said = replace(config.dataset, held_out=0.0, weights="w"), []
    train(replace(config, data=tmp_path / "survey.csv", seed=3, dataset=dataset), tmp_path / "run", asked={},
          warn=said.append)  # fmt: skip
    run = runs.read(tmp_path / "run")
    x, w = survey[["a", "b", "c"]].to_numpy(), survey["w"].to_numpy()
    rbm = GaussianBernoulliRBM(random_state=3).fit(x, sample_weight=w)
    learned, own = run.model.state_dict(), rbm.to_model().state_dict()
    assert all(torch.equal(learned[k], own[k]) for k in own)
    assert run.columns == ("a", "b", "c")
    n = effective(torch.from_numpy(w[w > 0]))
    assert any("299 rows to train on are weighted by column w" in text and f"worth {n:.0f}" in text for text in said)


def test_rows_held_out_are_not_counted_among_those_to_train_on(survey, capsys):
    assert cli.main(["train", "survey.csv", "--weights", "w", *TINY, "--dataset.held-out", "0.2", "--out", "run"]) == 0
    n = int((runs.read(Path("run")).load_data().weights_of("train") > 0).sum())
    said = capsys.readouterr()
    assert 200 < n < 299
    assert f"{n} rows to train on are weighted" in said.out + said.err


def test_a_weight_that_is_no_number_is_not_to_be_left_out(survey, capsys):
    lines = Path("survey.csv").read_text().splitlines()
    lines[4] = "1,many,2,3"
    Path("survey.csv").write_text("\n".join(lines) + "\n")
    said = refused(["train", "survey.csv", "--weights", "w"], capsys)
    assert "line 5, column 'w': 'many' is not a number, and each row needs one in this column: correct it." in said
    assert "--drop" not in said


def test_scores_of_a_run_are_weighted(tmp_path, survey, capsys):
    assert cli.main(["train", "survey.csv", "--weights", "w", *TINY, "--out", "run"]) == 0
    run = runs.read(tmp_path / "run")
    dataset = run.load_data()
    assert len(dataset.train) + len(dataset.test) == 299
    assert cli.main(["evaluate", "run", "--json"]) == 0
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    for part in ("train", "test"):
        w = dataset.weights_of(part)
        log_p = run.fitted.log_prob(getattr(dataset, part), found["log_z"])
        assert found[f"log_likelihood_{part}"] == pytest.approx(float((w * log_p).sum() / w.sum()), rel=1e-5)
    assert found["weights"] == "w"
    for row in found["baselines"]:  # what they lack is of the same rows, by the same weights
        assert row["mean"] + row["difference"] == pytest.approx(found["log_likelihood_test"], rel=1e-5)
    some, w = dataset.some("train", 10_000), dataset.weights_of("train")
    whole, error = mean_and_error(dataset.train[:, 0].double(), w)
    assert abs(float(some[:, 0].mean()) - whole) < 0.5 * error < abs(float(dataset.train[:, 0].mean()) - whole)
    capsys.readouterr()
    survey.iloc[:50].to_csv("other.csv", index=False)
    assert cli.main(["evaluate", "run", "--data", "other.csv"]) == 0
    assert "weighted by column w" in capsys.readouterr().out
    survey.iloc[:50].drop(columns="w").to_csv("plain.csv", index=False)
    assert cli.main(["evaluate", "run", "--data", "plain.csv"]) == 0
    said = capsys.readouterr()
    assert "no column 'w' of weights" in said.err
    assert "weighted" not in said.out
    survey.iloc[:50].assign(spoilt=["x", *range(49)]).to_csv("more.csv", index=False)  # a column that the run never had
    assert cli.main(["evaluate", "run", "--data", "more.csv"]) == 0
    assert "weighted by column w" in capsys.readouterr().out
    assert cli.main(["encode", "run", "train", "--out", "codes.npy"]) == 0
    assert len(np.load("codes.npy")) == len(dataset.train)  # each row once


def test_scores_that_rest_on_one_row_say_so(tmp_path, survey, capsys):
    survey.assign(w=np.where(np.arange(300) % 20 == 3, 1e9, survey["w"] + 1)).to_csv("survey.csv", index=False)
    assert cli.main(["train", "survey.csv", "--weights", "w", *TINY, "--out", "run"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", "run"]) == 0
    said = capsys.readouterr().out
    assert "is below 10, so their error is not to be trusted" in said
    assert "Simpler models" not in said


def test_a_run_with_weights_goes_on_where_it_stopped(tmp_path, survey):
    def learn(name: str, **how: object) -> None:
        config = PRESETS["array"].config
        config = replace(config, data=tmp_path / "survey.csv", dataset=replace(config.dataset, weights="w"))
        asked = {"train.n_updates": 30, "model.n_hidden": 6, "checkpoint.updates": 5, "train.rounds": 0}
        train(config, tmp_path / name, asked=asked, warn=lambda text: None, **how)

    def leave(update, record):
        if update == 12:
            raise KeyboardInterrupt

    learn("whole")
    with pytest.raises(KeyboardInterrupt):
        learn("left", on_update=leave)
    learn("left", resume=True)
    whole, left = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "left"))
    assert whole == left
    with pytest.raises(KeyboardInterrupt):
        learn("other", on_update=leave)
    survey.assign(w=survey["w"] * np.linspace(1, 2, 300)).to_csv("survey.csv", index=False)
    with pytest.raises(UserError, match="data"):  # other weights are other data
        learn("other", resume=True)


@pytest.mark.parametrize(("options", "words"), [
    (["--weights", "nothing"], ["'nothing'", "for weights", "a, w, b, c"]),
    (["--weights", "text"], ["'text'", "such as 'x'"]),
    (["--weights", "b"], ["'b'", "row", "-"]),
    (["--weights", "w", "--drop", "w"], ["'w'", "left out"]),
    (["--weights", "w", "--columns", "w"], ["no column but that of weights"]),
    (["--weights", "one"], ["'one'", "one row alone"]),
])  # fmt: skip
def test_a_column_that_holds_no_weights_is_refused(survey, capsys, options, words):
    survey.assign(text="x", one=[1, *[0] * 299]).to_csv("survey.csv", index=False)
    refused(["train", "survey.csv", *options, "--out", "run"], capsys, "survey.csv", *words)


def test_weights_are_of_tables(capsys):
    refused(["train", "digits", "--dataset.weights", "w"], capsys, "--dataset.weights goes with tables")


def test_weights_of_columns_without_names_and_of_chosen_ones(tmp_path, survey, capsys):
    np.save("x.npy", survey.to_numpy())
    assert cli.main(["train", "x.npy", "--weights", "1", *TINY, "--out", "one"]) == 0
    assert cli.main(["train", "survey.csv", "--weights", "w", "--columns", "a", "c", *TINY, "--out", "two"]) == 0
    assert runs.read(tmp_path / "one").transform.n_columns == 3
    np.save("other.npy", survey.to_numpy()[:40])
    assert cli.main(["evaluate", "one", "--data", "other.npy"]) == 0
    assert runs.read(tmp_path / "two").columns == ("a", "c")
