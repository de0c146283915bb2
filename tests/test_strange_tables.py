"""Tables as strangers have them: what a machine says of them is right, or there is a word."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from grbm import GaussianBernoulliRBM, cli
from grbm.core.errors import UserError
from grbm.data.sentinels import sentinels
from grbm.data.splitting import copies, first_of_each, split
from grbm.data.standardise import standardise
from grbm.data.tables import refuse_magnitudes
from grbm.data.whitening import independent, set_apart, whiten
from grbm.evaluate.baselines import baselines
from grbm.fitting.start import held_out
from tests.helpers import TINY, refused, rest_in_whole


def learned(X: np.ndarray, **options) -> GaussianBernoulliRBM:
    return GaussianBernoulliRBM(4, n_iter=2, random_state=0, **options).fit(X)


def prices(n: int = 2000) -> np.ndarray:
    """Bid and ask, which differ by some cents while both wander by thousands."""
    rng = np.random.default_rng(0)
    bid = np.cumsum(rng.normal(0, 300, n)) + 6e4
    return rng.permutation(np.c_[bid, bid + rng.gamma(2, 0.01, n)])


@pytest.mark.parametrize(
    "line", rest_in_whole(3, (1.7e9, 300.0), (1e17, 300.0), (0.0, 1e-140), (1e10, 100.0), (0.0, 1e140), (-3e6, 1e-3))
)
@pytest.mark.parametrize("n", [15, 400])
def test_units_and_offsets_change_nothing_but_units(line, n):
    centre, width = line
    rng = np.random.default_rng(0)
    X = centre + width * rng.normal(size=(n, 2))
    U = (X - centre) / width  # exactly, but for the last digit
    ours, plain = learned(X), learned(U)
    assert ours.constant_ == ours.collinear_ == []
    digits = max(1e-5, 4 * np.spacing(centre) / width)
    np.testing.assert_allclose((ours.sample(50) - centre) / width, plain.sample(50), atol=20 * digits)
    some = X[:5] + np.array([width, 0])
    expected = plain.score_samples((some - centre) / width) - 2 * math.log(width)
    np.testing.assert_allclose(ours.score_samples(some), expected, atol=100 * digits)


def test_the_command_line_learns_columns_that_are_narrow_beside_their_size(tmp_path):
    X = 1e10 + 100 * np.random.default_rng(0).normal(size=(500, 2))
    np.save(tmp_path / "x.npy", X)
    run = str(tmp_path / "run")
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", run]) == 0
    assert cli.main(["sample", run, "--n", "500"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "run" / "samples" / "samples.npy").std(0), 100, rtol=0.5)


def test_a_narrow_direction_is_one_like_any_other():
    X = prices()
    spread = np.diff(X)[:, 0]
    fitted, plain = (GaussianBernoulliRBM(4, n_iter=8, random_state=0).fit(x) for x in (X, np.c_[X[:, 0], spread]))
    assert fitted.collinear_ == []
    drawn = np.diff(fitted.sample(4000))[:, 0]
    assert drawn.std() == pytest.approx(plain.sample(4000)[:, 1].std(), rel=0.05)
    assert drawn.std() == pytest.approx(spread.std(), rel=0.3), "after few passes"
    assert drawn.mean() == pytest.approx(spread.mean(), abs=0.1 * spread.std())
    wide = X[:1] + np.array([0, 70 * spread.std()])
    apart = np.subtract(*fitted.score_samples(np.r_[X[:1], wide]))
    assert 1000 < apart < 5000, "a deviation of 70 is worth 70²/2 nats"
    scored = baselines(X[:1000], X[1000:])
    price, gap = X[:, 0], spread
    factors = (-0.5 * np.log(2 * np.pi * x[:1000].var()) - 0.5 * (x[1000:] - x[:1000].mean()) ** 2 / x[:1000].var()
               for x in (price, gap))  # fmt: skip
    alone = sum(f.mean() for f in factors)
    assert next(b for b in scored if b.name == "full-covariance Gaussian").log_p.mean() == pytest.approx(
        alone, abs=0.05
    )


@pytest.mark.parametrize("ratio", [1e-2, 1e-5, 1e-8, 1e-11])
def test_coordinates_of_narrow_directions_are_whole(ratio):
    rng = np.random.default_rng(0)
    a, b, c, d = rng.normal(size=(4, 1000))
    x = np.c_[a, b, a - 2 * b + ratio * c, 3 * a, 1e3 * d + a]
    found = whiten(x)
    assert found.collinear == [3]
    z = found.transform.exactly(torch.tensor(x))
    np.testing.assert_allclose(found.transform.inverse(z).numpy(), x, rtol=1e-9, atol=1e-9)
    K = torch.eye(4).double()
    torch.testing.assert_close(found.transform.to_x @ found.transform.to_z, K, atol=1e-4, rtol=0)
    assert float(z.std(0).min()) > 0.3, "every direction has width"
    kept, change = set_apart(x)
    assert kept.tolist() == independent(x).tolist() == [True, True, True, False, True]
    inside = ((x - x.mean(0)) / x.std(0))[:, kept] @ change
    np.testing.assert_allclose(inside[:, 2].std(), 1 if ratio < 1e-3 else inside[:, 2].std(), rtol=1e-2)


def test_a_narrow_direction_is_as_wide_as_the_rows_say_of_the_population():
    """The residues of k columns have n - k degrees of freedom."""
    n = 12
    x = np.random.default_rng(0).normal(size=(n, 4))
    x[:, 3] = x[:, :3].sum(1) + 1e-6 * x[:, 3]
    _, change = set_apart(x)
    inside = ((x - x.mean(0)) / x.std(0)) @ change
    assert inside[:, 3].std() == pytest.approx(math.sqrt((n - 3) / n), rel=1e-4)


def test_a_relation_is_as_exact_as_what_it_is_of():
    """The difference of two columns that differ little has few digits, though it is written with many."""
    a, small = np.random.default_rng(0).normal(size=(2, 300))
    x = np.c_[1e4 * a, 1e4 * a + 1e-3 * small, 1e-3 * small]
    scale = whiten(x).transform
    assert scale.n_units == 2
    assert not scale.breaks(torch.tensor(x)).any()
    assert scale.breaks(torch.tensor(x + np.array([0, 0, 1e-5]))).any(1).all()


def test_digits_of_float32_are_digits():
    """A sum that was taken in float32 is a sum; the same residue in float64 is a direction."""
    a, b = np.random.default_rng(0).normal(size=(2, 500)).astype(np.float32)
    single = np.c_[a, b, a + b].astype(np.float64)
    assert independent(single).tolist() == [True, True, False]
    assert independent(single * (1 + 1e-9 * np.arange(500)[:, None] % 7)).all()
    whole = np.c_[np.arange(500) // 250 * 64 + 2.0**30, np.arange(500)]  # integers are exact
    assert independent(whole).all()


def test_constant_columns_are_exact_whatever_the_number_of_rows():
    rng = np.random.default_rng(0)
    for n in (2, 15, 30):
        X = np.c_[rng.normal(size=n), np.full(n, 0.1), rng.normal(size=n) * 100]
        fitted = learned(X)
        assert fitted.constant_ == [1]
        assert (fitted.sample(30)[:, 1] == 0.1).all()
        assert (fitted.impute([[np.nan, np.nan, 1.0]])[:, 1] == 0.1).all()
        assert fitted.components_.shape == (4, 3)
        with pytest.warns(UserWarning, match=r"\[1\] were constant"):
            same, off = fitted.score_samples([[0, 0.1, 0], [0, 0.1 + 1e-9, 0]])
        assert np.isfinite(same)
        assert off == -np.inf
        without = learned(X[:, [0, 2]])
        assert without.score_samples([[0, 0]]) == pytest.approx(same, abs=1e-4), "their density is none"


@pytest.mark.parametrize("standardise", ["pixel", "whiten"])
def test_a_constant_is_no_unit_of_a_run(standardise, tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", np.c_[rng.normal(size=60), np.full(60, 7.0), rng.normal(size=60)])
    run = str(tmp_path / "run")
    mode = ["--dataset.standardise", standardise]
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *mode, *TINY, "--out", run]) == 0
    assert cli.main(["sample", run, "--n", "20"]) == 0
    drawn = np.load(tmp_path / "run" / "samples" / "samples.npy")
    assert (drawn[:, 1] == 7).all()
    assert (drawn[:, [0, 2]].std(0) > 0).all()
    np.save(tmp_path / "gaps.npy", [[np.nan, np.nan, 0.5], [0.1, 7.0, np.nan]])
    assert cli.main(["impute", run, str(tmp_path / "gaps.npy"), "--steps", "8"]) == 0
    filled = np.load(tmp_path / "run" / "imputed" / "gaps.npy")
    assert (filled[:, 1] == 7).all()
    assert (filled[0, 2], filled[1, 0]) == (0.5, 0.1), "what is known stays as it is"
    np.save(tmp_path / "hole.npy", [[0.1, 7.0, 0.2], [0.1, 7.0, np.inf]])
    refused(["encode", run, tmp_path / "hole.npy"], capsys, "row 1, column 2")
    assert cli.main(["evaluate", run]) == 0
    capsys.readouterr()
    assert cli.main(["export", run, str(tmp_path / "e.pt2")]) == 0
    assert cli.main(["report", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert (
        "3 columns, whitened to 2" if standardise == "whiten" else "2 visible units (3 columns, 1 constant)"
    ) in page
    if standardise == "pixel":
        capsys.readouterr()
        assert cli.main(["export", run, str(tmp_path / "machine")]) == 0
        assert "leave them out of its input: 1." in capsys.readouterr().out


@pytest.mark.parametrize("options", [{}, {"whiten": True}, {"whiten": False}])
@pytest.mark.parametrize("n", [5, 50])
def test_a_table_that_does_not_vary_is_refused(options, n, tmp_path, capsys):
    with pytest.raises(UserError, match="constant"):
        learned(np.full((n, 3), 0.1), **options)
    np.save(tmp_path / "x.npy", np.full((n, 3), 0.1))
    refused(["train", "array", "--data", tmp_path / "x.npy", "--out", tmp_path / "run"], capsys, "constant")


@pytest.mark.parametrize(
    ("factor", "named"), [(1e155, "divide"), (1e300, "divide"), (1e-300, "multiply"), (1e-320, "multiply")]
)
def test_numbers_whose_squares_float64_does_not_have_are_refused(factor, named, tmp_path, capsys):
    X = np.random.default_rng(0).normal(size=(100, 2)) * [1, factor]
    with pytest.raises(UserError, match=f"column 1, .*{named}"):
        learned(X)
    np.save(tmp_path / "x.npy", X)
    refused(["train", "array", "--data", tmp_path / "x.npy", "--out", tmp_path / "run"], capsys, "column 1", "x.npy")


def test_what_float32_can_square_is_less():
    refuse_magnitudes(np.float32([0, -1e18]), np.float32([1e-18, 1e18]), "x", np.float32)
    for bounds in ([0, 1e-19], [-1e19, 1]):
        low, high = np.float32([[0, bounds[0]], [1, bounds[1]]])
        refuse_magnitudes(low.astype(np.float64), high.astype(np.float64), "x")
        with pytest.raises(UserError, match=r"column 1, .*float32"):
            refuse_magnitudes(low, high, "x", np.float32)


def test_copies_of_a_row_are_on_one_side():
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 200, 600)
    X = torch.from_numpy(rng.normal(size=(200, 4))[drawn])
    same = copies(X)
    assert (same[:, None] == same).numpy().tolist() == (drawn[:, None] == drawn).tolist()
    for seed in range(5):
        order = torch.from_numpy(np.random.default_rng(seed).permutation(600))
        rest, held = split(order, 60, same)
        assert sorted([*rest.tolist(), *held.tolist()]) == list(range(600))
        assert not set(drawn[rest]) & set(drawn[held])
        assert 60 <= len(held) < 75
        learned_from, scored, _ = held_out(600, 0.1, seed, same)
        assert not set(drawn[learned_from]) & set(drawn[scored])
        assert len(set(drawn[scored])) == len(scored), "one of each"
    assert sorted(drawn[first_of_each(same)]) == sorted(set(drawn))


def test_rows_that_are_alike_by_chance_are_no_copies():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(500, 3)))
    assert copies(x) is None
    assert copies(torch.from_numpy(rng.integers(0, 3, (500, 3)))) is None, "few values"
    assert copies(torch.from_numpy(rng.integers(0, 100, (500, 1)))) is None, "whole numbers"
    many = torch.from_numpy(rng.integers(0, 300, (2000, 2)))
    assert len(np.unique(many, axis=0)) < 2000
    assert copies(many) is None, "equal by chance, in columns of many values"
    x[rng.random(500) < 0.3] = 0
    assert copies(x) is None, "an atom"
    x[400:420] = x[:20]
    x[421] = -x[420] * 0
    same = copies(x)
    assert len(first_of_each(same)) == 500 - int((x[400:420] != 0).all(1).sum())
    pictures = torch.from_numpy(rng.integers(0, 2, (300, 9))).double()
    assert copies(pictures) is None
    assert copies(pictures, is_picture=True) is not None


def test_a_split_without_copies_is_what_it_was():
    order = torch.randperm(50)
    rest, held = split(order, 5, None)
    assert held.tolist() == sorted(order[:5].tolist())
    again = split(order, 5, torch.arange(50))
    assert (rest.tolist(), held.tolist()) == tuple(part.tolist() for part in again)


@pytest.mark.whole
def test_claims_of_copied_rows_hold_on_fresh_ones():
    """Of 200 rows drawn 600 times: a Gaussian has -5.71 nats, and the held-out rows seemed to have more."""
    apart = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(200, 4))
        fitted = GaussianBernoulliRBM(16, random_state=0).fit(rows[rng.integers(0, 200, 600)])
        apart.append(fitted.best_validation_score_ - fitted.score(rng.normal(size=(2000, 4))))
    assert abs(np.mean(apart)) < 3 * 1.4 / np.sqrt(3 * 19), "nats vary by 1.4 a row, and some 19 were held out"


def test_a_run_holds_copies_together(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(100, 3))[rng.integers(0, 100, 300)])
    run = tmp_path / "run"
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(run)]) == 0
    for part in ("train", "test"):
        assert cli.main(["encode", str(run), part]) == 0
    X = np.load(tmp_path / "x.npy")
    train, test = (X[np.load(run / "codes" / f"{part}.rows.npy")] for part in ("train", "test"))
    assert len(train) + len(test) == 300
    assert len(test) >= 30
    assert not set(map(tuple, train)) & set(map(tuple, test))


def table_with(value: float, share: float = 0.02) -> tuple[np.ndarray, int]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2))
    where = rng.random(500) < share
    X[where, 1] = value
    return X, int(where.sum())


@pytest.mark.parametrize("value", [-9999.0, 9.97e36, 999.0, -1e20])
def test_numbers_that_stand_for_missing_are_named(value, tmp_path, capsys):
    X, n = table_with(value)
    with pytest.warns(UserWarning, match=rf"Column 1 holds {value:.6g} in {n} of 500 rows".replace("+", r"\+")) as told:
        learned(X)
    assert told[0].filename == __file__
    if value != 999:
        return
    named = pd.DataFrame(X, columns=["ph", "depth"])
    with pytest.warns(UserWarning, match="Column 1 .'depth'."):
        learned(named)
    np.save(tmp_path / "x.npy", X)
    command = ["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(tmp_path / "run")]
    assert cli.main(command) == 0
    said = capsys.readouterr().err
    assert f"Column 1 holds {value:.6g} in" in said


def test_two_such_numbers_and_those_of_other_columns_are_found():
    X = table_with(-9999.0, 0.05)[0]
    X[::50, 0], X[1::100, 1] = 1e9, 9999.0
    found = sentinels(X)
    assert [(s.column, s.value) for s in found] == [(0, 1e9), (1, -9999.0)]
    assert found[0].n_rows == 10
    assert -5 < found[0].low < found[0].high < 5


@pytest.mark.filterwarnings("error")
def test_tails_and_levels_are_no_such_numbers():
    rng = np.random.default_rng(0)
    columns = [rng.standard_cauchy(2000), np.exp(3 * rng.normal(size=2000)), rng.poisson(0.05, 2000)]
    columns += [
        rng.integers(0, 2, 2000),
        rng.zipf(2.0, 2000).clip(max=10**6),
        np.r_[np.zeros(1000), rng.normal(size=1000)],
    ]
    columns += [np.round(rng.normal(size=2000), 1), rng.choice([0, 1000], 2000)]
    columns += [np.r_[rng.uniform(size=1990), np.full(10, 5.0)]]  # near enough
    columns += [rng.standard_cauchy(2000).clip(-100, 100)]  # cut off at what others come close to
    assert sentinels(np.stack(columns, 1).astype(float)) == []


def test_masked_numbers_are_missing():
    X = np.ma.masked_greater(np.random.default_rng(0).normal(size=(300, 2)), 2)
    X.data[X.mask] = 1e6
    gappy = np.where(X.mask, np.nan, X.data)
    np.testing.assert_array_equal(learned(X).components_, learned(gappy).components_)
    whole = learned(np.ma.array(X.data[~X.mask.any(1)]))
    for method in (whole.impute, whole.score_samples):
        np.testing.assert_array_equal(method(X), method(gappy))


def test_columns_that_are_no_numbers_are_named():
    good = np.arange(30.0)
    for column, words in (
        (np.array(["a", "b", "c"] * 10), "'kind' .*'a'"),
        (pd.date_range("2026-01-01", periods=30), "'kind' .*datetime64"),
        (pd.Categorical(["x", "y", "z"] * 10), "'kind' .*category"),
    ):
        with pytest.raises(ValueError, match=f"Column {words}"):
            learned(pd.DataFrame({"good": good, "kind": column}))
    learned(pd.DataFrame({"good": good, "text": [str(x * x) for x in range(30)]}))  # numbers that are written as text
    with pytest.raises(ValueError, match="Complex") as told:
        learned(np.ones((30, 2)) * 1j)
    assert "[" not in str(told.value), "not the numbers"


def test_whether_a_row_breaks_a_relation_hangs_on_no_other_row():
    a, b = np.random.default_rng(0).normal(size=(2, 300))
    single = np.c_[a, b, a + b].astype(np.float32)
    single[:, 2] = single[:, 0] + single[:, 1]
    scale = whiten(single.astype(np.float64)).transform
    for rows in (
        single,
        single.astype(np.float64),
        np.c_[a, b, a + b],
        np.array([[1, 2, 3]]),
        np.array([[1.0, 2.5, 3.5]]),
    ):
        assert not scale.breaks(torch.from_numpy(np.asarray(rows))).any()
    off = np.array([[1.0, 2.5, 3.5], [1.0, 2.0, 3.001], [np.nan, 1.0, 2.0], [1.0, 2.5, 4.5]])
    together = scale.breaks(torch.from_numpy(off)).any(1)
    assert together.tolist() == [bool(scale.breaks(torch.from_numpy(row[None])).any()) for row in off]
    assert together.tolist() == [False, True, False, True]
    exact = whiten(np.c_[a, b, a + b]).transform
    assert not exact.breaks(torch.from_numpy(single)).any(), "float32 has fewer digits"
    assert exact.breaks(torch.tensor([[0.1, 0.2, 0.3 + 1e-9]], dtype=torch.float64)).any()


@pytest.mark.parametrize("column", [1, 3])
def test_what_only_rows_between_those_looked_at_tell_is_not_overlooked(column, tmp_path, capsys, monkeypatch):
    """Tables on a disk are whitened by some of their rows, in which a constant or a sum may be one by chance."""
    monkeypatch.setattr("grbm.fitting.start.MANY", 200)
    a, b = np.random.default_rng(0).normal(size=(2, 3000))
    x = np.c_[a, np.full(3000, 7.0), b, a + b]
    np.save(tmp_path / "x.npy", x)
    args = ["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--dataset.standardise", "whiten"]
    args += ["--memory", "0", "--out"]
    assert cli.main([*args, str(tmp_path / "whole")]) == 0
    x[1001:1004, column] += 0.5
    np.save(tmp_path / "x.npy", x)
    refused([*args, tmp_path / "run"], capsys, "x.npy", f"column {column}")


def test_copies_beside_one_another_are_found_in_long_tables():
    x = torch.from_numpy(np.repeat(np.random.default_rng(0).normal(size=(25_000, 2)), 2, axis=0))
    assert copies(x).tolist()[:6:2] == copies(x).tolist()[1:7:2]
    assert len(first_of_each(copies(x))) == 25_000


def test_deviations_of_columns_far_from_zero_keep_their_digits():
    x = torch.tensor([[1e10, 3.0, 0.0], [1e10 + 1, 3.0, 1.0]], dtype=torch.float64)
    scale = standardise(x, "pixel")
    found = scale.columns_of(torch.tensor([[1e-7, 2.0]])) * scale.scale
    torch.testing.assert_close(found, torch.tensor([[0.5e-7, 0.0, 1.0]]).double(), rtol=1e-6, atol=0)
