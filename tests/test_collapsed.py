"""Hidden units with v integrated out: their marginal, a sweep that leaves it alone, annealing; against enumeration."""

import math

import pytest
import torch

from grbm import GRBM, Reference
from grbm.core.randomness import Blocks, Philox, generator
from grbm.evaluate import ais, exact
from grbm.evaluate.watching import log_z_of
from grbm.learning.quasi_newton import draw
from grbm.samplers import Gibbs, GlobalMoves, collapsed, run_chains
from grbm.samplers.collapsed import Boltzmann, Populations, anneal, visible_draw
from grbm.samplers.engines import compiled
from grbm.samplers.engines.definition import Engine
from grbm.samplers.engines.native import Native
from tests.helpers import assert_standard, mean_z, random_model


def states(M: int) -> torch.Tensor:
    """All 2^M hidden states."""
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * M)


def hidden_mode(mass: float) -> GRBM:
    """Two units, each of a small mass 10 deviations away, that have a mode together: ``mass`` nats above no unit on.

    Block Gibbs chains that have neither, or one of them, do not find the other.
    """
    model = GRBM(2, 2, dtype=torch.float64)
    with torch.no_grad():
        model.log_var.zero_()
        model.mu.zero_()
        model.W.copy_(torch.tensor([[10.0, 8.0], [0.0, 6.0]]))
        together = 0.5 * float(model.W.sum(1).square().sum())  # ½ |w_1 + w_2|²
        model.b.fill_((mass - together) / 2)
    return model


def test_the_marginal_is_that_of_the_model():
    """Against the joint energy integrated over v, up to one constant: 1e-10."""
    model = random_model(3, 5, 0)
    h = states(5)
    energy = model.freeze()
    mean = energy.visible_mean(h)
    log_joint = -energy.energy(mean, h)  # the conditional density of v at its mean is the same for all h
    log_mass = Boltzmann.of(energy).log_mass(h)
    torch.testing.assert_close(log_mass - log_mass[0], log_joint - log_joint[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_a_sweep_leaves_the_marginal_alone(beta):
    """200,000 draws of p^β stay so, state by state: χ² of 15 degrees of freedom, at five deviations above its mean."""
    marginal = Boltzmann.of(random_model(2, 4, 2, strength=0.8).freeze())
    h, n = states(4), 200_000
    p = (beta * marginal.log_mass(h)).softmax(0)
    which = torch.multinomial(p, n, replacement=True, generator=generator(0, "draws"))
    after = marginal.sweep(h[which], Blocks(1, 1), beta)
    counts = torch.bincount((after @ torch.tensor([8.0, 4.0, 2.0, 1.0]).double()).long(), minlength=16)
    chi2 = float(((counts - n * p).square() / (n * p)).sum())
    assert chi2 < 15 + 5 * math.sqrt(30)
    assert (after != h[which]).double().mean() > 0.1


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler")
@pytest.mark.parametrize(("n_chains", "M"), [(1, 1), (3, 5), (64, 16), (100, 70), (200, 129)])
def test_the_native_sweep_is_the_definition_unit_by_unit(n_chains, M):
    rng = generator(M, "sweep")
    W = torch.randn(6, M, generator=rng)
    marginal = Boltzmann(W.T @ W / 6, torch.randn(M, generator=rng))
    h = torch.rand(n_chains, M, generator=rng).round()
    for beta in (1.0, 0.2):
        numbers = Philox(M, 3, draw=2), Philox(M, 3, draw=2)
        expected = Engine().sweep(marginal.J, marginal.alone(), h, beta, numbers[0])
        found = Native().sweep(marginal.J, marginal.alone(), h, beta, numbers[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert numbers[0].draw == numbers[1].draw == 3
        assert M < 16 or (expected != h).any()


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler")
@pytest.mark.parametrize(("n_chains", "M", "strength"), [(1, 1, 1.0), (5, 3, 1.0), (64, 16, 0.6), (100, 70, 0.6)])
def test_native_annealing_is_the_definition_chain_by_chain(n_chains, M, strength, monkeypatch):
    """The last population may be smaller; and some are resampled on the way, others at the end alone."""
    marginal = Boltzmann.of(random_model(6, M, 1, strength=strength).float().freeze())
    h = torch.rand(n_chains, M, generator=generator(1, "start")).round()
    betas = torch.linspace(0, 1, 31, dtype=torch.float64).square()
    numbers = Philox(3, 5, draw=7), Philox(3, 5, draw=7)
    found = Native().anneal(*marginal, h, betas, collapsed.RESAMPLED, numbers[0])
    monkeypatch.setattr(collapsed, "engine_for", lambda *_: Engine())
    expected = collapsed.annealed(marginal, h.clone(), betas, numbers[1])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-4)
    assert numbers[0].draw == numbers[1].draw == 67


def test_a_sweep_refuses_other_sizes():
    marginal = Boltzmann(torch.eye(3), torch.zeros(3))
    with pytest.raises((ValueError, RuntimeError)):
        marginal.sweep(torch.ones(4, 5), Blocks(0, 1))
    with pytest.raises((ValueError, RuntimeError)):
        Native().anneal(*marginal, torch.ones(4, 5), torch.tensor([0.0, 1.0]), 0.5, Blocks(0, 1))


@pytest.mark.parametrize("k", range(8))
def test_annealing_knows_log_z(k):
    """64 populations each: the mean of Z is right within its error; without resampling's share it is far off."""
    model = random_model(3, 9, k, strength=1.0)
    log_z = anneal(model.freeze(), 64 * 64, Blocks(k, 1), n_steps=20).log_z
    ratios = (log_z - exact.log_z(model)).exp()
    assert_standard(mean_z(ratios, 1.0), n_cases=8)
    assert float(ratios.std()) < 1


def test_annealed_states_are_the_models():
    """Moments of 20,000 annealed chains against exact ones, in standard errors of the populations' means."""
    model = random_model(2, 6, 3, strength=0.8)
    n = 64 * 320
    energy, rng = model.freeze(), Blocks(0, 1)
    v = visible_draw(energy, anneal(energy, n, rng).h, rng).view(320, 64, 2)
    truth = exact.sample(model, 400_000, seed=1)[0]
    for power in (1, 2):
        means = v.pow(power).mean(1)
        error = (means.var(0) / len(means) + truth.pow(power).var(0) / len(truth)).sqrt()
        assert_standard((means.mean(0) - truth.pow(power).mean(0)) / error, n_cases=2)


def test_a_mode_that_no_chain_from_data_meets_is_found():
    """Two units make it together; block Gibbs chains from elsewhere do not come there, annealed ones do.

    log Z that is bridged from a reference without that mode, and the draws of a round, know of it.
    """
    model = hidden_mode(4.0)
    truth = exact.log_z(model)
    model = model.float()
    energy = model.freeze()
    near = Reference(torch.ones(1), torch.zeros(1, 2), torch.eye(2)[None])
    start = torch.randn(256, 2, generator=generator(0, "start"))
    walked = run_chains(energy, Gibbs(), start, 200, Blocks(0, 1)).chains.v
    assert (walked[:, 0] < 9).all()
    found = log_z_of(model, GlobalMoves(near), start, n_states=20)
    assert abs(found.log_z - truth) < 1.0
    draws = draw(energy, GlobalMoves(near), start, Blocks(0, 1), seed=0).draws
    log_z = float((-energy.free_energy(draws.v.float()).double() - draws.log_q).logsumexp(0)) - math.log(len(draws.v))
    assert abs(log_z - truth) < 1.0
    rng = Blocks(0, 1)
    assert 0.9 < float((visible_draw(energy, anneal(energy, 4096, rng).h, rng)[:, 0] > 9).double().mean()) < 1.0


def test_annealing_finds_a_mode_where_no_data_are():
    """Two units of 22 make it together; chains from the data do not meet it, and say so."""
    data = torch.randn(500, 2, generator=generator(0, "data"))
    for mass in (8.0, -8.0):
        model, two = GRBM(2, 22), hidden_mode(mass)
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
            model.W[:, :2], model.b[:2] = two.W, two.b
        found = ais.log_z(model, data, n_steps=300, n_chains=200)
        truth = exact.log_z(two) + 20 * math.log(2)
        assert found.converged, found.verdict
        assert_standard((found.log_z - truth) / found.error, n_cases=2)
        assert found.at_data is not None
        assert (found.at_data < -7) == (mass > 0)


def all_or_none() -> tuple[GRBM, float]:
    """Forty units that are on together, which has 6 nats more than none of them, and log Z."""
    M = 40
    model = GRBM(1, M)
    with torch.no_grad():
        model.W.fill_(1.0)
        model.mu.zero_()
        model.log_var.zero_()
        model.b.fill_(-0.5 * M + 6.0 / M)
    k = torch.arange(M + 1).double()
    log_count = math.lgamma(M + 1) - torch.lgamma(k + 1) - torch.lgamma(M + 1 - k)
    log_mass = log_count + k * model.b[0].item() + 0.5 * k.square()
    return model, float(log_mass.logsumexp(0)) + 0.5 * math.log(2 * math.pi)


def test_populations_count_by_their_part_of_z():
    h = torch.cat([torch.zeros(64, 2), torch.ones(64, 2)])
    torch.testing.assert_close(Populations(torch.tensor([0.0, math.log(3)]), h).mean(), torch.full((2,), 0.75))


def test_chains_go_back_from_states_that_count_by_their_weights(monkeypatch):
    """Half of the chains forth come to either mode, whose weights differ; no sweep leads from one to the other."""
    model, truth = all_or_none()
    halves = Populations(torch.zeros(2), torch.cat([torch.zeros(64, 40), torch.ones(64, 40)]))
    monkeypatch.setattr(ais, "anneal", lambda *args, **options: halves)
    found = ais.log_z(model, n_steps=400, n_chains=400)
    assert found.ess[0] < 0.5  # else all are in one
    # Half of the weight back is that of one chain in 400, which may be none or two: log 2. Without weights it is 4 off.
    assert abs(found.upper - truth) < 1.0


def test_a_mode_that_chains_forth_miss_is_found_from_the_data(monkeypatch):
    """All of 40 units together, where the data are, or none of them: chains begin with none."""
    model, truth = all_or_none()
    data = 40 + torch.randn(500, 1, generator=generator(0, "data"))
    both = ais.log_z(model, data, n_steps=100, n_chains=100)
    assert both.converged, both.verdict
    assert abs(both.log_z - truth) < 4 * both.error
    none = Populations(torch.zeros(1), torch.zeros(1, 40))
    monkeypatch.setattr(ais, "anneal", lambda *args, **options: none)
    found = ais.log_z(model, data, n_steps=100, n_chains=100)
    assert found.log_z < truth - 3
    assert found.doubt == "missed"
    assert found.at_data is not None
    assert abs(found.log_z + found.at_data - truth) < 1.0
    assert "chains from the data find" in found.verdict
