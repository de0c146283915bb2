"""Chains under measurements, against enumeration: what is missing, what is noisy, what is neither."""

import pytest
import torch

from grbm import GRBM, Base, Conditional, Gibbs, Reference, impute, sample
from grbm.core.randomness import Philox, generator
from grbm.data.transforms import Elementwise
from grbm.evaluate import exact
from grbm.fitting.impute import impute_columns
from grbm.samplers.chains import Walk
from grbm.samplers.conditional import Filling
from grbm.samplers.sampling import step_by_step
from tests.helpers import DEVICE, FEW_AND_MANY, assert_standard, exact_chains, mean_z, random_model, z_scores

NAN = float("nan")


def measured(v: torch.Tensor, noise_std: float, seed: int) -> torch.Tensor:
    """v with noise, and a third of it missing."""
    rng = generator(seed, "measurement")
    y = v + noise_std * torch.randn(v.shape, generator=rng, dtype=v.dtype)
    return y.masked_fill(torch.rand(v.shape, generator=rng) < 1 / 3, NAN)


@FEW_AND_MANY
@pytest.mark.parametrize("noise_std", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("N", "M", "seed"), [(2, 4, 1), (3, 6, 2), (6, 3, 3)])
def test_chains_under_measurements_do_not_drift(N, M, seed, noise_std, n_chains):
    """(v, h) drawn exactly and y measured of v: whatever the number of steps, every moment of (v, h), and those of v
    with y, stay at those of the model."""
    model = random_model(N, M, seed)
    truth = exact.moments(model)
    v, _ = exact_chains(model, n_chains, seed=seed)
    y = measured(v, noise_std, seed)
    known = ~y.isnan()
    for n_steps in (1, 4, 16):
        chains = sample(model, Conditional(y, noise_std**2), v0=v, n_steps=n_steps, seed=n_steps)
        assert_standard(z_scores(chains.v, chains.h, truth), n=3 * 3 * (16 + 30 + 33))  # noises, numbers of steps
        difference = torch.where(known, chains.v * y - v * y, 0.0)  # the same law, so a mean of 0
        error = difference.std(0) / n_chains**0.5
        assert_standard(difference.mean(0) / (error + 1e-12), n=3 * 3 * (2 + 3 + 6))
        if noise_std == 0:
            assert torch.equal(chains.v[known], v[known])


@pytest.mark.parametrize(
    ("noise_std", "n_replicas", "dtype"),
    [
        *((noise_std, 1, dtype) for noise_std in (0.0, 0.7) for dtype in (torch.float64, torch.float32)),
        *(
            pytest.param(noise_std, 4, dtype, marks=pytest.mark.whole)
            for noise_std in (0.0, 0.7)
            for dtype in (torch.float64, torch.float32)
        ),
    ],
)
def test_imputed_mean_and_deviation_are_those_of_enumeration(noise_std, n_replicas, dtype):
    """64 chains of 2,000 steps for each of 20 rows: within 0.03, where six seeds had largest errors of 0.003 to 0.013
    and the deviations are up to 1.4."""
    model = random_model(4, 5, seed=5, strength=0.7)
    v, _ = exact_chains(model, 20, seed=1)
    y = measured(v, noise_std, 2)
    mean, var = exact.posterior(model, y, noise_std**2)
    settings = {"noise_var": noise_std**2, "n_steps": 2000, "burn_in": 100, "n_chains": 64, "n_replicas": n_replicas}
    found = impute(model.to(dtype), y, **settings)
    torch.testing.assert_close(found.mean.double(), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(found.std.double(), var.sqrt(), atol=0.03, rtol=0)


@pytest.mark.parametrize(("N", "M", "C"), [(2, 5, 7), (4, 33, 70), (17, 70, 40), (130, 65, 3)])
def test_a_fast_walk_under_measurements_is_its_definition(N, M, C, fast_engine):
    """From the same random numbers: every unit of every chain, and the sums of the conditional mean and its square."""
    model = random_model(N, M, 3, dtype=torch.float32)
    with torch.no_grad():  # weights whose units turn on as often as off, whatever their number
        model.W.mul_(0.5 / N**0.5)
        model.b.copy_(-(model.mu / model.var) @ model.W)
    rng = torch.Generator().manual_seed(1)
    y = torch.randn(C, N, generator=rng).masked_fill(torch.rand(C, N, generator=rng) < 0.4, NAN)
    noise_var = torch.rand(C, N, generator=rng) * (torch.rand(C, N, generator=rng) < 0.7)
    noise_var[0, 0] = torch.inf
    device = DEVICE if fast_engine.name == "fused" else "cpu"
    y, noise_var, v = (x.to(device) for x in (y, noise_var, torch.randn(C, N, generator=rng)))
    energy, sampler = model.to(device).freeze(), Conditional(y, noise_var)
    for n_steps in (0, 1, 5):
        whole = sampler.at_once(energy, Walk(v, n_steps), Philox(7, 3))
        plain = step_by_step(energy, sampler, Walk(v, n_steps), Philox(7, 3)).chains
        for a, b in zip(whole.chains[:3], plain[:3], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    exactly = ~y.isnan() & (noise_var == 0)
    assert torch.equal(whole.chains.v[exactly], y[exactly])

    rng = Philox(7, 3)  # in two stretches
    half = sampler.at_once(energy, Walk(v, 2), rng)
    rest = sampler.at_once(energy, Walk(half.chains.v, 3, given=half.chains), rng)
    for a, b in zip(rest.chains[:3], whole.chains[:3], strict=True):
        assert torch.equal(a, b)

    given = sampler.given_hidden(energy)
    chains, (total, squares) = fast_engine.run_given(energy, given, Walk(v, 5, burn_in=2), Philox(7, 3))
    assert torch.equal(chains.h, whole.chains.h)
    states = [sampler.at_once(energy, Walk(v, n), Philox(7, 3)).chains.h for n in (3, 4, 5)]
    means = torch.stack([given.mean(energy, h) for h in states]).double()
    torch.testing.assert_close(total, means.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(squares, means.square().sum(0), rtol=1e-4, atol=1e-4)


def test_no_rows_have_no_chains():
    found = sample(GRBM(5, 3), Conditional(torch.empty(0, 5)), v0=torch.empty(0, 5), n_steps=2)
    assert found.v.shape == (0, 5)


def test_enumeration_of_the_posterior_is_bayes_rule_on_a_grid():
    """p(v₀ | v₁ = y₁), and p(v | both noisy), by quadrature of the model's own density."""
    model = random_model(2, 3, seed=7)
    grid = exact.quadrature(model, max_spacing=0.02)
    y, s2 = torch.tensor([[0.3, -0.4]], dtype=torch.float64), 0.4
    density = (grid.log_density - 0.5 * ((grid.points - y).square() / s2).sum(1)).softmax(0)
    mean, var = exact.posterior(model, y, s2)
    expected = (density[:, None] * grid.points).sum(0)
    torch.testing.assert_close(mean[0], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(var[0], (density[:, None] * (grid.points - expected).square()).sum(0), atol=1e-6, rtol=0)

    line = torch.stack([torch.linspace(-15, 15, 20001, dtype=torch.float64), torch.full((20001,), -0.4).double()], 1)
    density = exact.log_prob(model, line).softmax(0)
    mean, var = exact.posterior(model, torch.tensor([[NAN, line[0, 1]]]).double())
    expected = (density * line[:, 0]).sum()
    torch.testing.assert_close(mean[0], torch.stack([expected, line[0, 1]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(var[0, 0], (density * (line[:, 0] - expected).square()).sum(), atol=1e-6, rtol=0)
    assert var[0, 1] < 1e-30


def test_nothing_measured_is_gibbs_and_all_measured_is_given_back():
    model = random_model(3, 4, seed=3, dtype=torch.float32)
    nothing = torch.full((500, 3), NAN)
    chains = sample(model, Conditional(nothing), n_chains=500, n_steps=20, seed=1)
    assert chains.v.std() > 0.5
    v = torch.randn(50, 3, generator=generator(0, "v"))
    same = sample(model, Conditional(v), n_chains=50, n_steps=5, seed=1)
    assert torch.equal(same.v, v)
    filled = impute(model, v, n_steps=5, burn_in=1)
    assert torch.equal(filled.mean, v)
    assert (filled.std == 0).all()
    free, _ = impute(model, nothing[:100], n_steps=600, burn_in=100, seed=3)
    chains = sample(model, Gibbs(), n_chains=20_000, n_steps=300, seed=2)
    error = chains.v.std(0) / 100**0.5 / 8  # 100 rows of 2,000 correlated steps each
    assert_standard((free.mean(0) - chains.v.mean(0)) / error)


def test_results_repeat_and_rows_in_many_parts_are_all_there(monkeypatch):
    model = random_model(3, 4, seed=3, dtype=torch.float32)
    y = measured(torch.randn(50, 3, generator=generator(0, "v")), 0.0, 1)
    assert torch.equal(impute(model, y, n_steps=20, burn_in=5).mean, impute(model, y, n_steps=20, burn_in=5).mean)
    monkeypatch.setattr("grbm.samplers.conditional.CHUNK", 28)
    parts = impute(model, y, n_steps=20, burn_in=5)
    assert parts.mean.shape == (50, 3)
    assert torch.equal(parts.mean[~y.isnan()], y[~y.isnan()])
    assert (parts.std[~y.isnan()] == 0).all()
    assert parts.mean.isfinite().all()  # where a part was left out, gaps would be NaN, and sure
    assert (parts.std[y.isnan()] > 0.1).all()
    assert impute(model, y[:0]).mean.shape == (0, 3)


def test_small_noise_keeps_its_size():
    """In float32, where 1 − g cancels: v given h and y has deviation s."""
    model = random_model(2, 3, seed=3, dtype=torch.float32)
    for noise_std in (1e-4, 1e-2):
        std = Conditional(torch.zeros(1, 2), noise_std**2).given_hidden(model.freeze()).std
        torch.testing.assert_close(std, torch.full((1, 2), noise_std), rtol=1e-3, atol=0)
    std = Conditional(torch.zeros(1, 2), torch.inf).given_hidden(model.freeze()).std
    torch.testing.assert_close(std[0], model.var.sqrt().detach())


def test_seeds_bases_and_burn_in_count():
    model = random_model(3, 4, seed=3, dtype=torch.float32)
    y = torch.full((20, 3), NAN)
    usual = impute(model, y, n_steps=20, burn_in=5).mean
    far = Base(torch.full((3,), 50.0), torch.ones(3))
    for changed in ({"seed": 1}, {"burn_in": 6}, {"n_chains": 3}, {"n_replicas": 3}, {"base": far}):
        assert (impute(model, y, **({"n_steps": 20, "burn_in": 5} | changed)).mean != usual).any(), changed
    assert len(usual.unique(dim=0)) == 20


def test_bad_measurements_are_refused():
    model = random_model(3, 4, seed=3)
    with pytest.raises(ValueError, match=r"observed .*\(5, 2\)"):
        impute(model, torch.zeros(5, 2))
    with pytest.raises(ValueError, match="observed"):
        impute(model, torch.full((5, 3), torch.inf))
    with pytest.raises(ValueError, match="noise_var"):
        impute(model, torch.zeros(5, 3), noise_var=-1.0)
    with pytest.raises(ValueError, match="burn_in"):
        impute(model, torch.zeros(5, 3), n_steps=10, burn_in=10)
    with pytest.raises(ValueError, match="5 rows observed, not 4"):
        sample(model, Conditional(torch.zeros(5, 3)), n_chains=4)
    with pytest.raises(ValueError, match=r"observed .*\(5, 2\)"):
        sample(model, Conditional(torch.zeros(5, 2)), v0=torch.zeros(5, 3))
    with pytest.raises(ValueError, match="5 rows observed, not 1"):
        sample(model, Conditional(torch.zeros(5, 3)), v0=torch.zeros(1, 3))


def test_whitened_gaps_have_the_exact_posterior_mean():
    """Two far modes that a reference has in wrong shares: Gibbs steps never cross, jumps alone would keep its own.

    In standard errors of 400 rows' means; without the reference's densities in the ratio it is off by units.
    """
    model = GRBM(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.log_var.zero_()
        model.W.copy_(torch.tensor([[0.5], [12.0]]))
        model.mu.copy_(torch.tensor([0.0, -6.0]))
        model.b.fill_(0.5 * 6.0**2 - 0.5 * (0.25 + 36.0) + 1.0)
    means = torch.stack([model.mu.detach(), model.mu.detach() + model.W.detach()[:, 0]])
    q = Reference(torch.tensor([0.9, 0.1]).double(), means, 1.1 * torch.eye(2).double().expand(2, 2, 2))
    scale = Elementwise.of(torch.tensor([3.0, -1.0]).double(), torch.tensor([2.0, 5.0]).double())
    z = torch.tensor([[0.25, NAN]]).double().expand(400, 2)
    found = impute_columns(model, scale, q, z * scale.scale + scale.mean, filling=Filling(120, 30, 2)).mean
    expected = exact.posterior(model, z[:1])[0] * scale.scale + scale.mean
    assert torch.equal(found[:, 0], torch.full((400,), float(0.25 * 2 + 3)).double())
    assert_standard(mean_z(found[:, 1], float(expected[0, 1])))
    assert 0.05 < float(found[:, 1].std()) / 20 < 0.5
