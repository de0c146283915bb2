"""The bench of trainers: rates, seconds, what is kept and shown, and likelihoods in doubt."""

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.trainers import __main__ as bench
from benchmarks.trainers import kept as keeping
from benchmarks.trainers import loops, measuring, methods, tasks
from benchmarks.trainers.figures import ranking
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import annealed, plane
from grbm import GRBM
from grbm.core.randomness import generator
from grbm.data.mixtures import MIXTURES
from grbm.evaluate import ais
from grbm.evaluate.features import Features


@pytest.mark.whole
def test_the_bench_keeps_what_it_measured_and_takes_the_best_rate(tmp_path, monkeypatch, capsys):
    command = ["trainers", "--only", "isotropic", "random-0", "--methods", "PCD", "score matching", "--seeds", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--shrink", "400", "--out", str(tmp_path)])
    bench.main()
    kept = keeping.Kept(tmp_path / "shrink-400.jsonl")
    for method in ("PCD", "score matching"):
        bests = set()
        assert kept.find(method=method)[0]["rate"] == keeping.FIRST
        for budget in ("seconds", "updates"):
            tuning = kept.find(method=method, budget=f"tuning {budget}")
            means = {r: 0.5 * sum(row["KL"] for row in tuning if row["rate"] == r) for r in {x["rate"] for x in tuning}}
            assert len(tuning) == 2 * len(means)
            best = min(means, key=means.get)
            bests |= {best}
            at = keeping.RATES.index(best)
            assert all(rate in means for rate in keeping.RATES[max(at - 1, 0) : at + 2])
            final = kept.find(task="isotropic", method=method, budget=budget)
            assert [(row["rate"], row["seed"]) for row in final] == [(best, 0), (best, 1)]
        for budget in ("seconds", "updates"):
            assert bests <= {row["rate"] for row in kept.find(method=method, budget=f"tuning {budget}")}
        [elsewhere] = kept.find(task="random-0", method=method)
        assert elsewhere["rate"] == kept.find(task="isotropic", method=method, budget="seconds")[0]["rate"]
    first = capsys.readouterr().out.split("\n\n", 1)[1]
    monkeypatch.setattr(bench, "measure", None)  # nothing is measured again
    monkeypatch.setattr("sys.argv", [*sys.argv, "--figures", str(tmp_path / "figures")])
    bench.main()
    assert capsys.readouterr().out.strip() == first.strip()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"trainers-isotropic.png", "trainers-random-mixtures.png"}
    assert re.search(r"PCD  .*\d   Tieleman 2008\n", first)
    assert "random mixtures" in first
    monkeypatch.setattr("sys.argv", [*sys.argv, "--scores", "mass", "KL"])
    bench.main()
    other = capsys.readouterr().out
    mass = [row["mass"] for row in kept.find(task="isotropic", method="PCD", budget="seconds")]
    assert f"{sum(mass) / 2:.4g}" in other
    titles = [f"{task} {score}" for task in ("isotropic", "random mixtures") for score in ("mass", "KL")]
    header = next(line for line in other.splitlines() if line.startswith("at equal seconds"))
    assert re.split("  +", header) == ["at equal seconds", *titles]
    monkeypatch.setattr("sys.argv", [x for x in sys.argv if x != "random-0"])
    bench.main()
    assert "random mixtures" not in capsys.readouterr().out


def test_mnist_is_judged_by_images_from_noise(pictures, monkeypatch):
    """In pixels, the machine's own; rates by fewer of them, and Inception sees those of the first seed alone."""
    for name, n in (("N_TUNED", 20), ("N_JUDGED", 50), ("N_SEEN", 10)):
        monkeypatch.setattr(tasks, name, n)
    seen = []

    def extract(images):
        seen.append(images)
        return images.flatten(1)[:, ::100]

    network = Features("stand-in", "FID-768", "", extract, "", "KID-768")
    monkeypatch.setattr(tasks, "inception_768", lambda path: network)
    real, compared = tasks.compare, []
    monkeypatch.setattr(tasks, "compare", lambda *given: compared.append(len(given[2])) or real(*given))
    task = tasks.mnist(pictures, Path("weights.npz"))
    assert task.rows.shape == (60, 784)
    assert float(task.rows.mean()) == pytest.approx(0, abs=1e-4)
    gaussian = task.machine(0)
    with torch.no_grad():
        gaussian.W.zero_()
        gaussian.mu.copy_(task.rows.mean(0))
    found = task.judge(gaussian, 0)
    other = {"FID-768", "KID-768 x1000"}
    assert found.keys() == {"Fréchet", "precision", "recall", *other}
    assert [len(images) for images in seen] == [25, 10]
    torch.testing.assert_close(seen[1].mean((0, 1)), seen[0].mean((0, 1)), atol=0.25, rtol=0)  # pixels, not deviations
    assert task.judge(gaussian, 1).keys() == task.tune(gaussian, 100).keys() == found.keys() - other
    assert compared == [50, 10, 50, 20]
    assert found["Fréchet"] > 0
    gaussian.mu.data.fill_(math.nan)
    assert task.judge(gaussian, 1) == {"Fréchet": math.inf}


@pytest.mark.parametrize(
    ("value", "best", "n_tried"),
    [
        (lambda rate: -abs(math.log(rate / 0.01)), 0.01, 3),
        (lambda rate: rate, 10.0, 7),
        (lambda rate: -rate, 0.0001, 6),
        (lambda rate: -abs(math.log(rate / 0.1)), 0.1, 4),
        (lambda rate: -math.inf if rate > 0.0005 else -1 / rate, 0.0003, 6),  # all from the first on are lost
    ],
)
def test_rates_go_on_until_the_best_is_between_two(value, best, n_tried):
    tried: dict[float, float] = {}
    while (rate := keeping.next_rate(tried, {})) is not None:
        tried[rate] = value(rate)
    assert keeping.best_rate(tried) == best
    assert len(tried) == n_tried


@pytest.mark.parametrize("budgets", [["seconds", "updates"], ["updates", "seconds"]])
def test_what_is_best_at_one_budget_is_tried_at_the_other(budgets, tmp_path, monkeypatch):
    """At equal seconds one rate is bad between two good ones, of which the search alone sees the worse."""
    values = {"updates": lambda rate: -abs(math.log(rate)), "seconds": lambda rate: -9 if rate == 0.03 else rate}

    def measure(task, name, rate, seed, budget, before):
        nats = values[budget.removeprefix("tuning ")](rate) if rate < 3 else -10
        return {"task": task.name, "method": name, "budget": budget, "rate": rate, "seed": seed, "nats": nats}

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "earlier", lambda *known: None)
    kept = keeping.Kept(tmp_path / "results.jsonl")
    task = SimpleNamespace(name="digits", rows=torch.zeros(2, 64))
    for asked in (budgets[:1], budgets[1:], budgets):  # one after the other, and what is missing then
        for row in bench.rows(task, ["PCD"], kept, 2, asked):
            kept.add(row)
    for budget in budgets:
        assert keeping.best_rate(keeping.values(kept, "digits", "PCD", budget)) == 1.0
        assert [row["seed"] for row in kept.find(budget=budget, rate=1.0)] == [0, 1]
    alone: dict[float, float] = {}
    while (rate := keeping.next_rate(alone, {})) is not None:
        alone[rate] = values["seconds"](rate)
    assert keeping.best_rate(alone) == 0.01


def test_a_rate_is_known_once_all_tuning_seeds_are(tmp_path):
    """Two in the plane, whose mean counts and which random mixtures borrow; one elsewhere, where more is better."""
    kept = keeping.Kept(tmp_path / "results.jsonl")
    about = {"method": "PCD", "budget": "tuning seconds", "rate": 0.1}
    kept.add({**about, "task": "isotropic", "seed": 100, "KL": 0.25})
    kept.add({**about, "task": "digits", "seed": 100, "nats": -7.0})
    assert keeping.values(kept, "isotropic", "PCD", "seconds") == {}
    assert keeping.values(kept, "digits", "PCD", "seconds") == {0.1: -7.0}
    kept.add({**about, "task": "isotropic", "seed": 101, "KL": 0.75})
    for task in ("isotropic", "random-3"):
        assert keeping.values(kept, task, "PCD", "seconds") == {0.1: -0.5}
    assert keeping.values(kept, "isotropic", "PCD", "updates") == {}
    kept.add({**about, "task": "digits", "seed": 100, "rate": 0.3, "nats": None})
    assert keeping.values(kept, "digits", "PCD", "seconds")[0.3] == -math.inf


def test_a_lost_machine_is_counted_by_every_score(tmp_path, capsys, monkeypatch):
    kept = keeping.Kept(tmp_path / "results.jsonl")
    about = {"task": "isotropic", "method": "PCD", "budget": "seconds", "rate": 0.1}
    for seed in keeping.TUNING:
        kept.add({**about, "budget": "tuning seconds", "seed": seed, "KL": 0.1})
        kept.add({**about, "budget": "tuning seconds", "seed": seed, "KL": 0.2, "rate": 0.03})
    kept.add({**about, "seed": 0, "KL": 1000, "mass": 1000, "rate": 0.03})  # of a rate that is not the best
    kept.add({**about, "seed": 0, "KL": 0.25, "mass": 0.5})
    kept.add({**about, "seed": 1, "KL": None})
    monkeypatch.setattr("sys.argv", ["trainers", "--table", "--out", str(tmp_path), "--budgets", "seconds"])
    for score, shown in (("KL", "0.25 (1 lost)"), ("mass", "0.5 (1 lost)")):
        monkeypatch.setattr("sys.argv", [*sys.argv, "--score", score])
        bench.main()
        assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    "cost",
    [lambda n: 0.002 * n, lambda n: 0.001 * (n + 0.005 * n**2), lambda n: 0.001 * (n + 0.05 * n**2)],
    ids=["constant", "growing", "growing fast"],
)
def test_seconds_are_kept_also_where_updates_become_slower(cost, monkeypatch):
    tried = []

    def learned(task, name, rate, n_updates, seed):
        tried.append(n_updates)
        return loops.Learned(n_updates, n_updates), cost(n_updates)

    monkeypatch.setattr(measuring, "learned", learned)
    clock = iter([0.0, 0.0])
    monkeypatch.setattr(measuring.time, "process_time", lambda: next(clock))
    found, seconds = measuring.within_seconds(plane("isotropic", MIXTURES["isotropic"]), "PCD", 0.1, 0)
    assert found.model == found.n_updates
    assert seconds == pytest.approx(cost(found.n_updates))
    assert seconds == pytest.approx(5, rel=measuring.OFF)
    assert len(tried) <= 2 + measuring.TRIES


def test_seconds_leave_out_the_making_of_the_machine_and_nothing_else(monkeypatch):
    """The task's start takes 2 seconds of each run, the trainer's own another 3, and an update 0.01."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(measuring.time, "process_time", lambda: clock.now)

    def start(model, seed):
        clock.now += 2

    def learn(task, rate, n_updates, seed):
        task.machine(seed)
        clock.now += 3 + 0.01 * n_updates
        return loops.Learned(GRBM(2, 3), n_updates)

    monkeypatch.setitem(METHODS, "PCD", methods.Method("", learn))
    task = plane("isotropic", MIXTURES["isotropic"])._replace(start=start, seconds=13.0)
    found, seconds = measuring.within_seconds(task, "PCD", 0.1, 0)
    assert seconds == pytest.approx(3 + 0.01 * found.n_updates)
    assert seconds == pytest.approx(13, rel=measuring.OFF)
    began = clock.now
    assert measuring.within_seconds(task, "PCD", 0.1, 0, before=(1000, 13.0))[0].n_updates == 1000
    assert clock.now - began == pytest.approx(2 + 15)  # at once


def test_one_that_diverges_is_not_given_more_updates(monkeypatch):
    tried = []

    def learn(task, rate, n_updates, seed):
        tried.append(n_updates)
        return loops.Learned(task.machine(seed), min(n_updates, 30))

    monkeypatch.setitem(METHODS, "PCD", methods.Method("", learn))
    task = plane("isotropic", MIXTURES["isotropic"])
    row = measuring.measure(task, "PCD", 0.1, 0, "seconds", before=(500, 5.0))
    assert tried == [500]
    assert row["updates"] == 30
    row = measuring.measure(task, "PCD", 0.1, 0, "updates")
    assert tried == [500, 2000]
    assert row["updates"] == 30


def test_updates_are_told_by_the_last_run_that_kept_to_the_seconds(tmp_path):
    kept, task = keeping.Kept(tmp_path / "results.jsonl"), plane("isotropic", MIXTURES["isotropic"])
    assert measuring.earlier(kept, task, "PCD") is None
    for updates, seconds in ((10, 4.9), (20, 5.2), (30, 9.0)):
        kept.add({"task": "isotropic", "method": "PCD", "updates": updates, "seconds": seconds})
    kept.add({"task": "isotropic", "method": "CD-1", "updates": 70, "seconds": 5.0})
    assert measuring.earlier(kept, task, "PCD") == (20, 5.2)


@pytest.mark.parametrize(
    ("doubt", "at_data", "ends", "log_z"),
    [(None, -0.1, (2.9, 3.1), 3.0), ("missed", 40.0, (2.9, 3.1), 43.0), ("apart", 0.0, (2.0, 7.0), 7.0)],
)
def test_likelihoods_count_the_largest_log_z_that_is_in_doubt(doubt, at_data, ends, log_z, monkeypatch):
    lower, upper = ends
    found = ais.LogZ(3.0, 0.01, lower, 0.01, upper, 0.01, (0.5, 0.5), 100, doubt, at_data)
    monkeypatch.setattr(ais, "log_z", lambda *args, **options: found)
    model, unseen = GRBM(3, 4, seed=0, dtype=torch.float64), torch.randn(30, 3, generator=generator(5)).double()
    scores = annealed(unseen, unseen)(model, 0)
    energy = float(model.free_energy(unseen).detach().mean())
    assert scores["nats"] == pytest.approx(-energy - log_z)
    assert scores["near"] == pytest.approx(-energy - 3.0 - at_data)
    assert scores["gap"] == pytest.approx(upper - lower)
    assert scores["converged"] == (doubt is None)


@pytest.mark.parametrize("more", [False, True])
def test_trainers_are_ranked_and_what_is_lost_stands_at_the_edge(more):
    scores = {"poor": [4.0, 6.0], "lost": [1.0, None], "good": [2.0, 2.5], "middling": [3.0, 3.5], "far": [1e9, 1e9]}
    if more:
        scores = {name: [None if x is None else -x for x in row] for name, row in scores.items()}
    found = ranking("x", "nats" if more else "KL", more, {"seconds": scores, "updates": {"good": [2.0], "new": [1.0]}})
    first, second = found.axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["good", "middling", "poor", "far", "lost", "new"]
    crosses = [line.get_ydata()[0] for line in first.lines if line.get_marker() == "x"]
    assert crosses == [3, 4]
    means = [float(line.get_xdata()[0]) for line in first.lines if line.get_marker() == "|"]
    assert means == [s * x for s, x in zip([-1 if more else 1] * 3, [2.25, 3.25, 5.0], strict=True)]
    assert [line.get_ydata()[0] for line in second.lines if line.get_marker() == "|"] == [0, 5]
