"""Whose data a run's numbers are of: its own, known by their fingerprint, or a file's, which is said."""

import json
import re

import numpy as np
import pytest

from grbm import cli, runs
from grbm.runs.folder import read_data
from tests.helpers import TINY, mnist_folder, refused, rest_in_whole


@pytest.fixture
def trained(tmp_path):
    X = np.random.default_rng(0).normal(size=(300, 3))
    np.save(tmp_path / "x.npy", X)
    args = ["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(tmp_path / "r")]
    assert cli.main(args) == 0
    return tmp_path / "r", X


def evaluated(run, capsys, *options) -> dict:
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--json", *map(str, options)]) == 0
    return json.loads(capsys.readouterr().out)


CHANGES = {
    "one row more": lambda X: np.r_[X, X[:1]],
    "other units": lambda X: X * 10,
    "another order": lambda X: X[::-1],
    "last digits": lambda X: X + np.eye(300, 3) * 1e-9,
}


@pytest.mark.parametrize("name", rest_in_whole(2, *CHANGES))
def test_other_data_are_scored_as_such_and_leave_the_runs_numbers(trained, name, capsys, tmp_path):
    run, X = trained
    change, is_near = CHANGES[name], name != "other units"
    own = evaluated(run, capsys, "--log-likelihood")
    other = change(X)
    np.save(tmp_path / "o.npy", other)
    found = evaluated(run, capsys, "--data", tmp_path / "o.npy")
    assert found["rows"] == len(other)
    assert found["rows_of"] == str(tmp_path / "o.npy")
    assert not {name for name in found if "test" in name or "train" in name}, "nothing was held out of it"
    assert json.loads((run / "evaluation.json").read_text()) == own
    n, n_test = own["rows_train"], own["rows_test"]
    mean = (n * own["log_likelihood_train"] + n_test * own["log_likelihood_test"]) / (n + n_test)
    if is_near:
        assert found["log_likelihood"] == pytest.approx(mean, abs=0.05)
    else:
        assert found["log_likelihood"] < mean - 10
    assert cli.main(["evaluate", str(run), "--data", str(tmp_path / "o.npy")]) == 0
    said = capsys.readouterr()
    assert re.search(rf"{len(other)} rows of .*o\.npy", said.out)
    assert ("units" in said.err) == (not is_near)


def test_commands_that_need_the_runs_own_data_refuse_others(trained, capsys, tmp_path):
    run, X = trained
    for command in (["evaluate", run], ["mixing", run], ["figures", run], ["encode", run, "test"]):
        np.save(tmp_path / "x.npy", X * 2)
        refused(command, capsys, tmp_path / "x.npy", run)
    assert cli.main(["doctor", str(run)]) in (0, 3)
    assert str(tmp_path / "x.npy") in capsys.readouterr().err
    assert cli.main(["report", str(run)]) == 0
    assert str(tmp_path / "x.npy") in capsys.readouterr().err
    np.save(tmp_path / "moved.npy", X)
    assert "log_likelihood_test" in evaluated(run, capsys, "--data", tmp_path / "moved.npy")
    np.save(tmp_path / "wide.npy", np.c_[X, X])
    refused(["evaluate", run, "--data", tmp_path / "wide.npy"], capsys, "wide.npy", "6 columns")


def test_rows_that_break_a_relation_have_no_density_and_are_counted(tmp_path, capsys):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200))
    np.save(tmp_path / "x.npy", np.c_[a, b, a + b])
    run = tmp_path / "r"
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(run)]) == 0
    other = np.load(tmp_path / "x.npy")
    np.save(tmp_path / "same.npy", other[:50])
    other[:7, 2] += 0.1
    np.save(tmp_path / "o.npy", other[:50])
    np.save(tmp_path / "rest.npy", other[7:50])
    found, same, rest = (evaluated(run, capsys, "--data", tmp_path / f"{x}.npy") for x in ("o", "same", "rest"))
    assert (found["rows"], found["without_density"]) == (43, 7)
    assert (same["rows"], same["without_density"]) == (50, 0)
    assert found["log_likelihood"] == pytest.approx(rest["log_likelihood"])
    assert cli.main(["evaluate", str(run), "--data", str(tmp_path / "o.npy")]) == 0
    assert "7 rows have no density" in capsys.readouterr().out
    np.save(tmp_path / "none.npy", other[:7])
    assert evaluated(run, capsys, "--data", tmp_path / "none.npy")["log_likelihood"] is None


def test_held_out_rows_that_break_a_relation_are_counted(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=(100, 2)), np.full(100, 3.0)]
    held = np.load(_tested(X, tmp_path))
    X[held[0], 2] = 4
    np.save(tmp_path / "x.npy", X)
    run = tmp_path / "again"
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(run)]) == 0
    for options in ([], ["--log-likelihood"]):
        found = evaluated(run, capsys, *options)
        assert (found["without_density_train"], found["without_density_test"]) == (0, 1)
        assert found["log_likelihood_test"] > -20
    assert cli.main(["evaluate", str(run)]) == 0
    assert "1 held-out rows have no density" in capsys.readouterr().out


def _tested(X, tmp_path):
    """The file of numbers of the rows that a run of X holds out."""
    np.save(tmp_path / "x.npy", X)
    run = str(tmp_path / "first")
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", run]) == 0
    assert cli.main(["encode", run, "test"]) == 0
    return tmp_path / "first" / "codes" / "test.rows.npy"


def test_a_run_without_its_fingerprint_is_damaged(trained, capsys):
    run, _ = trained
    from grbm.core.files import read_tensors, write_tensors

    tensors = read_tensors(run / runs.DATA)
    assert read_data(run).fingerprint.startswith("270 + 30 x 3, ")
    del tensors["fingerprint"]
    write_tensors(run / runs.DATA, tensors)
    refused(["evaluate", run], capsys, run / runs.DATA)


def test_pictures_of_the_same_name_in_another_folder_are_not_those_of_the_run(tmp_path, capsys):
    run = tmp_path / "run"
    one, other = (mnist_folder(tmp_path / name, True, n_train=n) for name, n in (("a", 20), ("b", 21)))
    assert cli.main(["train", "mnist-small", "--data-dir", str(one), *TINY, "--no-figures", "--out", str(run)]) == 0
    evaluate = ["evaluate", run, "--samples", "10", "--ais-steps", "3", "--ais-chains", "4"]
    for args in (evaluate, ["encode", run, "test"]):
        refused([*args, "--data-dir", other], capsys, other, "--data-dir")
    assert cli.main([*map(str, evaluate), "--data-dir", str(one)]) == 0
