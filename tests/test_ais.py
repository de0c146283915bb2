"""log Z from both ends against exact answers, and a verdict that knows when they cannot be trusted."""

import math

import pytest
import torch

from grbm import GRBM, Base
from grbm.core.randomness import Blocks
from grbm.evaluate import ais, exact
from grbm.learning.bennett import bennett, crossing
from grbm.samplers.path import PathState
from tests.helpers import assert_standard, random_model, two_modes, z_bound


def drawn_model(k: int) -> tuple[GRBM, torch.Tensor]:
    """A random model of 1 to 16 units of each kind and any strength, and exact samples of it as its data."""
    rng = torch.Generator().manual_seed(k)
    N, M = (int(torch.randint(1, 17, (1,), generator=rng)) for _ in range(2))
    model = random_model(N, M, k, strength=2.5 * float(torch.rand(1, generator=rng)))
    data = exact.sample(model, 2000, seed=k)[0].float()
    return model.float(), data


def test_the_path_is_the_tempered_energys():
    """Free energies at any β, constants included."""
    model = random_model(4, 6, 0)
    base = Base(torch.tensor([0.1, -2.0, 0.0, 1.0]).double(), torch.tensor([0.5, 2.0, 1.0, 3.0]).double())
    energy, v = model.freeze(), torch.randn(7, 4, generator=torch.Generator().manual_seed(0)).double()
    state = PathState(energy, base, v)
    for beta in (0.0, 0.3, 1.0):
        tempered = energy.temper(torch.tensor(beta).double(), base)
        torch.testing.assert_close(state.free_energy(beta), tempered.free_energy(v))
    torch.testing.assert_close(base.log_z(6), torch.tensor(exact.log_z(_at_zero(model, base))).double())


def _at_zero(model: GRBM, base: Base) -> GRBM:
    flat = GRBM(model.n_visible, model.n_hidden, dtype=torch.float64)
    with torch.no_grad():
        flat.W.zero_()
        flat.mu.copy_(base.mean)
        flat.log_var.copy_(base.var.log())
    return flat


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["definition", "native"])
def test_weights_are_unbiased_at_any_number_of_steps(dtype):
    """3 temperatures are far too few for a low variance, but E w = Z/Z_0 all the same, both ways."""
    model = random_model(2, 5, 1)
    truth = exact.log_z(model)
    path = ais.HiddenPath(model.to(dtype).freeze(), torch.tensor([0.3, 0.6, 0.5, 0.9, 0.2]).to(dtype), 3, Blocks(3, 1))
    forth = path.forth(100_000).log_weight
    back = path.back(exact.sample(model, 100_000, seed=1)[1].to(dtype))
    for log_weight, expected in ((forth, truth - path.log_z_0), (-back, path.log_z_0 - truth)):
        estimate, error, ess = ais.mean_weight(log_weight)
        assert_standard((estimate - expected) / error, n_cases=2 * 3)  # two ways and both together, by two engines
        assert error < 0.05
        assert 0.005 < ess < 0.9
    both, error = bennett(forth, back)
    assert_standard((both + path.log_z_0 - truth) / error, n_cases=2 * 3)
    assert error < 0.01


@pytest.mark.parametrize(("n_forth", "n_back"), [(20_000, 20_000), (5_000, 40_000)])
def test_bennetts_estimate_on_works_whose_answer_is_known(n_forth, n_back):
    """Gaussian works of variance s² that satisfy Crooks' relation differ by s² in mean and meet at the answer."""
    rng, answer, s = torch.Generator().manual_seed(0), 1.7, 1.5
    forth = answer - s**2 / 2 + s * torch.randn(n_forth, generator=rng, dtype=torch.float64)
    back = answer + s**2 / 2 + s * torch.randn(n_back, generator=rng, dtype=torch.float64)
    estimate, error = bennett(forth, back)
    assert_standard((estimate - answer) / error, n_cases=2)
    shift = math.log(n_forth / n_back)
    sides = 1 / (1 + (estimate - forth + shift).exp()), 1 / (1 + (back - estimate - shift).exp())
    variance = sum(float(f.square().mean() / f.mean().square() - 1) / len(f) for f in sides)
    assert error == pytest.approx(math.sqrt(variance), rel=1e-6)
    repeats = []
    for _ in range(60):
        a = answer - s**2 / 2 + s * torch.randn(n_forth // 10, generator=rng, dtype=torch.float64)
        b = answer + s**2 / 2 + s * torch.randn(n_back // 10, generator=rng, dtype=torch.float64)
        repeats.append(bennett(a, b)[0])
    # a deviation over 60 repeats is known to 9 %
    assert float(torch.tensor(repeats).std()) == pytest.approx(error * math.sqrt(10), rel=0.36)


@pytest.mark.parametrize("k", range(5))
def test_random_models(k):
    model, data = drawn_model(k)
    found, truth = ais.log_z(model, data, n_steps=300, n_chains=500, seed=k), exact.log_z(model)
    assert found.converged, found.verdict
    bound = z_bound(3 * 5)  # the estimate and both ends, of five models
    assert abs(found.log_z - truth) < bound * found.error
    assert found.lower - bound * found.lower_error < truth < found.upper + bound * found.upper_error
    assert found == ais.log_z(model, data, n_steps=300, n_chains=500, seed=k)


@pytest.mark.slow
def test_a_hundred_random_models():
    """Within 3 standard errors of the truth in at least 95 of 100, errors of at most 0.05 nat, and no false verdict.

    A verdict may refuse a good number, but what it calls converged is right to 0.05 nat.
    """
    within, held, converged, errors = 0, 0, 0, []
    for k in range(100):
        model, data = drawn_model(k)
        found, truth = ais.log_z(model, data, seed=k), exact.log_z(model)
        within += abs(found.log_z - truth) <= 3 * found.error
        held += found.lower - 3 * found.lower_error <= truth <= found.upper + 3 * found.upper_error
        errors.append(found.error)
        converged += found.converged
        assert not found.converged or abs(found.log_z - truth) < 0.05, (k, found, truth)
    print(f"within {within}, held {held}, converged {converged}, largest error {max(errors):.3f}")
    assert min(within, held, converged) >= 95
    assert max(errors) <= 0.05


def test_the_mean_weight_and_its_error_are_those_of_the_weights():
    """Equal weights have no error; of weights 1 and 3 in equal number the mean is 2, its error 1/(2 sqrt(n))."""
    estimate, error, ess = ais.mean_weight(torch.full((50,), 1.5).double())
    assert (estimate, error, ess) == pytest.approx((1.5, 0.0, 1.0), abs=1e-6)
    weights = torch.tensor([1.0, 3.0]).double().repeat(200)
    estimate, error, ess = ais.mean_weight(weights.log())
    assert (estimate, error, ess) == pytest.approx((math.log(2), 0.5 / 400**0.5, 0.8))


def test_what_stands_against_an_estimate_is_named_worst_first():
    """Both ends 0.3 nats apart, with errors of 0.1 each and weights that rest on half of 100 chains: all is well."""
    nothing = ais.LogZ(0.0, 0.1, -0.15, 0.1, 0.15, 0.1, (0.5, 0.5), 100, None)
    for gap, error, n_effective, doubt in (
        (0.3, 0.14, 50, None),
        (0.3, 0.09, 50, "apart"),
        (-0.3, 0.09, 50, "apart"),
        (math.nan, 0.1, 50, "apart"),
        (2.0, 0.31, 50, "wide"),
        (0.0, math.nan, 50, "wide"),
        (0.0, 0.1, 19.9, "few weights"),
        (9.0, 9.0, math.nan, "few weights"),
    ):
        assert ais.doubt_of(gap, error, n_effective) == doubt
        found = nothing._replace(doubt=doubt)
        assert found.converged == (doubt is None)
        assert found.verdict.startswith("Converged" if doubt is None else "Not converged")


@pytest.mark.parametrize("distance", [12, 30, 60])
def test_modes_far_apart_are_both_found(distance):
    """Of different mass, at any distance: v is integrated out."""
    model = two_modes(float(distance), torch.float32)
    found, truth = ais.log_z(model, n_steps=30, n_chains=300), exact.log_z(model)
    assert found.converged, found.verdict
    assert_standard((found.log_z - truth) / max(found.error, 1e-4), n_cases=3)


@pytest.mark.parametrize(("n", "m", "apart", "width"), [(2048, 500, 1, 1), (10, 12, 900, 300), (1, 1, 3, 1)])
def test_bennetts_sums_cross_where_they_are_said_to(n, m, apart, width):
    """Also where hardly any draw of the one is a likely one of the other, and where some rows are left out."""
    g = torch.Generator().manual_seed(n)
    forth, back = (width * torch.randn(k, dtype=torch.float64, generator=g) for k in (n, m))
    back += apart
    keep = [torch.ones(2, k, dtype=torch.float64) for k in (n, m)]
    keep[0][1, : n // 2], keep[1][1, : m // 3] = 0, 0
    found = crossing(forth, back, *keep)
    shift = (keep[0].sum(1) / keep[1].sum(1)).log()

    def difference(at: torch.Tensor) -> torch.Tensor:
        sides = (forth - (at + shift)[:, None]).sigmoid(), ((at + shift)[:, None] - back).sigmoid()
        return (keep[0] * sides[0]).sum(1) - (keep[1] * sides[1]).sum(1)

    assert (difference(found - 1e-8) > 0).all()
    assert (difference(found + 1e-8) < 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_too_few_temperatures_are_not_converged(seed):
    """Of a model with many modes: one with a single mode is met by the first of them."""
    assert not ais.log_z(random_model(6, 20, 1, strength=0.7), n_steps=1, n_chains=50, seed=seed).converged


def test_more_hidden_units_than_can_be_enumerated():
    """20 more units without weights: log Z is known, and chains from the data agree."""
    small = random_model(3, 6, 2)
    model = GRBM(3, 26)
    with torch.no_grad():
        model.W.zero_()
        model.W[:, :6] = small.W
        model.b[:6] = small.b
        model.b[6:] = torch.linspace(-2, 2, 20)
        model.mu.copy_(small.mu)
        model.log_var.copy_(small.log_var)
    truth = exact.log_z(small) + float(torch.nn.functional.softplus(torch.linspace(-2, 2, 20).double()).sum())
    data = exact.sample(small, 2000, seed=0)[0].float()
    found = ais.log_z(model, data, n_steps=300)
    assert found.converged, found.verdict
    assert_standard((found.log_z - truth) / found.error, n_cases=2)
    alone = ais.log_z(model, n_steps=300)
    assert not alone.converged
    assert "One end only" in alone.verdict
    assert_standard((alone.log_z - truth) / alone.error, n_cases=2)
    v = data[:10]
    torch.testing.assert_close(model.log_prob(v, truth).double(), exact.log_prob(small, v), rtol=1e-4, atol=1e-4)


def test_data_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"data must be \(n, 4\), got shape \(5, 1, 2, 2\)"):
        ais.log_z(GRBM(4, 3), torch.zeros(5, 1, 2, 2))
