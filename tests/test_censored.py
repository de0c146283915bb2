"""Censored units against exact answers: truncated draws, likelihoods, chains, gradients, runs."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

import grbm
from grbm import GRBM, Base, Conditional, FitOptions, GaussianBernoulliRBM, Gibbs, TrainState, sample
from grbm.cli.main import main
from grbm.core.errors import UserError
from grbm.core.randomness import Blocks, Philox, generator, uniform
from grbm.data.frame import Frame
from grbm.data.limits import limits_of
from grbm.data.tables import measure
from grbm.data.transforms import Elementwise
from grbm.evaluate import censored, exact
from grbm.fitting.density import Fitted
from grbm.learning.training import latent_rows
from grbm.model.censoring import UNCENSORED, Censoring, Interval
from grbm.model.initialise import gaussian_
from grbm.report.scores import score_rows
from grbm.report.words import of_rows
from grbm.samplers.chains import Walk
from grbm.samplers.conditional import Filling
from grbm.samplers.moments import Moments, gradient
from grbm.samplers.sampling import run_chains, step_by_step
from grbm.samplers.truncated import LogMass, log_mass, log_ndtri, truncated_normal
from tests.helpers import DEVICE, assert_standard, random_model, z_scores

INF = math.inf


def censored_model(n_visible: int, n_hidden: int, seed: int) -> GRBM:
    """A random model whose units have a lower limit, a higher one, both, or none, in turn."""
    model = random_model(n_visible, n_hidden, seed)
    v, _ = exact.sample(model, 2000, seed=seed)
    low, high = v.quantile(0.3, dim=0), v.quantile(0.8, dim=0)
    kinds = torch.arange(n_visible) % 4
    low, high = low.masked_fill((kinds == 1) | (kinds == 3), -INF), high.masked_fill((kinds == 0) | (kinds == 3), INF)
    model.censoring = Censoring(low, high)
    return model


# Truncated normals.


@pytest.mark.parametrize(
    ("low", "high"),
    [(-INF, -0.4), (-2.0, 1.5), (0.3, INF), (5.0, INF), (-INF, -40.0), (-60.0, -50.0), (1.0, 1.001), (-INF, INF)],
)
def test_truncated_draws_follow_the_distribution_function(low, high):
    """At given uniform numbers Φ of a draw has gone that share of the way between the ends of the interval."""
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    mean, std = torch.full_like(u, 0.2), torch.full_like(u, 0.7)
    v = truncated_normal(mean, std, Interval(torch.full_like(u, low), torch.full_like(u, high)), u)
    assert (v > low).all()
    assert (v < high).all()
    a, b = (low - 0.2) / 0.7, (high - 0.2) / 0.7
    z = ((v - 0.2) / 0.7).numpy()
    if a + b > 0:  # in the lighter tail, where no digits are lost
        reached = np.exp(stats.norm.logsf(z) - stats.norm.logsf(a)) - np.exp(stats.norm.logsf(b) - stats.norm.logsf(a))
        share = 1 - reached / -np.expm1(stats.norm.logsf(b) - stats.norm.logsf(a))
        np.testing.assert_allclose(1 - share, u, atol=1e-6)  # from the far end
    else:
        log_b = stats.norm.logcdf(b)
        share = -np.expm1(stats.norm.logcdf(z) - log_b) / -np.expm1(stats.norm.logcdf(a) - log_b)
        np.testing.assert_allclose(1 - share, u, atol=1e-6)


def test_tails_are_inverted_and_weighed_to_float64():
    log_p = -torch.logspace(-2, 7, 200, dtype=torch.float64)
    torch.testing.assert_close(torch.special.log_ndtr(log_ndtri(log_p)), log_p, rtol=1e-11, atol=1e-13)
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for low, high in ((-INF, -300.0), (300.0, INF), (-1.0, 2.0), (20.0, 20.1), (-0.001, 0.001)):
        found = float(log_mass(zero, one, Interval(zero + low, zero + high)))
        flip = low + high > 0
        a, b = (-high, -low) if flip else (low, high)
        log_b = stats.norm.logcdf(b)
        assert found == pytest.approx(log_b + np.log(-np.expm1(stats.norm.logcdf(a) - log_b)), rel=1e-9)
    assert float(log_mass(zero + 1, one * 2, Interval(zero, zero))) == pytest.approx(stats.norm.logpdf(0, 1, 2))


def test_fast_draws_are_those_of_the_definition(fast_engine):
    device = DEVICE if fast_engine.name == "fused" else "cpu"
    for n_visible, n_hidden, n_chains, depth in ((3, 5, 70, None), (100, 33, 65, 1.5), (784, 40, 20, None)):
        model = GRBM(n_visible, n_hidden, seed=1)
        rng = generator(n_visible, "limits")
        with torch.no_grad():
            model.log_var.uniform_(-2, 0.5, generator=rng)
        x = torch.randn(n_chains, n_visible, generator=rng).clamp(-0.4, 0.9)
        x[:, 0] *= 40  # far beyond
        within = Censoring(torch.full((n_visible,), -0.4), torch.full((n_visible,), 0.9)).interval(x)
        within = within if depth is None else within.within(depth)
        x, within, energy = x.to(device), Interval(*(end.to(device) for end in within)), model.to(device).freeze()
        sampler, start = Conditional.of(within), x.clamp(-0.4, 0.9)
        found = run_chains(energy, sampler, start, 1, Philox(5)).chains.v
        expected = step_by_step(energy, sampler, Walk(start, 1), Philox(5)).chains.v
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)
        assert (found >= within.low).all()
        assert (found <= within.high).all()
        assert torch.equal(found[~within.is_open], x[~within.is_open])


# Likelihoods.


def _quadrature(model: GRBM, within: Interval) -> float:
    """log ∫ p(v) dv over the open intervals of one row (N,), by Gauss-Legendre rules on pieces of each."""
    latent = GRBM(model.n_visible, model.n_hidden, dtype=torch.float64)
    latent.load_state_dict(model.state_dict(), strict=False)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    points, log_weights = [], []
    for low, high in zip(*(end.tolist() for end in within), strict=True):
        if low == high:
            points.append(torch.tensor([low], dtype=torch.float64))
            log_weights.append(torch.zeros(1, dtype=torch.float64))
            continue
        edges = np.linspace(max(low, -15.0), min(high, 15.0), 13)
        half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
        points.append(torch.from_numpy((middle + half * nodes).ravel()))
        log_weights.append(torch.from_numpy((half * weights).ravel()).log())
    v = torch.cartesian_prod(*points).view(-1, model.n_visible)
    log_weight = torch.cartesian_prod(*log_weights).view(-1, model.n_visible).sum(1)
    return float((exact.log_prob(latent, v) + log_weight).logsumexp(0))


@pytest.mark.parametrize("seed", range(20))
def test_likelihood_equals_quadrature(seed):
    """Rows with values inside and at limits, of one- and two-sided units."""
    model = censored_model(4, 1 + seed % 10, seed)
    x, _ = exact.sample(model, 60, seed=seed)
    within = model.censoring.interval(x)
    n_open = within.is_open.sum(1)
    few = ((n_open > 0) & (n_open <= 2)).nonzero()[:3, 0]
    assert len(few) == 3
    for row in few.tolist():
        found = float(exact.log_prob(model, x[row : row + 1]))
        assert found == pytest.approx(_quadrature(model, Interval(within.low[row], within.high[row])), abs=1e-6)


def test_probabilities_of_grey_levels_sum_to_one():
    model = random_model(2, 5, 3)
    model.censoring = Censoring(torch.zeros(2).double(), torch.ones(2).double())
    levels = torch.arange(5, dtype=torch.float64) / 4
    grid = torch.cartesian_prod(levels, levels)
    log_p = exact.log_prob_within(model, model.censoring.interval(grid, width=0.25))
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    mass = exact.log_prob(model, torch.tensor([[0.0, 1.0]], dtype=torch.float64))  # a corner, of both units
    v, _ = exact.sample(model, 200_000, seed=1)
    share = float(((v[:, 0] == 0) & (v[:, 1] == 1)).double().mean())
    assert abs(share - float(mass.exp())) < 4 * math.sqrt(share / 200_000)


def test_sums_of_log_masses_are_those_of_each_interval():
    """Of two ends, one and none, up to where probabilities leave float64; and of known values."""
    rng = torch.Generator().manual_seed(0)
    low, width, mean = (4 * torch.randn(3, 200, 12, generator=rng, dtype=torch.float64)).unbind()
    high, std = low + width.abs() + 1e-3, torch.rand(12, generator=rng, dtype=torch.float64) + 0.1
    low[:, 3:6], high[:, 6:9] = -INF, INF
    low[:, 9], high[:, 9] = -INF, INF
    for spread in (0.1, 1.0, 10.0, 1000.0):
        within = Interval(low, high)
        truth = log_mass(spread * mean, std, within).sum(1)
        torch.testing.assert_close(LogMass(std, within)(spread * mean), truth, rtol=1e-11, atol=1e-10)
    assert not torch.equal(truth, LogMass(std, within)(spread * mean + 1e-3))
    high[5, 2] = low[5, 2]
    torch.testing.assert_close(LogMass(std, within)(mean), log_mass(mean, std, within).sum(1))


def test_annealed_likelihood_is_that_of_enumeration():
    model = censored_model(6, 7, 5)
    x, _ = exact.sample(model, 80, seed=2)
    base = Base(torch.zeros(6).double(), 2 * torch.ones(6).double())
    within, log_z = model.censoring.interval(x), exact.log_z(model)
    rows = censored.IntervalRows(model, within, base, n_steps=200, n_chains=64, n_enumerated=0)
    found = rows.log_prob(log_z)
    is_sure = found.error < 1e-6  # where all values are inside, chains are where v is, and have one weight
    torch.testing.assert_close(found.log_p[is_sure], exact.log_prob(model, x)[is_sure], atol=1e-6, rtol=0)
    z = ((found.log_p - exact.log_prob(model, x)) / found.error)[~is_sure]
    assert len(z) > 50
    assert z.abs().max() < 4.5
    assert 0.7 < float(z.std()) < 1.3
    assert abs(float(z.mean())) < 4 / math.sqrt(len(z))


@pytest.mark.parametrize("along", [censored._along_paths, censored._over_hidden])
@pytest.mark.parametrize("p", [0.5, 0.9])
def test_annealed_likelihood_is_unbiased_wherever_paths_begin(p, along):
    """Begun at the wrong hidden units, only weights and moves of one and the same path have the right mean."""
    model = censored_model(3, 4, 5)
    x, _ = exact.sample(model, 200, seed=2)
    within, n = model.censoring.interval(x), 20_000
    some = Interval(*(end[within.is_open.sum(1) >= 2][:12] for end in within))
    begun = torch.full((len(some.low), 4), p, dtype=torch.float64)
    start, log_weight, _ = along(model.freeze(), some, begun, 4, n, Blocks(1, 1))
    log_p = start - exact.log_z(model) - exact.log_prob_within(model, some)
    ratio = (log_p[:, None] + log_weight).exp()
    z = (ratio.mean(1) - 1) / (ratio.std(1) / math.sqrt(n))
    assert len(z) == 12
    assert float(ratio.std(1).max()) > 0.3, "else the moves hardly matter"
    assert z.abs().max() < 4


def test_few_chains_are_enough_where_a_row_has_many_intervals():
    """Sixty-four rounded values, half of them at a limit: weights of paths that begin near the row hardly vary."""
    model = random_model(64, 14, 3)
    model.censoring = Censoring(torch.zeros(64).double(), torch.full((64,), INF).double())
    x, _ = exact.sample(model, 12, seed=2)
    within = model.censoring.interval((x / 0.1).round() * 0.1, width=0.1)
    base = Base(torch.zeros(64).double(), 2 * torch.ones(64).double())
    found = censored.IntervalRows(model, within, base, n_steps=25).log_prob(exact.log_z(model))
    assert (found.n_effective > 12).all()
    assert (found.log_p - exact.log_prob_within(model, within)).abs().max() < 0.1


def test_a_wide_row_is_not_held_by_the_mode_that_its_pilots_found():
    """Given v, hidden units far apart keep chains where they begin: all agree on a density 100 nats too low."""
    model, low = random_model(100, 13, 7, strength=2.0), torch.full((100,), 4.0).double()
    model.censoring = Censoring(low, torch.full((100,), INF).double())
    x, _ = exact.sample(model, 12, seed=3)
    within, truth = model.censoring.interval(x), exact.log_prob(model, x)
    base = Base(torch.zeros(100).double(), 4 * torch.ones(100).double())
    found = censored.IntervalRows(model, within, base, n_enumerated=0).log_prob(exact.log_z(model))
    assert (found.n_effective > censored.FEWEST).all()
    assert ((found.log_p - truth).abs() < 5 * found.error + 0.1).all()
    held, weights, _ = censored._along_paths(model.freeze(), within, model(x).detach().flip(0), 100, 16, Blocks(1, 1))
    lost = held + weights.logsumexp(1) - math.log(16) - exact.log_z(model) - truth
    assert lost.min() < -20


def test_chains_that_all_agree_are_known_to_the_probability_of_where_none_began():
    model = GRBM(20, 13, dtype=torch.float64)
    with torch.no_grad():
        model.W.zero_()
        model.b.fill_(30.0)
    low = torch.zeros(3, 20).double()
    within, base = Interval(low - INF, low), Base(torch.zeros(20).double(), torch.ones(20).double())
    found = censored.IntervalRows(model, within, base, n_enumerated=0).log_prob(exact.log_z(model))
    truth = exact.log_prob_within(model, within)
    assert ((found.log_p - truth).abs() <= 1.001 * found.error).all()
    assert (found.error < 0.002).all()


def test_pilots_have_weights_of_the_rows_mass():
    """E w = Z_x / Z_0 at any number of temperatures, of a base cut to the same intervals."""
    model, n = censored_model(3, 4, 5), 40_000
    x, _ = exact.sample(model, 200, seed=2)
    within = model.censoring.interval(x)
    row = int(within.is_open.sum(1).argmax())
    each = Interval(*(end[row].expand(n, -1) for end in within))
    base = Base(torch.zeros(3).double(), 2 * torch.ones(3).double())
    rng, std = Blocks(1, 1), base.var.sqrt()
    v = truncated_normal(base.mean.expand_as(each.low), std, each, uniform(each.low.shape, each.low, rng))
    log_weight, _ = censored._pilots(model.freeze(), base, torch.linspace(0, 1, 4).square(), v, each, rng)
    one = Interval(*(end[row : row + 1] for end in within))
    start = float(log_mass(base.mean[None], std, one).sum()) + float(base.log_z(4))
    truth = float(exact.log_prob_within(model, one)) + exact.log_z(model)
    ratio = (log_weight + start - truth).exp()
    assert float(ratio.std()) > 0.3, "else the moves hardly matter"
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / math.sqrt(n)


# Chains and gradients.


@pytest.mark.parametrize("n_steps", [1, 5])
@pytest.mark.parametrize(("N", "M", "seed"), [(2, 4, 1), (3, 6, 2)])
def test_latent_values_do_not_drift(N, M, seed, n_steps):
    """(v, h) drawn exactly, measured, and drawn anew beyond the limits: every moment of (v, h) stays the model's."""
    model = censored_model(N, M, seed)
    latent = GRBM(N, M, dtype=torch.float64)
    latent.load_state_dict(model.state_dict(), strict=False)
    v, _ = exact.sample(latent, 40_000, seed=seed)
    x = model.censoring.recorded(v)
    given = Conditional.of(model.censoring.interval(x))
    chains = sample(latent, given, v0=v, n_steps=n_steps, seed=seed)
    assert torch.equal(model.censoring.recorded(chains.v), x)
    assert not torch.equal(chains.v, v)
    assert_standard(z_scores(chains.v, chains.h, exact.moments(latent)), n=4 * 40)


def test_positive_phase_has_the_gradient_of_the_likelihood():
    """Fisher's identity: moments at latent values of measurements, less the model's, are the gradient of log p(x)."""
    model = censored_model(3, 3, 4)
    x = exact.sample(model, 5, seed=3)[0]
    within = model.censoring.interval(x)

    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for k in range(parameter.numel()):
            ends = []
            for step in (1e-5, -1e-5):
                moved = copy.deepcopy(model)
                with torch.no_grad():
                    moved.get_parameter(name).view(-1)[k] += step
                ends.append(float(exact.log_prob_within(moved, within).mean()))
            expected[name].data.view(-1)[k] = (ends[0] - ends[1]) / 2e-5
    n, n_groups, energy = 20_000, 20, model.freeze()
    rows = x.repeat(n, 1)
    v = latent_rows(model, energy, rows, FitOptions(latent_rounds=30), generator(0, "latent"))
    h = model(v).detach()
    groups = [
        gradient(energy, Moments(a.mean(0), a.square().mean(0), b.mean(0), a.T @ b / len(a)), exact.moments(model))
        for a, b in zip(v.chunk(n_groups), h.chunk(n_groups), strict=True)
    ]
    for name, truth in expected.items():
        found = torch.stack([group[name] for group in groups])
        z = (found.mean(0) - truth) / (found.std(0) / n_groups**0.5 + 1e-6)  # where all is known nothing varies
        assert z.abs().max() < 6.0, name  # Student's t of 19 degrees, 18 numbers: 6 is passed once in 10,000 times


def test_a_depth_keeps_latent_values_near_and_a_plain_model_draws_nothing():
    model = censored_model(4, 3, 1)
    x = exact.sample(model, 500, seed=1)[0]
    v = latent_rows(model, model.freeze(), x, FitOptions(latent_rounds=3, latent_depth=0.1), generator(0, "near"))
    assert ((v - x).abs() <= 0.1 + 1e-12).all()
    assert not torch.equal(v, x)
    model.censoring = UNCENSORED
    rng = generator(0, "nothing")
    before = rng.get_state()
    assert latent_rows(model, model.freeze(), x, FitOptions(), rng) is x
    assert torch.equal(before, rng.get_state())


# Learning.


def test_what_is_learned_of_censored_columns_is_the_latent_distribution(monkeypatch):
    """One correlated Gaussian cut at 0: censored, its latent means and deviations come back; plain, they do not."""
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"by column": 700})
    rng = np.random.default_rng(0)
    latent = rng.multivariate_normal([0.5, -0.3], [[1.0, 0.6], [0.6, 1.0]], size=4000)
    X = np.maximum(latent, 0)
    found = {}
    for censor in ("none", (0, None)):
        rbm = GaussianBernoulliRBM(8, whiten=censor != "none" and "auto", censor=censor, random_state=0)
        fitted = rbm.fit(X)._fitted(np.float64)
        moments = exact.moments(fitted.model)
        transform = fitted.frame.transform
        mean = moments.v * transform.scale + transform.mean
        std = (moments.v2 - moments.v.square()).sqrt() * transform.scale
        found[censor] = (mean - torch.tensor([0.5, -0.3])).abs().max(), (std - 1).abs().max()
        if censor != "none":
            drawn = rbm.sample(1500)
            assert (np.abs((drawn == 0).mean(0) - (X == 0).mean(0)) < 0.04).all()
            assert (drawn >= 0).all()
    assert found[(0, None)][0] < 0.1
    assert found[(0, None)][1] < 0.1
    assert found["none"][0] > 0.3
    assert found["none"][1] > 0.2


def test_learning_goes_on_bit_for_bit_and_by_seed_alone():
    x = torch.randn(300, 5, generator=generator(0, "rows")).clamp(-0.5, 0.5)

    def state() -> TrainState:
        model = GRBM(5, 4, seed=1)
        model.censoring = Censoring(torch.full((5,), -0.5), torch.full((5,), 0.5))
        return TrainState(model, torch.optim.SGD(model.parameters(), 0.05), seed=2)

    goal, options = grbm.PCD(Gibbs(), n_chains=20), FitOptions(n_updates=20, batch_size=50)
    whole, parts = state(), state()
    for _ in grbm.fit(whole, x, goal, options):
        pass
    for _ in zip(range(7), grbm.fit(parts, x, goal, options), strict=False):
        pass
    copied = state()
    copied.model.load_state_dict(parts.model.state_dict())
    copied.update, copied.persistent = parts.update, parts.persistent
    for _ in grbm.fit(copied, x, goal, options):
        pass
    for a, b in zip(whole.model.parameters(), copied.model.parameters(), strict=True):
        assert torch.equal(a, b)
    plain = state()
    plain.model.censoring = UNCENSORED
    for _ in grbm.fit(plain, x, goal, options):
        pass
    assert not torch.equal(plain.model.log_var, whole.model.log_var)


# Frames and densities.


def _fitted(seed: int = 0) -> tuple[Fitted, torch.Tensor]:
    """A Gaussian of three columns, the middle one constant, cut at 1, in units of its own."""
    transform = Elementwise(torch.tensor([1.3, 7.0, -2.0]).double(), torch.tensor([0.7, 1.0, 3.1]).double(),
                            torch.tensor([0, 2]))  # fmt: skip
    base = Base(torch.tensor([0.1, -0.2]), torch.tensor([1.1, 0.8]))
    limits = Censoring(torch.tensor([1.0, -INF, -INF]).double(), torch.tensor([INF, INF, -1.0]).double())
    frame = Frame(transform, base, censoring=limits)
    model = gaussian_(GRBM(2, 3, seed=seed), *base)
    model.censoring = frame.limits
    return Fitted(frame, model), transform.inverse(base.sample((400,), generator(seed, "frame")))


def test_densities_are_in_the_units_of_the_data_and_limits_are_exact():
    fitted, latent = _fitted()
    x = fitted.frame.censoring.recorded(latent)
    z = fitted.units(latent)
    assert torch.equal(fitted.columns(z), fitted.frame.columns(z))
    shown = fitted.columns(z)
    assert (shown[:, 0] == 1.0).sum() == (x[:, 0] == 1.0).sum() > 50  # exactly, and as many
    assert (shown[:, 2] == -1.0).sum() == (x[:, 2] == -1.0).sum() > 50
    found = fitted.log_prob(x, fitted.log_partition().value)
    mean = np.array([1.3 + 0.7 * 0.1, -2.0 - 3.1 * 0.2])
    std = np.array([0.7 * math.sqrt(1.1), 3.1 * math.sqrt(0.8)])
    first = np.where(
        x[:, 0] == 1.0, stats.norm.logcdf(1.0, mean[0], std[0]), stats.norm.logpdf(x[:, 0], mean[0], std[0])
    )
    last = np.where(
        x[:, 2] == -1.0, stats.norm.logsf(-1.0, mean[1], std[1]), stats.norm.logpdf(x[:, 2], mean[1], std[1])
    )
    np.testing.assert_allclose(found, first + last, atol=1e-5)  # the model's parameters are float32
    score = fitted.log_likelihood(x, fitted.log_partition().value)
    assert score.mean == pytest.approx(float(found.mean()))
    assert score.n_rows == 400


def test_frames_are_written_and_read_with_their_limits():
    fitted, _ = _fitted()
    again = Frame.from_tensors(fitted.frame.tensors())
    assert torch.equal(again.censoring.low, fitted.frame.censoring.low)
    assert torch.equal(again.censoring.high, fitted.frame.censoring.high)
    for damaged in ({"limit_low": torch.zeros(2)}, {"limit_high": torch.full((3,), -9.0)}):
        with pytest.raises((UserError, ValueError), match="limits"):
            Frame.from_tensors(fitted.frame.tensors() | damaged)
    model = GRBM.from_parameters(dict(fitted.model.state_dict()))
    assert torch.equal(model.censoring.low, fitted.model.censoring.low)
    own = fitted.model.double().rescaled([1.3, -2.0], [0.7, 3.1])
    torch.testing.assert_close(own.censoring.low, torch.tensor([1.0, -INF]).double(), atol=1e-6, rtol=0)


def test_imputed_values_are_what_would_be_measured():
    """The mean of clip(v) where a value is missing, by enumeration of a Gaussian; what is known stays."""
    fitted, latent = _fitted()
    x = fitted.frame.censoring.recorded(latent[:4])
    x[:2, 0] = math.nan
    x[:, 1] = 7.0
    found = fitted.impute(x, filling=Filling(2000, 500, 16))
    drawn = np.maximum(stats.norm.rvs(1.37, 0.7 * math.sqrt(1.1), 400_000, random_state=0), 1.0)
    assert (found.mean[:2, 0] - drawn.mean()).abs().max() < 0.02
    assert (found.std[:2, 0] - drawn.std()).abs().max() < 0.02
    assert torch.equal(found.mean[2:], x[2:])
    assert (found.std[2:] == 0).all()
    with pytest.raises(ValueError, match="censored"):
        fitted.impute(x, noise_std=0.1)


def test_codes_are_means_over_latent_values():
    model = censored_model(4, 3, 2).float()
    transform = Elementwise.of(torch.zeros(4), torch.ones(4))
    frame = Frame(transform, Base(torch.zeros(4), torch.ones(4)), censoring=model.censoring.to(torch.zeros(1).double()))
    x = exact.sample(model, 50, seed=1)[0].to(torch.float32).double()
    some = x[(model.censoring.interval(x.float()).is_open.sum(1) > 1)][:5]
    assert len(some) == 5
    found = Fitted(frame, model).encode(some)
    within = frame.intervals(some.repeat_interleave(50, 0))
    annealed = censored.IntervalRows(model, within, frame.base, n_enumerated=0).hidden().view(5, 50, 3).mean(1)
    assert (annealed - found).abs().max() < 0.05
    h, energy, differs = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3), model.freeze(), False
    mean = energy.visible_mean(h)
    log_weight = h @ energy.b + 0.5 * ((mean.square() - energy.mu.square()) / energy.var).sum(-1)
    for row, code in zip(some.float(), found, strict=True):
        within = model.censoring.interval(row)
        weight = (log_weight + log_mass(mean, energy.var.sqrt(), within).sum(-1)).softmax(0).float()
        assert (code - weight @ h).abs().max() < 1e-6
        differs = differs or bool((model(row[None])[0] - code).abs().max() > 0.05)
    assert differs


def far_apart() -> Fitted:
    """Two columns that are at their limit together, or far above it, each half the time."""
    model = GRBM(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.mu.fill_(-8)
        model.W.fill_(9)
        model.log_var.fill_(math.log(0.25))
        model.b.fill_(-0.5 * float(((model.mu + model.W[:, 0]).square() - model.mu.square()).sum()) / 0.25)
    limits = Censoring(torch.zeros(2).double(), torch.full((2,), INF).double())
    model.censoring = limits
    base = Base(torch.full((2,), -3.5).double(), torch.full((2,), 20.0).double())
    return Fitted(Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), base, censoring=limits), model)


def test_chains_go_on_from_latent_values_and_not_from_the_limit():
    """A limit is where no latent value need be: here the hidden unit that fits the limit itself is the wrong one."""
    fitted = far_apart()
    share = (exact.sample(fitted.model, 4000, seed=1)[0] == 0).double().mean(0)
    assert ((share - 0.5).abs() < 0.05).all()
    drawn = fitted.sample(4000)
    assert ((drawn == 0).double().mean(0) - share).abs().max() < 0.06
    at_limit = torch.zeros(40, 2, dtype=torch.float64)
    wrong = stats.norm.cdf(-2) ** 2
    expected = wrong / (1 + wrong)
    assert float(fitted.encode(at_limit).max()) == pytest.approx(expected, abs=1e-6)
    within = fitted.frame.intervals(at_limit)
    annealed = censored.IntervalRows(fitted.model, within, fitted.frame.base, n_chains=8, n_enumerated=0).hidden()
    assert float(annealed.mean()) < 0.02
    assert fitted.latent(at_limit).mean() < -7


def test_mean_of_measurements_given_hidden_units():
    limits = Censoring(torch.tensor([0.0, -INF, -1.0]).double(), torch.tensor([INF, 0.5, 1.0]).double())
    mean, std = torch.tensor([-0.2, 0.3, 0.4]).double(), torch.tensor([1.0, 0.5, 2.0]).double()
    v = mean + std * torch.randn(1_000_000, 3, generator=generator(0, "mean"), dtype=torch.float64)
    assert (limits.mean(mean, std) - limits.recorded(v).mean(0)).abs().max() < 0.006
    assert torch.equal(UNCENSORED.mean(mean, std), mean)


def test_there_is_one_uncensored_however_copied():
    frame = Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), Base(torch.zeros(2), torch.ones(2)))
    assert copy.deepcopy(frame).censoring is UNCENSORED
    assert pickle.loads(pickle.dumps(frame)).censoring is UNCENSORED


def test_limits_of_float32_tables_are_those_of_their_numbers():
    """0.1 is no float32: whichever of the two has it, a row at the limit is at the limit."""
    x = torch.randn(400, 2, generator=generator(0, "single")).clamp(0.1, 0.7)
    found = limits_of(x, measure(x), "0.1,0.7", same_unit=False)
    share = ((x.double() <= found.low) | (x.double() >= found.high)).double().mean()
    assert float(share) > 0.5
    given = Censoring(torch.tensor([0.1]).double(), torch.tensor([INF]).double())
    assert given.interval(torch.tensor([0.1]).double()).is_open
    assert given.interval(torch.tensor([0.1]).float().double()).is_open
    assert not given.interval(torch.tensor([0.1 + 1e-7]).double()).is_open


def test_rare_rows_beyond_what_is_frequent_are_no_limit():
    x = torch.randn(100_000, 1, generator=generator(0, "rare")).double().clamp_min(0)
    x[[1, 1003, 5007]] = -5
    assert limits_of(x, measure(x), "auto", same_unit=False) is UNCENSORED


def test_what_knows_no_limits_refuses_a_censored_model():
    model = censored_model(3, 2, 1)
    x = exact.sample(model, 4, seed=1)[0]
    with pytest.raises(ValueError, match="censored"):
        grbm.impute(model, x.masked_fill(x > 0, math.nan))
    with pytest.raises(ValueError, match="intervals"):
        sample(model, Conditional(x), n_chains=4)
    with pytest.raises(ValueError, match="latent_rounds"):
        FitOptions(latent_rounds=0).check()


def test_the_estimator_keeps_to_the_limits_it_learned_with():
    X = np.maximum(np.random.default_rng(0).normal(size=(80, 2)), 0)
    rbm = GaussianBernoulliRBM(4, n_iter=2, censor=(0, None), random_state=0, warm_start=True).fit(X)
    np.testing.assert_array_equal(rbm.impute(X[:5], n_steps=4), X[:5])  # rows without gaps
    with pytest.warns(UserWarning, match="beyond the limits"):
        rbm.score_samples(X[:5] - 1)
    with pytest.warns(UserWarning, match="beyond the limits"):
        rbm.partial_fit(X[:50] - 1)
    rbm.set_params(censor="none")
    with pytest.raises(ValueError, match="censor"):
        rbm.fit(X)
    assert (rbm.inverse_transform(np.zeros((3, 4))) > 0).all()


# What limits a table has.


def test_limits_are_found_where_many_values_are_the_lowest_or_highest():
    rng = np.random.default_rng(0)
    n = 500
    columns = [
        np.maximum(rng.normal(size=n), 0),  # half at 0
        np.minimum(rng.normal(size=n), 1),  # a sixth at 1
        rng.normal(size=n),
        rng.integers(0, 2, n),  # of two values
        rng.poisson(0.9, n),  # counts: as many ones as zeros
        rng.exponential(size=n).round(1),  # coarse, the lowest as often as the next
        np.maximum(rng.normal(size=n).round(1), -1.5),  # the lowest is not much more frequent than values inside
    ]
    x = torch.from_numpy(np.stack(columns, 1).astype(np.float64))
    found = limits_of(x, measure(x), "auto", same_unit=False)
    assert found.low.tolist() == [0.0, *[-INF] * 6]
    assert found.high.tolist() == [INF, 1.0, *[INF] * 5]
    assert limits_of(x[:, 2:], measure(x[:, 2:]), "auto", same_unit=False) is UNCENSORED
    assert limits_of(x, measure(x), "none", same_unit=False) is UNCENSORED
    pixels = torch.rand(50, 64, dtype=torch.float64).mul(1.5).clamp_max(1)
    found = limits_of(pixels, measure(pixels), "auto", same_unit=True)
    assert found.low.isinf().all()
    assert (found.high == 1).all()
    given = limits_of(pixels, measure(pixels), "0,1", same_unit=True)
    assert (given.low == 0).all()
    assert (given.high == 1).all()
    with pytest.raises(UserError, match="beyond the limits"):
        limits_of(pixels, measure(pixels), "0.5,", same_unit=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dataset.censor", "soon"], "Limits are none, auto, marks or LOW,HIGH"),
        (["--dataset.censor", "1,0"], "lower end must be below the higher"),
        (["--dataset.censor", "0,", "--dataset.standardise", "whiten"], "standardise pixel"),
        (["--dataset.censor", "0,", "--train.validation", "0.1"], "cannot be validated"),
        (["--dataset.censor", "0,", "--model.contrasts", "3"], "add --model.contrasts 1"),
        (["--dataset.censor", "0.5,"], "beyond the limits"),
    ],
)
def test_limits_that_cannot_be_are_refused_in_a_sentence(tmp_path, capsys, options, said):
    np.save(tmp_path / "x.npy", np.maximum(np.random.default_rng(0).normal(size=(100, 3)), 0))
    command = ["train", "array", "--data", str(tmp_path / "x.npy"), "--out", str(tmp_path / "run"), *options]
    assert main(command) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_censored_run_from_training_to_evaluation(tmp_path, capsys):
    """By the command line: what is drawn stops at the limits, is scored in probabilities, and resumes bit for bit."""
    out = tmp_path / "run"
    command = [
        "train",
        "digits",
        "--dataset.censor",
        "auto",
        "--train.latent-depth",
        "1.5",
        "--model.start-var",
        "0.15",
    ]
    command += ["--train.n-updates", "60", "--model.n-hidden", "6", "--no-figures", "--out", str(out)]
    assert main([*command]) == 0
    assert "64 of them censored" in capsys.readouterr().out
    run = grbm.runs.read(out)
    assert (run.frame.censoring.low == 0).all()
    assert (run.frame.censoring.high == 1).all()
    assert main(["sample", str(out), "--n", "64"]) == 0
    drawn = np.load(out / "samples" / "samples.npy")
    assert drawn.min() == 0
    assert drawn.max() <= 1
    assert 0.2 < (drawn == 0).mean() < 0.8
    assert main(["evaluate", str(out), "--log-likelihood"]) == 0
    text = capsys.readouterr().out
    assert "columns are censored" in text
    assert "free energy" not in text.split("Log-likelihoods are")[0]
    found = json.loads((out / "evaluation.json").read_text())
    assert found["censored"] == 64
    assert found["unsure_test"] == 0
    assert 0 < found["bits_per_dimension_test"] < math.log2(17)
    assert main(["encode", str(out), "test"]) == 0
    darker = torch.from_numpy(np.load(out / "samples" / "samples.npy").reshape(64, 64)[:20]).double() - 0.5
    text = "\n".join(of_rows(score_rows(run, darker, "darker.npy", run.load_data(), ais_steps=50, ais_chains=20)))
    assert "beyond the limits" in text.replace("\n ", "")
    assert main(["export", str(out), str(tmp_path / "own")]) == 0
    assert GRBM.from_pretrained(tmp_path / "own").censoring.n == 64
    assert main(["export", str(out), str(tmp_path / "own.pt2")]) == 2
    assert "Codes of censored columns" in capsys.readouterr().err
