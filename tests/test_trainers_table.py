"""The bench of trainers: what each hands on to the library or to its loop, and what the loop does with a direction."""

import copy
import math

import pytest
import torch
from torch import Tensor

from benchmarks.trainers import loops, methods, rules
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import plane
from grbm import (
    CD,
    GRBM,
    PCD,
    Base,
    FitOptions,
    Gibbs,
    GibbsLangevin,
    Langevin,
    ModifiedCD,
    ParallelTempering,
    TrajectoryTempering,
)
from grbm.core.errors import DivergenceError
from grbm.core.randomness import Blocks
from grbm.data.mixtures import MIXTURES

TASK = plane("isotropic", MIXTURES["isotropic"])._replace(batch_size=70, n_chains=30, variance_rate=0.25, min_var=0.02)
BASE = Base.fit(TASK.rows)
OPTIONS = FitOptions(40, 70, clip_norm=10.0, min_var=0.02, average_decay=0.999)
BROAD = GibbsLangevin(10.0, temperature=100.0, accept_temperature=1.0, adjust_from=0)


def noise(sampler: object) -> ModifiedCD:
    return ModifiedCD(sampler, 50, n_chains=30, probabilities=True)


def cd(n_steps: int) -> CD:
    return CD(Gibbs(), n_steps, probabilities=True)


def pcd(sampler: object = None, n_steps: int = 5, **options: float) -> PCD:
    return PCD(sampler or Gibbs(), n_steps, 30, probabilities=True, **options)


FITTED = {
    "modified CD, Gibbs": (noise(Gibbs()), {}),
    "modified CD, Langevin": (noise(Langevin(0.5, per_unit=True)), {}),
    "modified CD, Langevin adjusted": (noise(Langevin(0.5, adjust_from=0, per_unit=True)), {}),
    "modified CD, Gibbs-Langevin": (noise(GibbsLangevin(0.2, per_unit=True)), {}),
    "modified CD, Gibbs-Langevin, step 0.04": (noise(GibbsLangevin(0.04, per_unit=True)), {}),
    "modified CD, Gibbs-Langevin adjusted": (noise(GibbsLangevin(0.2, adjust_from=0, per_unit=True)), {}),
    "modified CD, temperature-100 proposals": (noise(BROAD), {}),
    "CD-1": (cd(1), {}),
    "CD-5": (cd(5), {}),
    "CD-10": (cd(10), {}),
    "PCD": (pcd(), {}),
    "PCD, centred": (pcd(), {"centred": True}),
    "PCD, centred, 30 steps, 1,000 rows": (pcd(n_steps=30), {"centred": True, "batch_size": 1000}),
    "PCD, tempered": (pcd(ParallelTempering(BASE, 8)), {}),
    "PCD, along the trajectory": (pcd(TrajectoryTempering(base=BASE)), {}),
    "PCD, spectral": (pcd(), {"spectral_norm": 0.5}),
    "PCD, centred, spectral": (pcd(), {"centred": True, "spectral_norm": 0.5}),
    "ours, plane": (pcd(BROAD, 30), {"centred": True, "batch_size": 1000}),
    "ours, plane, 5 steps, 500 rows": (pcd(BROAD), {"centred": True}),
    "ours, images": (pcd(restart=0.1), {"centred": True, "spectral_norm": 0.5, "average_decay": 0.99}),
}
CHAINS, LADDER = rules.Chains(Gibbs(), 5, 30), rules.Chains(ParallelTempering(BASE, 8), 5, 30)
FOLLOWED = {
    "CD-1, by this loop": rules.Frozen(1, 1),
    "PCD, enhanced": rules.Enhanced(CHAINS),
    "PCD, enhanced, tempered, adaptive": rules.Enhanced(LADDER),
    "CD-1, rarely active start, one variance": None,  # a function: see below
    "CD-1, sparse": rules.Sparse(rules.Frozen(1, 1), 0.03, 3.0),
    "S-DCP": rules.Frozen(5, 1),
    "score matching": rules.ScoreMatching(BASE.var),
    "denoising": rules.Denoising(BASE.var.sqrt(), 40, 0.3, 0.1),
    "naive mean field": rules.MeanField(1, False, 5, 64),
    "TAP": rules.MeanField(2, False, 5, 64),
    "naive mean field, by exp(−Γ)": rules.MeanField(1, True, 5, 64),
    "TAP, by exp(−Γ)": rules.MeanField(2, True, 5, 64),
    "weighted walkers": rules.Weighted(150, 5, 0.5),
}


def test_every_trainer_is_in_the_tables_below():
    assert set(METHODS) == set(FITTED) | set(FOLLOWED)


@pytest.mark.parametrize("name", FITTED)
def test_what_is_handed_on_to_fit(name, monkeypatch):
    """Objective, options, rates, start and seed; what comes back is the average, also where it diverges."""
    seen, average = {}, GRBM(2, 3)

    def fit(state, rows, objective, options):
        state.update, state.average = 17, average
        seen.update(state=state, rows=rows, objective=objective, options=options)
        yield None
        raise DivergenceError("no matter")

    monkeypatch.setattr(methods, "fit", fit)
    model, n_updates = METHODS[name].learn(TASK, 0.06, 40, 3)
    assert model is average
    assert n_updates == 17
    objective, changes = FITTED[name]
    assert repr(seen["objective"]) == repr(objective)
    assert seen["options"] == FitOptions(**{**OPTIONS.__dict__, **changes})
    assert seen["rows"] is TASK.rows
    state, start = seen["state"], TASK.machine(3)
    assert all(torch.equal(a, b) for a, b in zip(state.model.parameters(), start.parameters(), strict=True))
    assert state.seed == 3
    optimizer = state.optimizer
    assert type(optimizer) is torch.optim.SGD
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    expected = {id(p): 0.06 * (0.25 if key == "log_var" else 1) for key, p in state.model.named_parameters()}
    assert rates == expected
    assert not any(group["momentum"] or group["weight_decay"] for group in optimizer.param_groups)


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_handed_on_to_the_loop(name, monkeypatch):
    seen, found = {}, loops.Learned(GRBM(2, 3), 17)

    def follow(model, rule, rows, n_updates, steps, seed):
        seen.update(model=model, rule=rule, rows=rows, n_updates=n_updates, steps=steps, seed=seed)
        return found

    monkeypatch.setattr(methods, "follow", follow)
    assert METHODS[name].learn(TASK, 0.06, 40, 3) is found
    steps = seen["steps"]
    assert (steps.rate, steps.batch_size, steps.variance_rate) == (0.06, 70, 0.25)
    assert (steps.clip_norm, steps.min_var, steps.decay) == (10.0, 0.02, 0.999)
    assert (steps.adaptive is not None) == ("adaptive" in name)
    assert seen["rows"] is TASK.rows
    assert (seen["n_updates"], seen["seed"]) == (40, 3)
    start = TASK.machine(3)
    if FOLLOWED[name] is None:
        methods.rarely_active(start, TASK, 3)
        shared = seen["rule"](start, TASK.rows[:70], Blocks(0, 1))
        alone = rules.Frozen(1, 1)(start, TASK.rows[:70], Blocks(0, 1))
        torch.testing.assert_close(shared["log_var"], alone["log_var"].mean().expand(2))
        assert torch.equal(shared["W"], alone["W"])
    else:
        assert repr(seen["rule"]) == repr(FOLLOWED[name])
    assert all(torch.equal(a, b) for a, b in zip(seen["model"].parameters(), start.parameters(), strict=True))
    if steps.adaptive is not None:
        seen["rule"].chains.last = TASK.rows[:5]
        assert steps.adaptive() is seen["rule"].chains.last


def test_where_a_trainer_is_run():
    images = TASK._replace(rows=torch.zeros(5, 64))
    for task, alone, elsewhere in ((TASK, "ours, plane", "ours, images"), (images, "ours, images", "ours, plane")):
        for budget in ("seconds", "updates"):
            assert METHODS[alone].learns(task, budget)
            assert METHODS["PCD"].learns(task, budget)
            assert not METHODS[elsewhere].learns(task, budget)
        slow = METHODS["PCD, along the trajectory"]
        assert [slow.learns(task, budget) for budget in ("seconds", "updates")] == [True, False]


def straight(size: float = 1.0) -> tuple[GRBM, rules.Rule]:
    """A machine, and a rule whose direction is always the same."""
    model = GRBM(2, 3, dtype=torch.float64, seed=0)
    way = {name: size * torch.arange(1.0, p.numel() + 1).double().view(p.shape) for name, p in model.named_parameters()}
    return model, lambda model, batch, rng: dict(way)


def moved(n_updates: int, steps: loops.Steps, size: float = 1.0) -> tuple[dict[str, Tensor], dict[str, Tensor], GRBM]:
    """How far the last parameters and their average are from the first ones, and a machine whose entries are a way."""
    model, rule = straight(size)
    before = copy.deepcopy(model)
    average = loops.follow(model, rule, torch.zeros(50, 2).double(), n_updates, steps, 0).model
    way = rule(model, model.mu[None], Blocks(0, 1))
    return (
        {name: p.detach() - before.get_parameter(name).detach() for name, p in model.named_parameters()},
        {name: p.detach() - before.get_parameter(name).detach() for name, p in average.named_parameters()},
        way,
    )


def test_a_loop_of_one_direction_ends_where_the_cosine_says():
    """After 20 updates along d at rate r: r d Σ ½(1 + cos(πk/20)), log σ² by a quarter of that; averages by weights."""
    steps = loops.Steps(0.01, 10, 0.25, None, 1e-9, 0.5)
    last, mean, way = moved(20, steps)
    reached, averaged = [], 0.0
    for k in range(20):
        reached.append(sum(0.5 * (1 + math.cos(math.pi * i / 20)) for i in range(k + 1)))
        keeps = min(0.5, (k + 1) / (k + 10))
        averaged = keeps * averaged + (1 - keeps) * reached[-1]
    for name, d in way.items():
        rate = 0.01 * (0.25 if name == "log_var" else 1)
        torch.testing.assert_close(last[name], rate * reached[-1] * d)
        torch.testing.assert_close(mean[name], rate * averaged * d)


def test_a_loop_goes_no_further_than_the_clip_allows():
    """A direction whose norm over all parameters is above 10 is shortened to 10, before σ² gets its part of it."""
    last, _, way = moved(1, loops.Steps(0.01, 10, 0.25, 10.0, 1e-9), size=7.0)
    norm = torch.cat([d.flatten() for d in way.values()]).norm()
    assert norm > 20
    for name, d in way.items():
        torch.testing.assert_close(last[name], 0.01 * (0.25 if name == "log_var" else 1) * 10 / norm * d)
    short, _, way = moved(1, loops.Steps(0.01, 10, 0.25, 10.0, 1e-9), size=0.1)
    torch.testing.assert_close(short["W"], 0.01 * way["W"])


def test_a_loop_keeps_variances_above_their_floor():
    last, _, _ = moved(50, loops.Steps(0.5, 10, 1.0, None, 0.3), size=-1.0)
    torch.testing.assert_close(last["log_var"].exp(), torch.tensor([0.3, 0.3]).double())


def test_a_loop_ends_where_a_direction_is_not_finite():
    model, rule = straight()
    count = iter(range(100))

    def breaks(model, batch, rng):
        way = rule(model, batch, rng)
        return {**way, "b": way["b"] * math.nan} if next(count) == 7 else way

    found = loops.follow(model, breaks, torch.zeros(50, 2).double(), 20, loops.Steps(0.01, 10), 0)
    assert found.n_updates == 7
    assert all(bool(p.isfinite().all()) for p in found.model.parameters())
    assert loops.follow(model, rule, torch.zeros(50, 2).double(), 20, loops.Steps(0.01, 10), 0).n_updates == 20


def test_an_adaptive_rate_stays_below_ten_times_the_first_one_as_it_falls(monkeypatch):
    asked, model, rule = [], *straight()

    def best_rate(model, direction, rate, batch, particles, bounds):
        asked.append((rate, bounds))
        return bounds[1]

    monkeypatch.setattr(loops, "best_rate", best_rate)
    particles = torch.zeros(3, 2).double()
    steps = loops.Steps(0.01, 10, 1.0, None, 1e-9, adaptive=lambda: particles)
    before = model.W.detach().clone()
    loops.follow(model, rule, torch.zeros(50, 2).double(), 8, steps, 0)
    bounds = [0.1 * 0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)]
    assert [bound for _, (_, bound) in asked] == pytest.approx(bounds)
    assert [rate for rate, _ in asked] == pytest.approx([0.01, *bounds[:-1]])
    way = rule(model, particles, Blocks(0, 1))["W"]
    torch.testing.assert_close(model.W.detach() - before, sum(bounds) * way)


def test_a_rate_is_not_judged_by_fewer_than_half_of_the_particles(monkeypatch):
    """Counts of 5.1 and 4.9 of 10 particles, of which the second is no judge though it says more."""
    model, rule = straight()
    particles, counts = torch.zeros(10, 2).double(), iter([5.1, 4.9, 5.1])

    def importance(log_weight):
        count = next(counts)
        return torch.tensor(0.0 if count > 5 else -1e6), torch.tensor(count)

    monkeypatch.setattr(loops, "importance", importance)
    way = {name: torch.zeros_like(x) for name, x in rule(model, particles, Blocks(0, 1)).items()}
    assert loops.best_rate(model, way, 0.5, particles, particles) == 0.5
    counts = iter([4.9, 4.9, 4.9])
    assert loops.best_rate(model, way, 0.5, particles, particles) == pytest.approx(0.495)


def test_walkers_are_resampled_before_too_few_of_them_count():
    """W grows sixteenfold in 16 updates: at least half of the walkers count after each; never resampled, few would."""

    def counted(least: float) -> tuple[float, rules.Weighted]:
        model, rule, shares = GRBM(2, 4, dtype=torch.float64), rules.Weighted(400, least=least), []
        with torch.no_grad():
            model.W.normal_(generator=torch.Generator().manual_seed(1))
        for update in range(16):
            rule.moments(model.freeze(), Blocks(update, 1))
            shares.append(float(rules.importance(rule.log_weight)[1]) / 400)
            with torch.no_grad():
                model.W.mul_(2**0.25)
        return min(shares), rule

    share, rule = counted(0.5)
    assert 0.5 <= share < 0.95
    assert rule.gained > 0
    share, rule = counted(0.0)
    assert share < 0.3
    assert rule.gained == 0
