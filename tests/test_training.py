"""The loop: reproducible, resumable, clipped, and loud when it diverges."""

import copy
import math
import warnings

import pytest
import torch

from grbm import (
    CD,
    GRBM,
    PCD,
    DivergenceError,
    FitOptions,
    Gibbs,
    GibbsLangevin,
    Langevin,
    ModifiedCD,
    PartialGibbs,
    TrainState,
    anchored_,
    fit,
    paper_,
    sparse_,
    train_step,
)
from grbm.evaluate import exact
from grbm.fitting.recipe import TrainConfig
from grbm.learning.sgd import PlainSGD
from tests.helpers import exact_chains, random_model

CDS = [ModifiedCD(PartialGibbs(0.5), 5), CD(Gibbs(), 2), PCD(Gibbs(), 2, n_chains=20)]


def small_data(n: int = 200) -> torch.Tensor:
    return exact_chains(random_model(3, 4, 1), n, seed=0)[0].float()


def new_state(optimizer=torch.optim.SGD, **kwargs) -> TrainState:
    model = GRBM(3, 8, seed=2)
    return TrainState(model, optimizer(model.parameters(), lr=0.02, **kwargs), seed=3)


def run(state: TrainState, n_updates: int, until: int | None = None, objective=CDS[0], **kwargs) -> TrainState:
    for _ in fit(state, small_data(), objective, FitOptions(n_updates=n_updates, batch_size=30, **kwargs)):
        if state.update == until:
            break
    return state


def test_a_state_that_has_made_its_updates_says_that_nothing_is_left():
    """Updates are counted from the beginning of the state, so that the same call twice learns nothing more."""
    state = run(new_state(), 5)
    was = state.model.W.clone()
    with pytest.warns(UserWarning, match=r"state has made 5 updates, and FitOptions\(n_updates=5\) counts these"):
        run(state, 5)
    assert torch.equal(state.model.W, was)
    assert run(state, 7).update == 7
    run(new_state(), 0)


def same(a: GRBM, b: GRBM) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("objective", CDS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_stopping_and_going_on_is_bit_identical(objective, optimizer):
    whole = run(new_state(optimizer), 40, objective=objective, average_decay=0.9)
    half = run(new_state(optimizer), 40, until=20, objective=objective, average_decay=0.9)
    model = copy.deepcopy(half.model)
    taken_up = TrainState(model, optimizer(model.parameters(), lr=1.0), 3, half.update, half.persistent, half.average)
    taken_up.optimizer.load_state_dict(copy.deepcopy(half.optimizer.state_dict()))
    torch.randn(100)  # whatever happens to the global state in between does not matter
    run(taken_up, 40, objective=objective, average_decay=0.9)
    assert taken_up.update == whole.update == 40
    assert same(whole.model, taken_up.model)
    assert same(whole.average, taken_up.average)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_the_sgd_that_is_soon_loaded_is_pytorchs_to_the_bit(how):
    theirs, ours = run(new_state(**how), 30), run(new_state(PlainSGD, **how), 30)
    assert same(theirs.model, ours.model)
    for a, b in zip(theirs.optimizer.param_groups, ours.optimizer.param_groups, strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == {k: v for k, v in b.items() if k != "params"}
    assert theirs.optimizer.state_dict().keys() == ours.optimizer.state_dict().keys()
    ours.optimizer.zero_grad()
    assert all(p.grad is None for p in ours.model.parameters())


def test_seeds_make_runs():
    assert same(run(new_state(), 10).model, run(new_state(), 10).model)
    other = new_state()
    other.seed = 4
    assert not same(run(new_state(), 10).model, run(other, 10).model)


@pytest.mark.parametrize("objective", CDS, ids=lambda o: type(o).__name__)
def test_learning_raises_the_exact_log_likelihood(objective):
    state, data = new_state(), small_data()
    before = exact.log_prob(state.model, data).mean()
    run(state, 400, objective=objective)
    gain = exact.log_prob(state.model, data).mean() - before
    assert gain > 0.3  # nats per sample; measured 0.5 to 0.9


def test_the_learning_rate_falls_by_the_cosine():
    state = new_state()
    rates = [state.optimizer.param_groups[0]["lr"] for _ in fit(state, small_data(), CDS[0], FitOptions(n_updates=10))]
    expected = [0.02 * 0.5 * (1 + math.cos(math.pi * k / 10)) for k in range(10)]
    assert rates == pytest.approx(expected)


def test_the_gradient_is_clipped_over_all_parameters_together():
    norms = {}
    for clip, centred in ((None, False), (0.05, False), (0.05, True), (0.9, False), (1.1, False)):
        state = new_state()
        before = copy.deepcopy(state.model)
        limit = clip * norms[centred] if clip in (0.9, 1.1) else clip  # shares of the norm: just clipped, just not
        metrics = train_step(state, CDS[0], small_data(), FitOptions(clip_norm=limit, centred=centred))
        norms[centred] = float(metrics.grad_norm)
        moved = sum(
            ((a - b) ** 2).sum() for a, b in zip(before.parameters(), state.model.parameters(), strict=True)
        ).sqrt()
        assert metrics.grad_norm > 0.1
        followed = norms[centred] if limit is None else min(limit, norms[centred])
        assert float(moved) == pytest.approx(0.02 * followed, rel=1e-4)


def test_variances_keep_to_their_floor():
    state = new_state()
    with torch.no_grad():
        state.model.log_var.fill_(-6)
    train_step(state, CDS[0], small_data(), FitOptions(min_var=0.05))
    assert torch.allclose(state.model.var, torch.full((3,), 0.05))


def test_the_average_follows_the_parameters():
    state = new_state()
    weights = []
    for _ in fit(state, small_data(), CDS[0], FitOptions(n_updates=30, average_decay=0.8)):
        weights.append(state.model.W.detach().clone())
    expected = weights[0]
    for k, W in enumerate(weights[1:], start=2):
        decay = min(0.8, (1 + k) / (10 + k))
        expected = decay * expected + (1 - decay) * W
    torch.testing.assert_close(state.average.W.detach(), expected)


def test_a_variance_too_small_for_the_step_stops_with_unit_update_and_remedy():
    """The published rule, one step size α₀ mean(σ²) for all, with one variance far below the mean."""
    for sampler in (Langevin(0.1, adjust_from=0), GibbsLangevin(0.1)):
        state = new_state()
        with torch.no_grad():
            state.model.log_var[1] = -6.0
        state.update = 17
        before = copy.deepcopy(state.model)
        with pytest.raises(DivergenceError, match=r"update 17.*visible unit 1 .*per_unit"):
            train_step(state, ModifiedCD(sampler, 3), small_data())
        assert same(before, state.model)
    safe = GibbsLangevin(0.1, per_unit=True)
    train_step(state, ModifiedCD(safe, 3), small_data())


def test_numbers_that_are_not_finite_stop_and_keep_the_last_good_weights():
    state = new_state()
    run(state, 100, until=5)
    verified = {name: p.clone() for name, p in state.guard.last_good.items()}
    data = small_data()
    data[:, 2] = 1e30  # squares overflow float32
    with pytest.raises(DivergenceError, match=r"update 5.*visible unit 2"):
        train_step(state, CD(Gibbs(), 1), data)
    assert all(torch.equal(verified[name], p) for name, p in state.model.state_dict().items())
    assert all(torch.isfinite(p).all() for p in state.model.parameters())


@pytest.mark.parametrize("spectral_norm", [None, 0.5])
@pytest.mark.parametrize("clip_norm", [None, 10.0])
def test_where_looking_waits_nothing_broken_is_followed_until_then(spectral_norm, clip_norm, monkeypatch):
    """As on a GPU: numbers are looked at every 25 updates, and until then a step that is not finite is none."""
    state, options = new_state(), FitOptions(clip_norm=clip_norm, spectral_norm=spectral_norm, centred=True)
    for module in ("grbm.learning.guard", "grbm.learning.descent"):
        monkeypatch.setattr(f"{module}.is_deferred", lambda x: True)
    run(state, 100, until=5)
    good, data = copy.deepcopy(state.model), small_data()
    data[:, 2] = torch.inf
    for batch in (data, small_data()):  # one that is broken, and one that comes before it is known
        train_step(state, CD(Gibbs(), 1), batch, options)
        assert same(good, state.model)
    with pytest.raises(DivergenceError, match="update 7"):
        state.settle()
    assert all(torch.isfinite(p).all() for p in state.model.parameters())


def test_a_step_into_nonsense_is_taken_back():
    """The gradient before the step is fine; the parameters after it are not, and must not be kept."""
    state = new_state(torch.optim.SGD)
    run(state, 100, until=5)
    good = copy.deepcopy(state.model)
    for group in state.optimizer.param_groups:
        group["lr"] = 1e6
    train_step(state, CDS[0], small_data(), FitOptions(clip_norm=None))
    assert not same(good, state.model)
    with pytest.raises(DivergenceError, match="visible unit"):
        train_step(state, CDS[0], small_data())
    assert same(good, state.model)


@pytest.mark.parametrize(
    ("temperature", "step_size", "stops"), [(1.0, 1.9, False), (1.0, 2.1, True), (4.0, 7.9, False)]
)
def test_the_overshoot_guard_stands_at_two_variances(temperature, step_size, stops):
    state = new_state()
    sampler = Langevin(step_size, adjust_from=0, temperature=temperature)
    if stops:
        with pytest.raises(DivergenceError, match="visible unit 0"):
            train_step(state, ModifiedCD(sampler, 2), small_data())
    else:
        train_step(state, ModifiedCD(sampler, 2), small_data())


def test_what_training_cannot_mean_is_refused_at_once():
    """Before anything is iterated over, in one sentence."""
    state, data = new_state(), small_data()
    for wrong, sentence in (
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"n_updates": -1}, "n_updates must be at least 0"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"min_var": 0.0}, "min_var must be above 0"),
        ({"prior": -0.1}, "prior must be at least 0 and finite"),
        ({"prior": math.inf}, "prior must be at least 0 and finite"),
        ({"clip_norm": -1.0}, "clip_norm must be above 0"),
        ({"spectral_norm": 0.0}, "spectral_norm must be above 0"),
        ({"average_decay": 1.0}, "average_decay must be"),
        ({"anneal_step_size": True}, "Langevin family"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fit(state, data, CDS[0], FitOptions(**wrong))
    with pytest.raises(ValueError, match="not with Adam"):
        fit(new_state(torch.optim.Adam), data, CDS[0], FitOptions(spectral_norm=1.0))
    with pytest.raises(ValueError, match="no rows"):
        fit(state, data[:0], CDS[0])
    for wrong in (100, {"n_updates": 100}):
        with pytest.raises(TypeError, match=r"such as grbm\.FitOptions"):
            fit(state, data, CDS[0], wrong)
    for wrong in (Gibbs(), CD):
        with pytest.raises(TypeError, match=r"such as grbm\.ModifiedCD"):
            fit(state, data, wrong)
    with pytest.raises(TypeError, match=r"such as grbm\.Gibbs"):
        PCD(Gibbs)
    for wrong in ({"n_steps": 0}, {"n_chains": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            PCD(Gibbs(), **wrong)


def test_data_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(n, 3\)"):
        next(fit(new_state(), torch.zeros(5, 4), CDS[0], FitOptions(n_updates=1)))
    with pytest.raises(ValueError, match=r"data\.flatten\(1\)"):
        fit(TrainState(four := GRBM(4, 2), torch.optim.SGD(four.parameters(), 0.1)), torch.zeros(5, 1, 2, 2), CDS[0])
    lbfgs = TrainState(model := GRBM(3, 2), torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="LBFGS calls a closure"):
        fit(lbfgs, torch.zeros(5, 3), CDS[0], FitOptions(1))
    with pytest.raises(ValueError, match="NaN"):
        next(fit(new_state(), torch.full((5, 3), torch.nan), CDS[0], FitOptions(n_updates=1)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_log_variances_have_their_own_rate(optimizer):
    model = GRBM(3, 8)
    built = TrainConfig(optimizer=optimizer, learning_rate=0.02, variance_rate=0.1).build(model)
    rates = {id(p): group["lr"] for group in built.param_groups for p in group["params"]}
    assert {name: rates[id(p)] for name, p in model.named_parameters()} == pytest.approx(
        {"W": 0.02, "b": 0.02, "mu": 0.02, "log_var": 0.002}
    )


def test_every_row_is_visited_once_an_epoch():
    seen = []

    class Spy(ModifiedCD):
        def negative(self, energy, v_data, persistent, rng):
            seen.append(v_data[:, 0].clone())
            return super().negative(energy, v_data, persistent, rng)

    data = torch.zeros(60, 3)
    data[:, 0] = torch.arange(60)
    list(fit(new_state(), data, Spy(Gibbs(), 1), FitOptions(n_updates=6, batch_size=20)))
    for epoch in (torch.cat(seen[:3]), torch.cat(seen[3:])):
        assert torch.equal(epoch.sort().values, data[:, 0])
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))


def test_sparse_units_start_with_their_share_of_the_mass():
    """Of the Gaussian mixture that the model is, the component of unit j alone against that of none."""
    data = 2.0 + small_data() * torch.tensor([0.5, 1.0, 3.0])
    model = sparse_(GRBM(3, 5), data, share=0.03, seed=1)
    log_weights = exact.mixture(model).log_weights
    alone = log_weights[2 ** torch.arange(5)] - log_weights[0]
    torch.testing.assert_close(alone.exp(), torch.full((5,), 0.03).double(), rtol=1e-4, atol=0)
    torch.testing.assert_close(model.mu.detach(), data.mean(0))
    torch.testing.assert_close(model.var.detach(), data.var(0, correction=0))
    assert 0.5 < float(model.W.detach().abs().max()) / (6 / 8) ** 0.5 <= 1


def test_anchored_units_are_undecided_at_data_points():
    model, data = GRBM(3, 50), small_data()
    anchored_(model, data, var=0.4, length=0.7, seed=1)
    logits = model.hidden_logits(data).detach()
    assert (logits.abs().amin(0) < 1e-5).all()
    torch.testing.assert_close(model.W.norm(dim=0).detach(), torch.full((50,), 0.7))
    torch.testing.assert_close(model.var.detach(), torch.full((3,), 0.4))
    torch.testing.assert_close(model.visible_mean(torch.full((50,), 0.5)).detach(), data.mean(0))
    assert same(paper_(model, seed=5), GRBM(3, 50, seed=5))


def test_an_optimizer_of_another_model_is_refused():
    state = new_state()
    other = TrainState(GRBM(3, 4), state.optimizer)
    with pytest.raises(ValueError, match=r"state\.optimizer"):
        fit(other, small_data(), CDS[0], FitOptions(2))
    some = TrainState(state.model, torch.optim.SGD([state.model.W], lr=0.1))  # the rest is kept as it is
    assert len(list(fit(some, small_data(), CDS[0], FitOptions(2)))) == 2


def test_learning_that_nobody_iterates_is_told():
    with pytest.warns(UserWarning, match=r"for metrics in grbm\.fit"):
        fit(new_state(), small_data(), CDS[0], FitOptions(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(fit(new_state(), small_data(), CDS[0], FitOptions(2)))
        fit(new_state(), small_data(), CDS[0], FitOptions(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_data_of_another_type_are_learned_in_the_models(dtype, given):
    model = GRBM(3, 4, dtype=dtype)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = (4 * small_data()).round().to(given)
    assert len(list(fit(state, data, CDS[0], FitOptions(2)))) == 2
    other = GRBM(3, 4, dtype=dtype)
    again = TrainState(other, torch.optim.SGD(other.parameters(), lr=0.1))
    list(fit(again, data.to(dtype), CDS[0], FitOptions(2)))
    assert torch.equal(model.W, other.W)
    assert model.W.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_machine_of_half_precision_is_not_learned(dtype):
    model = GRBM(3, 4).to(dtype)
    with pytest.raises(TypeError, match=str(dtype)):
        fit(TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1)), small_data(), CDS[0], FitOptions(2))


def test_data_that_are_no_dense_real_tensor_say_what_to_give():
    frame = pytest.importorskip("pandas").DataFrame(small_data().numpy())
    for data, words in ((small_data().to_sparse(), "to_dense"), (small_data() * 1j, "complex"), (frame, "to_numpy")):
        with pytest.raises(TypeError, match=words):
            fit(new_state(), data, CDS[0], FitOptions(2))


def test_the_length_of_training_is_the_number_of_updates_left():
    state = new_state()
    updates = fit(state, small_data(), CDS[0], FitOptions(n_updates=7, batch_size=30))
    assert len(updates) == 7
    next(updates)
    next(updates)
    assert len(updates) == 7  # as of a list that is being read
    rest = fit(state, small_data(), CDS[0], FitOptions(n_updates=7, batch_size=30))
    assert len(rest) == 5
    assert len(list(rest)) == 5
