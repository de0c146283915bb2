"""One machine at several scales: density, codes, gradients, chains, conditionals, files, against exact answers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from grbm import (
    GRBM,
    PCD,
    Conditional,
    FitOptions,
    GaussianBernoulliRBM,
    Gibbs,
    ParallelTempering,
    TrainState,
    cli,
    fit,
    impute,
    sample,
)
from grbm.core.errors import UserError
from grbm.core.randomness import generator
from grbm.data import whitening
from grbm.data.frame import Frame
from grbm.data.transforms import Elementwise, Whitening
from grbm.data.whitening import whiten
from grbm.evaluate import ais, exact
from grbm.evaluate.watching import HeldOut, Nats, gaussian_log_prob, is_gaussian_enough
from grbm.fitting.impute import impute_columns
from grbm.fitting.recipe import Facts, resolve
from grbm.fitting.start import held_out
from grbm.interchange.programs import Encoder
from grbm.model import Base
from grbm.model import contrasts as contrasts_module
from grbm.model.contrasts import UNIT, Contrasts, ask_for_contrasts, elliptical, scaled_gaussians
from grbm.model.initialise import gaussian_
from grbm.model.reference import Reference
from grbm.runs import folder as run_folder
from grbm.runs import read
from grbm.runs.encoding import impute_rows
from grbm.runs.presets import PRESETS
from grbm.runs.training import train
from grbm.samplers.moments import Moments, gradient
from tests.helpers import assert_standard, contrasted, exact_gradient, mean_z, z_bound

ALL_OR_ONE = pytest.mark.parametrize("units", [None, [0, 1]])


@ALL_OR_ONE
def test_the_density_integrates_to_one_and_is_that_of_the_sum(units):
    model = contrasted(units=units)
    grid = exact.quadrature(model)
    assert grid.log_z == pytest.approx(exact.log_z(model), abs=1e-5)  # one log Z for all contrasts
    assert float(grid.log_density.exp().sum()) * grid.cell == pytest.approx(1, abs=1e-6)
    v = torch.randn(20, 2, generator=generator(0)).double()
    contrasts, bare = model.contrasts, contrasted()
    bare.contrasts = UNIT
    scaled = torch.ones(2).double() if units is None else torch.tensor(units).double()
    parts = [
        w.log() - scaled.sum() * s.log() + exact.log_prob(bare, contrasts.centre + (v - contrasts.centre) / s**scaled)
        for w, s in zip(contrasts.log_weights.exp(), contrasts.log_scales.exp(), strict=True)
    ]
    torch.testing.assert_close(exact.log_prob(model, v), torch.stack(parts).logsumexp(0))
    torch.testing.assert_close(model.log_prob(v, exact.log_z(model)).detach(), exact.log_prob(model, v))


@ALL_OR_ONE
def test_quadrature_reaches_all_of_units_that_have_no_contrast(units):
    """All scales are below 1, and a unit that does not shrink has modes far apart."""
    model = contrasted(units=units)
    with torch.no_grad():
        model.W.mul_(6)
    model.contrasts = model.contrasts._replace(log_scales=torch.tensor([0.05, 0.08, 0.1]).log().double())
    assert exact.quadrature(model).log_z == pytest.approx(exact.log_z(model), abs=1e-4)


@ALL_OR_ONE
@pytest.mark.parametrize("centre", [-3.0, 3.0])
def test_quadrature_reaches_as_far_as_the_widest_contrast(units, centre):
    """On either side of its centre, with hardly anything at the others."""
    model = contrasted(units=units)
    scales, weights = torch.tensor([1.0, 2.0, 40.0]).double(), torch.tensor([1e-9, 1e-9, 1 - 2e-9]).double()
    contrasts = model.contrasts._replace(log_scales=scales.log(), log_weights=weights.log())
    model.contrasts = contrasts._replace(centre=torch.full((2,), centre).double())
    grid = exact.quadrature(model, max_spacing=2.0)
    assert grid.log_z == pytest.approx(exact.log_z(model), abs=1e-4)


@ALL_OR_ONE
def test_gradients_are_autograds(units):
    model = contrasted(units=units)
    v = torch.randn(10, 2, generator=generator(0)).double().requires_grad_()
    h = (torch.rand(10, 3, generator=generator(1)) > 0.5).double()
    for energy, found in (
        (model.free_energy(v), model.free_energy_grad(v)),
        (model.energy(v, h), model.energy_grad(v, h)),
    ):
        torch.testing.assert_close(torch.autograd.grad(energy.sum(), v)[0], found)


@ALL_OR_ONE
def test_many_rows_are_looked_at_scale_by_scale(units, monkeypatch):
    model, v = contrasted(units=units), torch.randn(3, 5, 2, generator=generator(0)).double()
    found = model.contrast(v), model.contrast(v[0, 0])
    monkeypatch.setattr(contrasts_module, "AT_ONCE", 1)
    torch.testing.assert_close(model.contrast(v), found[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][0, 0], found[1], rtol=1e-12, atol=1e-12)


@ALL_OR_ONE
def test_codes_and_reconstructions_are_means_over_the_contrast(units):
    model, v = contrasted(units=units), torch.randn(6, 2, generator=generator(0)).double()
    contrasts, energy = model.contrasts, model.freeze()
    scaled = torch.ones(2).double() if units is None else torch.tensor(units).double()
    joint = torch.stack(
        [
            w - scaled.sum() * s - energy.free_energy(contrasts.centre + (v - contrasts.centre) / (scaled * s).exp())
            for w, s in zip(contrasts.log_weights, contrasts.log_scales, strict=True)
        ]
    ).softmax(0)
    code, back = torch.zeros(6, 3).double(), torch.zeros(6, 2).double()
    torch.testing.assert_close(model.contrast(v).detach(), joint.T)
    for share, s in zip(joint, contrasts.log_scales.exp()[:, None] ** scaled, strict=True):
        h = energy.hidden_logits(contrasts.centre + (v - contrasts.centre) / s).sigmoid()
        code += share[:, None] * h
        back += share[:, None] * (contrasts.centre + s * (energy.visible_mean(h) - contrasts.centre))
    torch.testing.assert_close(model(v).detach(), code)
    torch.testing.assert_close(model.hidden_logits(v).sigmoid().detach(), code)
    torch.testing.assert_close(model.reconstruction(v).detach(), back)


@ALL_OR_ONE
def test_the_gradient_of_the_likelihood_is_autograds_and_draws_of_the_contrast_give_it(units):
    """Within the error over the draws; without removing the contrasts it is hundreds of errors away."""
    model, data = contrasted(units=units), 2 * torch.randn(50, 2, generator=generator(5)).double()
    found = exact_gradient(model, data)
    bare = contrasted()
    bare.contrasts = UNIT
    grid = exact.quadrature(bare)  # log Z as a function of the parameters
    value = -model.free_energy(data).mean() - (-bare.free_energy(grid.points)).logsumexp(0)
    by_autograd = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    with_z = torch.autograd.grad(-(-bare.free_energy(grid.points)).logsumexp(0), list(bare.parameters()))
    for (name, _), at_data, at_model in zip(model.named_parameters(), by_autograd, with_z, strict=True):
        torch.testing.assert_close(found[name], at_data + at_model, atol=1e-5, rtol=1e-5)
    energy, negative, rng = model.freeze(), exact.moments(model), generator(0)
    drawn = []
    for _ in range(300):
        u = model.at_unit_contrast(data, rng)
        positive = Moments.of(u, energy.hidden_logits(u).sigmoid())
        drawn.append(torch.cat([x.flatten() for x in gradient(energy, positive, negative).values()]))
    draws, expected = torch.stack(drawn), torch.cat([x.flatten() for x in found.values()])
    z = (draws.mean(0) - expected) / (draws.std(0) / 300**0.5 + 1e-12)  # units without contrast have no error
    assert_standard(z, n_cases=2)
    plain = gradient(energy, Moments.of(data, energy.hidden_logits(data).sigmoid()), negative)
    assert ((torch.cat([x.flatten() for x in plain.values()]) - expected) / (draws.std(0) / 300**0.5)).abs().max() > 50


@ALL_OR_ONE
def test_chains_from_rows_and_from_noise_leave_the_density_as_it_is(units):
    """Moments of v of 20,000 chains after one step from exact draws, and after 200 from noise."""
    model = contrasted(units=units)
    grid = exact.quadrature(model)
    exactly = [grid.mean(grid.points), grid.mean(grid.points.square()), grid.mean((grid.points**2).prod(1))]
    start = exact.sample(model, 20_000, seed=1)[0]
    stepped = sample(model, Gibbs(), v0=start, n_steps=1, seed=2).v
    noise = sample(model, Gibbs(), n_chains=20_000, n_steps=200, seed=3).v
    for v in (start, stepped, noise):
        for of, expected in zip((v, v.square(), (v**2).prod(1)), exactly, strict=True):
            assert_standard(mean_z(of, expected), n_cases=2 * 3 * 3)  # units, starts, moments
    unit = sample(model.freeze(), Gibbs(), n_chains=20_000, n_steps=200, seed=3).v
    assert ((unit.square().mean(0) - exactly[1]) / (unit.square().std(0) / 20_000**0.5)).abs().max() > 10


@ALL_OR_ONE
@pytest.mark.parametrize("noise_var", [0.0, 0.3])
def test_gaps_and_noise_are_filled_by_the_exact_posterior_mean(noise_var, units):
    """By quadrature over what is missing, of two-dimensional rows; in standard errors of 40 sets of chains."""
    model = contrasted(units=units)
    with torch.no_grad():
        model.W.mul_(2.5)  # so that either unit says much of the other
    y = torch.tensor([[0.8, math.nan], [math.nan, -2.5], [4.0, math.nan], [math.nan, 1.5]]).double()
    grid = exact.quadrature(model)
    axis = [grid.points[:, k].unique() for k in range(2)]
    q = Reference(torch.tensor([0.4, 0.6]), torch.tensor([[0.0, 0.0], [1.0, -1.0]]), torch.eye(2).expand(2, 2, 2) * 1.5)
    scale = Elementwise.of(torch.zeros(2), torch.ones(2))
    drawn = impute_columns(model, scale, q, y.repeat(40, 1), noise_var)
    every_mean, every_std = (x.view(40, *y.shape) for x in (drawn.mean, drawn.std))
    for row, known, missing in ((0, 0, 1), (1, 1, 0), (2, 0, 1), (3, 1, 0)):
        if noise_var == 0:
            line = torch.empty(len(axis[missing]), 2).double()
            line[:, known], line[:, missing] = y[row, known], axis[missing]
            weight = exact.log_prob(model, line)
            of = axis[missing]
        else:
            weight = grid.log_density - 0.5 * (grid.points[:, known] - y[row, known]).square() / noise_var
            of = grid.points[:, missing]
        weight = weight.softmax(0)
        mean = float(weight @ of)
        std = float((weight @ of.square() - mean**2).sqrt())
        means, variances = every_mean[:, row, missing], every_std[:, row, missing].square()
        assert abs(float(means.mean()) - mean) < z_bound(4 * 4) * float(means.std()) / 40**0.5 + 1e-3
        within = float(variances.mean()) + float(means.var())  # of all chains together
        assert within == pytest.approx(std**2, rel=0.05)


def test_columns_that_follow_from_others_say_nothing_of_the_contrast():
    """A column three times over is known no better than once: 40 sets of chains, against quadrature."""
    model = contrasted()
    model.contrasts = model.contrasts._replace(centre=torch.zeros(2).double())
    q = Reference(torch.ones(1), torch.zeros(1, 2), 1.5 * torch.eye(2)[None])
    to_x = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]]).double()
    to_z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]).double()
    scale = Whitening(torch.zeros(4).double(), torch.ones(4).double(), to_z, to_x, torch.zeros(4).double())
    y = torch.tensor([[0.0, math.nan, 0.0, 0.0]]).double()
    line = torch.linspace(-40, 40, 20_001).double()
    weight = exact.log_prob(model, torch.stack([torch.zeros_like(line), line], 1)).softmax(0)
    drawn = impute_columns(model, scale, q, y.repeat(40, 1)).mean[:, 1]
    assert_standard(mean_z(drawn, float(weight @ line)))


def test_chains_give_back_their_start_and_the_last_of_a_trajectory_is_that_of_a_walk():
    model = contrasted()
    v0 = torch.randn(30, 2, generator=generator(0)).double()
    assert torch.equal(sample(model, Gibbs(), v0=v0, n_steps=0).v, v0)
    whole, parts = (sample(model, Gibbs(), v0=v0, n_steps=8, keep_at=at).v[-1] for at in ([8], [1, 3, 8]))
    assert torch.equal(whole, parts)
    observed = Conditional(torch.tensor([[1.0, math.nan]]))
    for sampler in (observed, ParallelTempering(sampler=observed)):
        with pytest.raises(ValueError, match=r"grbm\.fitting\.impute\.impute"):
            sample(model, sampler, n_chains=1)
    with pytest.raises(ValueError, match=r"grbm\.fitting\.impute\.impute"):
        impute(model, observed.observed)
    with torch.no_grad():
        model.W.mul_(200)
    assert model.hidden_logits(v0).isfinite().all()


@ALL_OR_ONE
def test_files_units_and_encoders_know_the_contrasts(tmp_path, units):
    model, v = contrasted(units=units), torch.randn(7, 2, generator=generator(0)).double()
    model.save_pretrained(tmp_path / "m")
    again = GRBM.from_pretrained(tmp_path / "m")
    assert torch.equal(again.free_energy(v), model.free_energy(v))
    assert "n_contrasts=3" in repr(again)
    moved = model.rescaled([1.0, -2.0], [3.0, 0.5])
    x = torch.tensor([1.0, -2.0]) + v * torch.tensor([3.0, 0.5])
    expected = exact.log_prob(model, v) - math.log(1.5)
    torch.testing.assert_close(exact.log_prob(moved, x), expected)
    torch.testing.assert_close(Encoder(model)(v.float()), model(v).detach().float(), atol=1e-5, rtol=1e-4)
    turn = torch.linalg.qr(torch.randn(model.n_visible, model.n_visible, generator=generator(5)).double()).Q
    whitened = Encoder(model, torch.zeros(model.n_visible), torch.ones(model.n_visible), turn)
    torch.testing.assert_close(whitened((v.double() @ turn.T).float()), model(v).detach().float(), atol=1e-5, rtol=1e-4)
    known = dict(model.state_dict())
    with pytest.raises(UserError, match="contrasts"):
        GRBM.from_parameters(known | {"contrast_centre": torch.zeros(5)})
    with pytest.raises(UserError, match=r"W of shape \(4, 0\)"):
        GRBM.from_parameters(known | {"W": torch.zeros(4, 0), "b": torch.zeros(0)})
    with pytest.raises(ValueError, match="no mixture"):
        exact.mixture(model)


def test_scaled_gaussians_are_found_and_not_where_there_is_one():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 6)) * rng.choice([0.5, 2.0], (20_000, 1), p=[0.7, 0.3])
    squares = torch.from_numpy((x**2).sum(1))
    log_weights, log_scales, centre, units = scaled_gaussians(squares, torch.zeros(6), 2)
    assert units is None
    assert not centre.any()
    gain = (log_weights - 6 * log_scales - 0.5 * squares[:, None] / (2 * log_scales).exp()).logsumexp(1) + 0.5 * squares
    assert log_scales.exp().tolist() == pytest.approx([0.5, 2.0], rel=0.03)
    assert log_weights.exp().tolist() == pytest.approx([0.7, 0.3], abs=0.02)
    assert gain.mean() > 1

    def normal(z: torch.Tensor) -> torch.Tensor:
        return 0.5 * z.square().sum(-1)

    assert ask_for_contrasts(torch.from_numpy(x[:2000]), normal)
    assert not ask_for_contrasts(torch.from_numpy(rng.normal(size=(2000, 6))), normal)


def test_weights_of_contrasts_follow_their_shares_and_none_is_lost():
    """Half-way to the mean responsibilities at each step; a scale that no row has is left with a millionth."""
    v = torch.randn(2000, 6, generator=generator(0)).double()
    contrasts = Contrasts(
        torch.tensor([0.5, 0.5]).log().double(), torch.tensor([1.0, 30.0]).log().double(), torch.zeros(6)
    )

    def energy(u: torch.Tensor) -> torch.Tensor:
        return 0.5 * u.square().sum(-1)

    first = contrasts.followed(v, energy).log_weights.exp()
    torch.testing.assert_close(first, torch.tensor([0.75, 0.25]).double(), rtol=0, atol=1e-3)  # of the wide one 0.000
    for _ in range(40):
        contrasts = contrasts.followed(v, energy)
    assert float(contrasts.log_weights[1].exp()) == pytest.approx(1e-6, rel=1e-3)
    assert float(contrasts.log_weights.exp().sum()) == pytest.approx(1)


@ALL_OR_ONE
def test_scales_climb_the_likelihood_where_they_are_learned(units):
    """The pull of a row on a scale is autograd's gradient, and steps go to where it is zero."""
    model, v = contrasted(units=units), 3 * torch.randn(400, 2, generator=generator(0)).double()
    energy, contrasts = model.freeze(), model.contrasts

    def slope_of(log_scales: torch.Tensor) -> torch.Tensor:
        log_scales = log_scales.clone().requires_grad_()
        value = -contrasts._replace(log_scales=log_scales).free_energy(v, energy.free_energy).mean()
        return torch.autograd.grad(value, log_scales)[0]

    n_scaled = 2 if units is None else 1
    share = contrasts.log_joint(v, energy.free_energy).softmax(1)
    pulls = torch.stack(
        [contrasts.pull(contrasts.at(v, s), energy.free_energy_grad) for s in contrasts.log_scales.exp()], 1
    )
    torch.testing.assert_close((share * (pulls - n_scaled)).mean(0), slope_of(contrasts.log_scales))
    assert contrasts.followed(v, energy.free_energy).log_scales is contrasts.log_scales
    assert float(slope_of(contrasts.log_scales).abs().max()) > 0.1
    for _ in range(400):
        contrasts = contrasts.followed(v, energy.free_energy, energy.free_energy_grad)
    assert float(slope_of(contrasts.log_scales).abs().max()) < 1e-3


def heavy(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, size=(n, 1)) * np.random.default_rng(seed + 1).normal(size=(n, 4))


def test_heavy_tails_have_contrasts_by_default_and_clusters_have_none():
    assert whiten(heavy(1000, 0)).contrasts.n > 1
    rng = np.random.default_rng(0)
    clusters = 4 * rng.normal(size=(5, 3))[rng.integers(0, 5, 1000)] + 0.5 * rng.normal(size=(1000, 3))
    ring = rng.normal(size=(1000, 2))
    for x in (clusters, ring, ring / np.linalg.norm(ring, axis=1, keepdims=True) * 3 + 0.1 * ring):
        assert whiten(x).contrasts.n == 1
    assert len(whiten(clusters, n_contrasts=4).contrasts.log_scales) == 4


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_looks")
def test_the_estimator_learns_heavy_tails_that_no_machine_of_one_contrast_does():
    """Held-out nats of 4,000 rows, paired: a tenth of a nat beyond chance; and its samples have those tails."""
    x, test = heavy(1000, 0), heavy(4000, 7)
    rbm = GaussianBernoulliRBM(32, n_iter=60, random_state=0).fit(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whitening, "NUMBER", 1)
        plain = GaussianBernoulliRBM(32, n_iter=60, random_state=0).fit(x)
    assert plain.to_model().contrasts.n == 1
    apart = rbm.score_samples(test) - plain.score_samples(test)
    assert float(mean_z(apart - 0.1, 0.0)) > 4
    drawn = rbm.sample(4000, random_state=1)
    kurtosis = [float(np.mean((r / r.std(0)) ** 4)) for r in (drawn, plain.sample(4000, random_state=1))]
    assert kurtosis[0] > kurtosis[1] + 2 > 4
    codes = rbm.transform(test[:10])
    assert codes.shape == (10, 32)
    shares = rbm.contrast_proba(test)
    assert shares.shape == (4000, 12)
    far = np.linalg.norm(test - test.mean(0), axis=1)
    assert np.corrcoef(np.log(far), shares @ np.log(rbm.contrasts_[:, 0]))[0, 1] > 0.9
    assert plain.contrast_proba(test).tolist() == [[1.0]] * 4000
    gappy = test[:50].copy()
    gappy[:, 1] = np.nan
    assert np.isfinite(rbm.impute(gappy)).all()
    again = rbm.set_params(warm_start=True, n_iter=5).fit(x)
    assert again.contrasts_.shape == (12, 2)
    assert again.contrasts_[:, 1].sum() == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="was 12 in learning"):
        rbm.set_params(n_contrasts=3).fit(x)
    with pytest.raises(ValueError, match="n_contrasts=3"):
        GaussianBernoulliRBM(8, n_contrasts=3, whiten=False).fit(x)
    assert GaussianBernoulliRBM(8, n_contrasts=3, n_iter=2).fit(x).contrasts_.shape == (3, 2)


@pytest.mark.whole
@pytest.mark.usefixtures("few_looks")
def test_a_run_keeps_its_contrasts_and_resumes_to_the_same_bytes(tmp_path):
    """Left before the rounds, and again among them."""

    class Left(Exception):
        pass

    def leave(at: int, update: int) -> None:
        if update == at:
            raise Left

    np.save(tmp_path / "x.npy", heavy(600, 0))
    usual = PRESETS["array"].config
    config = replace(
        usual,
        data=tmp_path / "x.npy",
        train=replace(usual.train, n_updates=65, rounds=6),
        model=replace(usual.model, n_hidden=12),
        checkpoint=replace(usual.checkpoint, updates=20 + 1),
    )
    train(config, tmp_path / "whole")
    for at in (45, 63):
        with pytest.raises(Left):
            train(config, tmp_path / "parts", on_update=lambda u, _, at=at: leave(at, u), resume=at == 63)
    seen: list[int] = []
    train(config, tmp_path / "parts", resume=True, on_start=lambda run: seen.append(run.state.update))
    assert seen == [63]
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    model = read(tmp_path / "whole").model
    assert model.contrasts.n > 1
    assert abs(float(model.contrasts.log_weights.exp().sum()) - 1) < 1e-5


def test_one_contrast_is_the_machine_itself_and_any_number_can_be_asked_for(tmp_path):
    plain = GRBM(3, 4)
    assert plain.contrasts is UNIT
    assert plain.contrast(torch.zeros(5, 3)).tolist() == [[1.0]] * 5
    assert set(plain.state_dict()) == {"W", "b", "mu", "log_var"}
    v = torch.randn(5, 3, generator=generator(0))
    assert plain.at_unit_contrast(v, generator(0)) is v
    np.save(tmp_path / "x.npy", heavy(300, 0))
    config = replace(PRESETS["array"].config, data=tmp_path / "x.npy")
    asked = {"dataset.standardise": "pixel", "model.n_hidden": 8, "model.contrasts": 5, "train.n_updates": 40}
    train(config, tmp_path / "run", asked=asked)
    contrasts = read(tmp_path / "run").model.contrasts
    assert contrasts.n > 1
    assert len(contrasts.log_weights) == 5
    gappy = heavy(20, 5)
    gappy[::2, 1] = np.nan
    filled, std = impute_rows(read(tmp_path / "run"), gappy)
    assert np.isfinite(filled).all()
    assert (std[::2, 1] > 0).all()


def test_a_run_has_contrasts_of_the_columns_that_were_asked_for(tmp_path, capsys):
    np.save(tmp_path / "x.npy", heavy(300, 0))
    start = ["train", "array", "--data", str(tmp_path / "x.npy"), "--train.n-updates", "40", "--train.rounds", "0"]
    start += ["--model.n-hidden", "8", "--no-figures"]
    pixel, several = ["--dataset.standardise", "pixel"], ["--model.contrasts", "5"]
    for wrong, says in (
        ([*pixel, "--model.contrast-units", "1:", "--model.contrasts", "1"], "several contrasts"),
        ([*pixel, "--train.contrast-scales", "--model.contrasts", "1"], "several contrasts"),
        ([*several, "--model.contrast-units", "1:"], "does not go with whitening"),
        ([*pixel, *several, "--model.contrast-units", "two"], "FIRST:LAST"),
        ([*pixel, *several, "--model.contrast-units", "9:"], "none of the 4"),
    ):
        assert cli.main([*start, *wrong, "--out", str(tmp_path / "wrong")]) == 2
        assert says in capsys.readouterr().err
    out = tmp_path / "run"
    chosen = [*pixel, *several, "--model.contrast-units", "1:3", "--train.contrast-scales", "--out", str(out)]
    assert cli.main([*start, *chosen]) == 0
    run = read(out)
    first = run_folder.read_data(out).frame.contrasts
    assert run.model.contrasts.n > 1
    assert run.model.contrasts.units.tolist() == first.units.tolist() == [0, 1, 1, 0]
    assert not torch.equal(run.model.contrasts.log_scales, first.log_scales)
    z = run.transform(run.load_data().train)
    expected = scaled_gaussians(z[:, 1:3].square().sum(1), torch.zeros(2), 5)  # of these two columns alone
    torch.testing.assert_close(first.log_scales.double(), expected.log_scales, atol=1e-3, rtol=1e-3)
    capsys.readouterr()
    assert cli.main(["encode", str(out), str(tmp_path / "x.npy")]) == 0
    assert "which contrast" in capsys.readouterr().out
    shares = np.load(out / "codes" / "x.contrast.npy")
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    assert shares.shape == (300, 5)
    far = (run.transform(torch.from_numpy(heavy(300, 0)).float())[:, 1:3].norm(dim=1)).numpy()
    assert np.corrcoef(far, shares @ np.arange(5))[0, 1] > 0.3  # scales are in order


@pytest.mark.parametrize("scales", [False, True])
def test_learned_weights_come_near_the_true_ones(scales):
    """Rows of one machine at two contrasts, learned with those scales, or with those to be learned too."""
    truth = contrasted(3, 4)
    truth.contrasts = Contrasts(
        torch.tensor([0.8, 0.2]).double().log(), torch.tensor([0.5, 3.0]).double().log(), torch.zeros(3).double()
    )
    data = exact.sample(truth, 4000, seed=1)[0].float()
    model = GRBM(3, 4)
    model.load_state_dict({name: p for name, p in truth.float().state_dict().items() if "contrast" not in name})
    half = torch.full((2,), -math.log(2))
    model.contrasts = truth.contrasts._replace(log_weights=half)
    if scales:
        model.contrasts = model.contrasts._replace(log_scales=torch.tensor([0.8, 2.0]).log())
    state = TrainState(model, torch.optim.SGD(model.parameters(), 1e-3))
    options = FitOptions(1000 if scales else 300, average_decay=0.9, contrast_scales=scales)
    for _ in fit(state, data, PCD(Gibbs(), 5, probabilities=True), options):
        pass
    for each in (state.model, state.average):
        assert each.contrasts.log_weights.exp().tolist() == pytest.approx([0.8, 0.2], abs=0.05)
        assert each.contrasts.log_scales.exp().tolist() == pytest.approx([0.5, 3.0], abs=0.3 if scales else 1e-6)


def test_a_base_of_several_contrasts_scores_as_its_sum():
    base = Base(torch.tensor([0.5, 0.0]), torch.tensor([1.0, 2.0]))
    rows = torch.randn(30, 2, generator=generator(0))
    contrasts = Contrasts(torch.tensor([0.3, 0.7]).log(), torch.tensor([0.5, 2.0]).log(), base.mean)
    normal = [
        torch.distributions.Normal(base.mean.double(), s * base.var.double().sqrt()).log_prob(rows.double()).sum(1)
        for s in (0.5, 2.0)
    ]
    expected = torch.logsumexp(torch.stack([math.log(0.3) + normal[0], math.log(0.7) + normal[1]]), 0).mean()
    frame = Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), base, contrasts=contrasts)
    assert float(gaussian_log_prob(frame, rows).mean()) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("rounds", [0, 1])
def test_learning_sees_rows_at_unit_contrast(rounds):
    """All rows are at scale 10, so hidden units and gradients are those of rows a tenth as long."""
    model = contrasted(3, 4).float()
    model.contrasts = Contrasts(torch.tensor([1e-30, 1.0]).log(), torch.tensor([1.0, 10.0]).log(), torch.zeros(3))
    rows = 10 * exact.sample(contrasted(3, 4), 64, seed=1)[0].float()
    expected = model.freeze().hidden_logits(rows / 10).sigmoid().mean(0)
    state = TrainState(model, torch.optim.SGD(model.parameters(), 1e-3))
    objective = PCD(Gibbs(), 5, n_chains=64, probabilities=True)
    metrics = next(iter(fit(state, rows, objective, FitOptions(1, batch_size=64, rounds=rounds))))
    torch.testing.assert_close(metrics.data_mean_h, expected, atol=1e-5, rtol=0)


def test_annealing_from_both_ends_is_that_of_the_machine():
    """Contrasts have no part in log Z, nor in the exact samples where chains go back."""
    model = contrasted().float()
    with torch.no_grad():
        model.W.mul_(4)
    truth = exact.log_z(model)
    every = [ais.log_z(model, n_steps=400, n_chains=400, seed=seed) for seed in range(8)]
    assert all(found.error < 0.05 for found in every)
    error = math.hypot(*(found.error for found in every))
    assert_standard(sum(found.log_z - truth for found in every) / error)


def test_one_gaussian_is_enough_where_a_machine_is_hardly_better_and_no_clusters_were_found():
    base, rows = Base(torch.zeros(2), torch.ones(2)), torch.randn(400, 2, generator=generator(0))
    model = GRBM(2, 3, seed=1)  # some density, whose differences from the Gaussian vary by row
    one, two = (Reference(torch.ones(k) / k, torch.zeros(k, 2), torch.eye(2).expand(k, 2, 2)) for k in (1, 2))
    frame = Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), base, one)
    plain = float(gaussian_log_prob(frame, rows).mean())

    def enough(model, above, frame):
        """Whether a full-covariance Gaussian is, where the model has so much more; all rows are held out."""
        log_z = float(-model.free_energy(rows).double().mean().detach()) - plain - above
        return is_gaussian_enough(frame, model, Nats(1, plain + above, 0.1, ais.known(log_z)), HeldOut(rows), rows[:0])

    bare = gaussian_(GRBM(2, 3), *base)  # no row differs, so that what is little alone decides
    assert enough(bare, 0.005, frame)
    assert not enough(bare, 0.02, frame)
    for reference, above, expected in (
        (one, 0.005, True),
        (one, 1.0, False),
        (one, -0.1, True),
        (two, 0.005, False),
        (two, -0.005, True),
    ):
        assert enough(model, above, replace(frame, reference=reference)) == expected


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("few_looks")
def test_the_gaussian_that_is_kept_is_that_of_all_rows():
    """Its mean is theirs, to which that of the rows learned from comes no nearer than 0.001; so is its density."""
    mix = np.array([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.0, 0.0, 0.5]])
    x = np.random.default_rng(2).normal(size=(300, 3)) @ mix + [1.0, 2.0, 3.0]
    rbm = GaussianBernoulliRBM(24, n_rounds=0, random_state=0).fit(x)
    assert rbm.is_gaussian_
    assert rbm.log_partition().method == "exact", "none of the 24 is at work"
    np.testing.assert_allclose(rbm.intercept_visible_, x.mean(0), atol=1e-5)
    np.testing.assert_allclose(rbm.variances_, x.var(0), rtol=1e-4)
    likeliest = -0.5 * np.linalg.slogdet(2 * np.pi * np.e * np.cov(x.T, bias=True))[1]
    assert rbm.score(x) == pytest.approx(likeliest, abs=0.005)
    learned_from = held_out(300, 0.1, rbm._learned_with)[0].numpy()
    assert np.abs(x[learned_from].mean(0) - x.mean(0)).max() > 1e-3
    assert rbm.set_params(warm_start=True, n_iter=2).fit(x).n_updates_ > 1500


def test_more_hidden_units_in_the_plane_alone():
    def n_hidden(n_rows, n_units, asked=None):
        return resolve({"model.n_hidden": asked}, Facts(n_rows, n_units, True)).model.n_hidden

    assert [n_hidden(2000, n) for n in (1, 2, 3)] == [200, 200, 128]
    assert n_hidden(300, 2) == 75
    assert n_hidden(2000, 2, 17) == 17
    lengths = [resolve({}, Facts(15, n, suits_whitening=False)).model.anchor_length for n in (4, 100)]
    assert lengths == [0.1875, 0.3], "of weights that all together vary as the columns do"


def skewed(n: int) -> torch.Tensor:
    """Rows (n, 3) about (1, 2, 3), correlated; seven in ten at half the scale, the rest at twice."""
    rng = np.random.default_rng(0)
    scale = rng.choice([0.5, 2.0], (n, 1), p=[0.7, 0.3])
    return torch.from_numpy([1.0, 2.0, 3.0] + scale * (rng.normal(size=(n, 3)) @ [[1, 0.9, 0], [0, 0.3, 0], [0, 1, 2]]))


def test_the_elliptical_fit_is_where_its_log_posterior_has_no_slope():
    """By autograd, in centre, covariance, scales and weights at once; one row of the whole covariance is the prior."""
    x = skewed(500)
    contrasts, covariance = elliptical(x, 2, x.T.cov(correction=0))
    parts = [contrasts.centre, torch.linalg.cholesky(covariance), contrasts.log_scales, contrasts.log_weights]
    centre, factor, log_scales, log_weights = (part.clone().requires_grad_() for part in parts)
    factor_ = factor.tril()
    log_det = 2 * factor_.diagonal().log().sum()
    squares = torch.linalg.solve_triangular(factor_, (x - centre).T, upper=False).square().sum(0)
    joint = log_weights.log_softmax(0) - 3 * log_scales - 0.5 * squares[:, None] / (2 * log_scales).exp()
    spread = torch.linalg.solve_triangular(factor_, torch.linalg.cholesky(x.T.cov(correction=0)), upper=False)
    prior = -0.5 * (log_det + spread.square().sum())
    (joint.logsumexp(1).sum() - 0.5 * len(x) * log_det + prior).backward()
    for part in (centre, factor, log_scales, log_weights):
        assert part.grad is not None
        assert float(part.grad.abs().max()) < 0.05  # of 500 rows


def test_the_elliptical_fit_finds_centre_shape_and_scales_in_spite_of_rows_far_out():
    """Ten rows of 5,000 lie 100 out on one axis, and make its variance over all rows fifteen times the true one."""
    x = skewed(5000)
    x[:10, 0] += 100.0
    contrasts, covariance = elliptical(x, 4, x.T.cov(correction=0))
    A = torch.tensor([[1, 0.9, 0], [0, 0.3, 0], [0, 1, 2]]).double()
    shape = A.T @ A
    torch.testing.assert_close(contrasts.centre, torch.tensor([1.0, 2.0, 3.0]).double(), rtol=0, atol=0.05)
    found, true, all_rows = (c / torch.linalg.det(c) ** (1 / 3) for c in (covariance, shape, x.T.cov()))
    torch.testing.assert_close(found, true, rtol=0, atol=0.15)
    assert float((all_rows - true).abs().max()) > 1


def test_contrasts_reach_further_than_all_rows_learned_from():
    """Three of twelve go on to twice the furthest row, with the least weight there is: a row four times as far out is
    not impossible, and what is learned from is as likely as without them."""
    x = torch.from_numpy(heavy(2000, 3))
    found, covariance = elliptical(x, 12, x.T.cov(correction=0))
    factor = torch.linalg.cholesky(covariance)

    def energy(u: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.linalg.solve_triangular(factor, (u - found.centre).mT, upper=False).square().sum(-2)

    is_rare = found.log_weights.exp() < 2e-6
    nearer = Contrasts(found.log_weights[~is_rare], found.log_scales[~is_rare], found.centre)
    rare, common = (
        found.log_scales[is_rare],
        nearer.log_scales[nearer.log_weights.exp() > 0.03 * nearer.log_weights.exp().max()].max(),
    )
    assert len(rare) == 3
    assert float(rare[-1].exp()) == pytest.approx(2 * float((2 * energy(x).max() / 4).sqrt()))
    torch.testing.assert_close(rare, torch.linspace(float(common), float(rare[-1]), 4, dtype=torch.float64)[1:])
    assert bool((found.log_scales.diff() > 0).all())
    far = 4 * x[energy(x).argmax()][None]
    assert float(nearer.free_energy(far, energy) - found.free_energy(far, energy)) > 30
    assert float((found.free_energy(x, energy) - nearer.free_energy(x, energy)).mean()) < 1e-4
    contrasts = whiten(x.numpy()).contrasts
    assert contrasts.n > 1
    assert contrasts.n == 12


@pytest.mark.parametrize(
    "apart", [0.0, pytest.param(4.0, marks=pytest.mark.whole)]
)  # two clusters, so far from the centre
def test_rows_of_one_contrast_are_white_about_the_centre_where_tails_are_heavy(apart):
    """The centre is that of the rows at one contrast in the new coordinates; without clusters these are white there."""
    rng = np.random.default_rng(1)
    unit = rng.normal(size=(4000, 4)) + apart * rng.choice([-1, 1], (4000, 1)) * [1, 1, 0, 0]
    x = rng.standard_t(3, size=(4000, 1)) * (unit @ rng.normal(size=(4, 4))) + 20
    x[:40] += 300 * rng.normal(size=4)
    found = whiten(x, fine=apart > 0)
    assert found.contrasts.n > 1
    z = found.transform(torch.from_numpy(x)).float()
    centre = found.transform(torch.full((1, 4), 20.0).double()).float()[0]
    width = found.base.var.sqrt()
    assert float(((found.contrasts.centre - centre) / width).abs().max()) < 0.1
    assert float((centre / width).abs().max()) > 0.3  # rows far out pull at the mean of all
    if apart == 0:
        drawn = found.contrasts.removed(z, lambda u: 0.5 * (u - found.contrasts.centre).square().sum(-1), generator(0))
        torch.testing.assert_close(drawn.T.cov(), torch.eye(4), rtol=0, atol=0.15)
