"""Benchmarks: densities on natural images integrate to one, baselines step as published, probes read what is there."""

import io
import itertools
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import Pipeline

from benchmarks import (
    denoising,
    digits_pipeline,
    flows,
    generators,
    learning,
    linear_probe,
    mnist_likelihood,
    natural_patches,
    patch_models,
    patches,
    scores,
    wide_tables,
)
from grbm import GRBM
from grbm.core.randomness import generator
from grbm.data.images import load_digits
from grbm.evaluate import exact
from grbm.model.initialise import sparse_
from tests.helpers import assert_standard, contrasted, mean_z


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Smooth random pictures."""
    path = tmp_path_factory.mktemp("photographs") / "pictures.zip"
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(20):
            coarse = Image.fromarray(rng.integers(0, 255, (12, 14), dtype=np.uint8))
            content = io.BytesIO()
            coarse.resize((60, 50), Image.Resampling.BICUBIC).save(content, "png")
            archive.writestr(f"{k}.png", content.getvalue())
    return path


@pytest.fixture(scope="module")
def data(photographs):
    return patches.load(photographs, 3000, 1000)


def test_patches_are_white_and_photographs_are_kept_apart(data):
    np.testing.assert_allclose(np.cov(data.train[:, 1:].T, bias=True), np.eye(195), atol=1e-6)
    assert abs(np.corrcoef(data.train[:, :2].T)[0, 1]) < 0.1
    assert data.test.shape == (1000, 196)
    assert len(set(data.test_photograph)) <= 4


@pytest.mark.parametrize("protocol", patches.SIDES)
def test_whitened_rows_lead_back_to_pixels_and_their_volume_is_known(photographs, protocol):
    data = patches.load(photographs, 3000, 500, protocol=protocol)
    pixels = data.test @ data.to_pixels
    assert np.abs(pixels.sum(1)).max() < 1e-6
    np.testing.assert_allclose((pixels @ data.to_white)[:, data.first :], data.test[:, data.first :], atol=1e-6)
    if protocol == "63":
        assert data.test.shape == (500, 63)
        scaled = data.train @ data.to_pixels[:, :63] / 256
        covariance = np.cov(scaled.T)
        found = patch_models.gaussian(data)(data.train).mean() + data.log_det
        assert found == pytest.approx(
            -0.5 * (63 * np.log(2 * np.pi * np.e) + np.linalg.slogdet(covariance)[1]), abs=0.1
        )


@pytest.mark.whole
def test_reference_densities_are_normalised(data):
    """E over draws of p of q/p is 1, for each density q against a p of the same kind that is slightly wider."""
    rng = np.random.default_rng(1)
    wide = 1.02
    x = wide * rng.standard_normal((40_000, 196))
    log_p = -0.5 * ((x / wide) ** 2).sum(1) - 196 * (np.log(wide) + 0.5 * np.log(2 * np.pi))
    white = data._replace(train=rng.standard_normal((60_000, 196)))
    for density, tolerance in (
        (patch_models.gaussian(white), 0.1),
        (patch_models.scale_mixture(white, 2), 0.1),
    ):
        assert np.exp(density(x) - log_p).mean() == pytest.approx(1, abs=tolerance)


@pytest.mark.whole
def test_ica_finds_independent_components_and_their_shape(data):
    """Laplace sources, turned: the density that FastICA assumes falls short as quadrature says, the fitted one not."""
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((196, 196)))[0]
    rows, fresh = (rng.laplace(scale=0.5**0.5, size=(n, 196)) @ turn for n in (10_000, 4000))
    hyperbolic, fitted = patch_models.ica(data._replace(train=rows))
    s = np.linspace(0, 30, 300_001)
    laplace = 2**0.5 * np.exp(-(2**0.5) * s)  # of |s|
    expected = np.trapezoid(laplace * -np.log(2 * np.cosh(0.5 * np.pi * s)), s)
    assert hyperbolic(fresh).mean() / 196 == pytest.approx(expected, abs=0.02)
    assert fitted(fresh).mean() / 196 == pytest.approx(-1 - 0.5 * np.log(2), abs=0.02)


def test_the_mixture_of_scales_finds_a_known_scale(data):
    """Rows of one length have one scale, length²/195, and the density at the origin then follows."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((500, 196))
    rows[:, 1:] *= np.sqrt(195 * 0.4) / np.linalg.norm(rows[:, 1:], axis=1, keepdims=True)
    density = patch_models.scale_mixture(data._replace(train=rows), 3)
    expected = -0.5 * (195 * np.log(2 * np.pi * 0.4) + np.log(2 * np.pi))
    assert density(np.zeros((1, 196)))[0] == pytest.approx(expected, abs=1e-6)


def test_the_published_step_clamps_columns_and_moves_sigma():
    """Against the update written out: rates 0.1, 0.1 and 0.01, ΔW columns at most a hundredth of the longest patch."""
    model = GRBM(3, 2)
    with torch.no_grad():
        model.log_var.copy_(torch.tensor([0.0, 0.5, -0.5]))
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    optimizer = natural_patches.Melchior(model, longest=2.0)
    model.W.grad = torch.tensor([[3.0, 0.01], [4.0, 0.0], [0.0, 0.0]])
    model.b.grad, model.mu.grad = torch.tensor([1.0, -2.0]), torch.ones(3)
    model.log_var.grad = torch.tensor([1.0, -1.0, 2.0])
    optimizer.step()
    step = (model.W - before["W"]).detach()
    torch.testing.assert_close(step[:, 0], -0.02 * torch.tensor([0.6, 0.8, 0.0]))  # clamped to 0.01 · 2
    torch.testing.assert_close(step[:, 1], torch.tensor([-0.001, 0.0, 0.0]))  # not clamped
    torch.testing.assert_close(model.b.detach(), before["b"] - torch.tensor([0.1, -0.2]))
    torch.testing.assert_close(model.mu.detach(), before["mu"])
    sigma = (0.5 * before["log_var"]).exp()
    expected = sigma - 0.01 * 2 * torch.tensor([1.0, -1.0, 2.0]) / sigma
    torch.testing.assert_close((0.5 * model.log_var).exp().detach(), expected)


def test_recipes_take_the_steps_that_they_are_named_for(data):
    """The first update moves most weights by the rate of Adam, or W by 1.21 · 0.3 · 0.5 at most along a direction."""
    few = data._replace(train=data.train[:500])
    start = GRBM(196, 196)
    sparse_(start, torch.from_numpy(few.train).float(), seed=0)
    recipes = natural_patches.recipes(196, 1, wide=False)
    moved = {}
    for name in ("GRBM 196, PCD (ours)", "GRBM 196, PCD by spectral steps"):
        model = recipes[name]._replace(n_updates=1).train(few, seed=0)
        moved[name] = (model.W - start.W).detach()
    adam, spectral = moved.values()
    assert float(adam.abs().median()) == pytest.approx(0.01, rel=1e-3)
    assert 1 < float(torch.linalg.matrix_norm(spectral, 2)) / (0.3 * 0.5) < 1.22


def test_errors_are_those_over_photographs():
    """Patches of a photograph that are all alike are worth one."""
    rng = np.random.default_rng(0)
    values, photograph = rng.standard_normal(40), np.repeat(np.arange(40), 50)
    mean, error = scores.by_group(np.repeat(values, 50), photograph)
    assert mean == pytest.approx(values.mean())
    assert error == pytest.approx(values.std() / 40**0.5)


@pytest.mark.whole
def test_a_quick_look_runs_and_takes_up_what_is_there(photographs, tmp_path, monkeypatch, capsys):
    command = ["natural_patches", "--data", str(photographs), "--out", str(tmp_path), "--shrink", "200", "--seeds", "1"]
    monkeypatch.setattr("sys.argv", command)
    real, recipes = natural_patches.ais.log_z, natural_patches.recipes
    monkeypatch.setattr(natural_patches.ais, "log_z", lambda *a, **k: real(*a, **k, n_steps=20, n_chains=20))
    monkeypatch.setattr(natural_patches, "recipes", lambda N, shrink, wide: recipes(N, 20 * shrink, wide))
    monkeypatch.setattr(natural_patches, "OTHER", 1200)  # six updates
    monkeypatch.setattr(natural_patches, "CHAINS", 1)
    natural_patches.main()
    first = capsys.readouterr().out
    assert "ours - Gaussian" in first
    monkeypatch.setattr(natural_patches.Recipe, "train", None)  # nothing is trained again
    natural_patches.main()
    again = [line for line in first.splitlines() if "on validation" not in line]
    assert capsys.readouterr().out.splitlines() == again


@pytest.mark.whole
def test_an_autoregressive_flow_is_a_density_in_which_no_number_sees_itself():
    """Of two numbers it integrates to one, with weights far from those that it starts with."""
    model = flows.AutoregressiveFlow(2, n_layers=2, n_hidden=16, seed=0)
    with torch.no_grad():
        for layer in model.layers:
            layer.last.weight.mul_(8)
        axis = torch.linspace(-120, 120, 2401)  # its tails are long
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
        density = model.log_prob(grid).exp()
        normal = (-0.5 * grid.square().sum(1)).exp() / (2 * np.pi)
    assert 0.5 * float((density - normal).abs().sum()) * 0.1**2 > 0.3  # total variation
    assert float(density.sum()) * 0.1**2 == pytest.approx(1, abs=2e-3)
    x = torch.randn(7, requires_grad=True, generator=generator(0))
    wide = flows.Made(7, 30, generator(1))
    with torch.no_grad():
        wide.last.weight.mul_(100)
    seen = torch.autograd.functional.jacobian(lambda x: wide(x[None])[0][0], x)
    assert (seen.triu() == 0).all()
    assert (seen.tril(-1) != 0).sum() > 15  # of 21


@pytest.mark.parametrize("name", wide_tables.NAMES)
def test_made_tables_are_as_wide_as_their_names_say(name):
    train, test = wide_tables.wide(name)
    assert train.shape[1] == test.shape[1] == int(name.rpartition("-")[2]) > 40
    assert len(test) == 2000
    assert np.isfinite(np.vstack([train, test])).all()
    assert np.array_equal(train, wide_tables.wide(name)[0])
    few = [len(np.unique(column)) == 2 for column in train.T]
    assert sum(few) == (15 if name == "two-valued-60" else 0)


@pytest.mark.whole
def test_a_flow_learns_and_keeps_what_was_best_on_unseen_rows(monkeypatch):
    """In a thousand updates, told by a clock that each of them moves by as much."""
    ticks = itertools.count()
    monkeypatch.setattr(learning, "time", SimpleNamespace(process_time=lambda: next(ticks) / 1000))
    rng = np.random.default_rng(0)
    first = rng.standard_normal((4000, 1))
    x = torch.from_numpy(np.hstack([first, first**2 + 0.2 * rng.standard_normal((4000, 1))])).float()
    model = flows.AutoregressiveFlow(2, n_layers=2, n_hidden=32, seed=0)
    before = float(model.log_prob(x[3000:]).mean().detach())
    flows.learn_flow(model, x[:3000], x[3000:], 1.0, 0)
    exactly = -0.5 - 0.5 * np.log(2 * np.pi) - 0.5 - 0.5 * np.log(2 * np.pi) - np.log(0.2)
    assert before < exactly - 2
    assert float(model.log_prob(x[3000:]).mean().detach()) > exactly - 0.25


@pytest.mark.parametrize("kind", ["logits", "normal scores"])
def test_coordinates_of_pixels_keep_their_volume(kind):
    """The slope of y is that of finite differences, and under the normal law of y a pixel's x has a mass of 1."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, (300, 3)) * np.array([1, 0, 1])
    levels[:150, 2] = 0
    p = mnist_likelihood.shares(levels)
    assert p.shape == (3, 256)
    assert p.sum(1) == pytest.approx(1)
    assert p[1, 0] > 0.99

    def to(x):
        images = mnist_likelihood.Images(np.floor(256 * x), 256 * x - np.floor(256 * x))
        return mnist_likelihood.logits(images) if kind == "logits" else mnist_likelihood.normal_scores(images, p)

    x = (np.floor(256 * rng.random((50, 3))) + rng.uniform(0.2, 0.8, (50, 3))) / 256
    y, volume = to(x)
    slope = (to(x + 1e-6)[0] - to(x - 1e-6)[0]) / 2e-6
    np.testing.assert_allclose(volume, np.log(slope).sum(1), atol=1e-3)
    if kind == "normal scores":
        fine = (np.arange(256 * 40) + 0.5) / (256 * 40)
        rest = np.full((len(fine), 3), 0.5 / 256)
        for pixel in range(3):
            rows = rest.copy()
            rows[:, pixel] = fine
            y, volume = to(rows)
            alone = volume - to(rest)[1] + mnist_likelihood.normal(y) - mnist_likelihood.normal(to(rest)[0])
            at = np.log(256 * p[pixel, 0])  # density of the pixel at the level of ``rest``
            assert np.exp(alone + at).mean() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("precision", ["highest", "fast"])
def test_the_precision_of_a_likelihoods_chains_is_the_one_that_is_asked_for(precision, tmp_path, monkeypatch, capsys):
    """On 60 images of 9 pixels, with the other options of a machine."""
    rng, seen = np.random.default_rng(0), []
    images = mnist_likelihood.Images(rng.integers(0, 256, (60, 9)).astype(float), rng.random((60, 9)))

    def fit(state, rows, objective, options, **more):
        seen.append((state.model.n_hidden, options.n_updates, state.optimizer.param_groups[0]["lr"], more))
        return iter(())

    monkeypatch.setattr(mnist_likelihood, "N", 9)
    monkeypatch.setattr(mnist_likelihood, "fit", fit)
    monkeypatch.setattr(mnist_likelihood, "load", lambda path: dict.fromkeys(("train", "validation", "test"), images))
    command = ["x", "--data-dir", "x", "--out", str(tmp_path), "--only", "logits: GRBM", "--precision", precision]
    monkeypatch.setattr("sys.argv", [*command, "--n-hidden", "3", "--updates", "7", "--rate", "0.02"])
    mnist_likelihood.main()
    assert seen == [(3, 7, 0.02, {"precision": precision})]
    assert (", fast" in capsys.readouterr().out) == (precision == "fast")


@pytest.mark.whole
def test_noise_is_taken_away_as_the_exact_posterior_says():
    """By quadrature over the clean rows: within the error of a model's chains, and a mixture's closed form."""
    noise = torch.tensor([[0.5, 0.2], [0.2, 0.8]]).double()
    y = torch.tensor([[0.8, -0.5], [2.5, 2.0], [-1.0, 4.0]]).double()
    for model in (contrasted(), contrasted(units=[0, 1])):
        grid = exact.quadrature(model)
        apart = grid.points[:, None] - y
        weight = grid.log_density[:, None] - 0.5 * torch.einsum("pni,ij,pnj->pn", apart, noise.inverse(), apart)
        expected = weight.softmax(0).T @ grid.points
        found = torch.stack([denoising.by_machine(model, y, noise, n_steps=400, seed=k) for k in range(30)])
        assert_standard(mean_z(found, expected), n_cases=2)
        assert float((expected - y).abs().max()) > 0.5
    mixture = GaussianMixture(2)
    mixture.weights_, mixture.means_ = np.array([0.3, 0.7]), np.array([[0.0, 1.0], [2.0, -1.0]])
    mixture.covariances_ = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.4, -0.1], [-0.1, 0.9]]])
    axis = np.linspace(-8, 8, 401)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    prior = sum(
        w * multivariate_normal(m, c).pdf(points)
        for w, m, c in zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
    )
    for row, found in zip(y.numpy(), denoising.by_mixture(mixture, y.numpy(), noise.numpy()), strict=True):
        weight = prior * multivariate_normal(row, noise.numpy()).pdf(points)
        np.testing.assert_allclose(found, weight @ points / weight.sum(), atol=1e-6)


def test_noise_of_patches_has_the_covariance_that_is_said(data):
    given = denoising.noisy(data._replace(test=np.tile(data.test, (20, 1))), 20_000, 5.0)
    added = (given.y - given.clean)[:, 1:]
    spread = np.sqrt(given.noise.diagonal()[1:])
    off = (added.T @ added / len(added) - given.noise[1:, 1:]) / np.outer(spread, spread)
    assert np.abs(off).max() < 6 / np.sqrt(20_000)
    grey = (given.y - given.clean)[:, 1:] @ data.to_pixels[1:]
    assert grey.var() == pytest.approx(25 * 195 / 196, rel=0.01)


def test_a_linear_probe_reads_what_is_there_and_no_more():
    """Labels by a hyperplane are read, at any scale of the features; labels at random are guessed."""
    rng = np.random.default_rng(0)
    x, direction = rng.normal(size=(1600, 5)) * [1e-3, 1, 1, 1, 1e3], np.array([1e3, 1, -1, 0, 1e-3])
    labels = (x @ direction > 0).astype(int)
    found = linear_probe.probe(x[:1200], labels[:1200], x[1200:], labels[1200:])
    assert found.accuracy > 0.97
    noise = rng.integers(0, 2, 1600)
    found = linear_probe.probe(x[:1200], noise[:1200], x[1200:], noise[1200:])
    assert_standard((found.accuracy - 0.5) / found.error)
    assert found.error == pytest.approx(0.025, rel=0.05)


def test_the_pipelines_on_digits_are_what_they_say():
    """Each of them, after 60 passes on 600 digits, reads 300 others about as well as was measured; chance is 0.1."""
    images, labels = load_digits()
    measured = {"pixels": 0.90, "BernoulliRBM, pixels": 0.77, "BernoulliRBM, standardised": 0.58, "GaussianB": 0.84}
    pipelines = digits_pipeline.pipelines(32)
    assert len(pipelines) == len(measured)
    for (name, (steps, grid)), (beginning, accuracy) in zip(pipelines.items(), measured.items(), strict=True):
        assert name.startswith(beginning)
        pipeline = Pipeline([*steps, ("classifier", LogisticRegression(max_iter=500))])
        pipeline.set_params(**{key: values[0] for key, values in grid.items()})
        if "rbm" in pipeline.named_steps:
            pipeline.set_params(rbm__n_iter=60)
            assert pipeline["rbm"].n_components == 32
        # the standard error of a share of 300 is 0.03 at most, and training itself varies
        assert abs(pipeline.fit(images[:600], labels[:600]).score(images[600:900], labels[600:900]) - accuracy) < 0.12


class Linear(torch.nn.Module):
    """x ↦ x A + c."""

    def __init__(self, a, c=0.0):
        super().__init__()
        self.a, self.c = a, c

    def forward(self, x):
        return x @ self.a + self.c


def test_the_bound_of_a_vae_is_the_likelihood_where_its_posterior_is_exact():
    """x = w z + γ ξ has a Gaussian posterior of z and density N(0, w wᵀ + γ²): the mean loss is −log p."""
    w, gamma = torch.tensor([[0.5, -1.0, 0.3]]), 0.7
    precision = float(w.square().sum()) + gamma**2
    rng, x = generator(0, "vae"), torch.tensor([[0.2, -0.4, 1.0], [1.5, 0.0, -0.3]])
    model = generators.VAE(torch.nn.Identity(), torch.nn.Identity(), rng, gaussian=True)
    spread = torch.tensor([0.0, float(np.log(gamma**2 / precision))])
    model.encoder, model.decoder = Linear(torch.cat([w.T / precision, torch.zeros(3, 1)], 1), spread), Linear(w)
    with torch.no_grad():
        model.log_gamma.fill_(np.log(gamma))
        losses = torch.stack([model.loss(x, rng) for _ in range(4000)])
    law = torch.distributions.MultivariateNormal(torch.zeros(3), w.T @ w + gamma**2 * torch.eye(3))
    error = float(losses.std()) / 4000**0.5
    assert error < 0.02
    assert_standard((float(losses.mean()) + float(law.log_prob(x).mean())) / error)


def test_the_critics_slope_is_measured_between_real_and_drawn_images():
    rng, direction = generator(0, "slope"), torch.tensor([[3.0], [4.0]])
    real, drawn = torch.zeros(20_000, 2), torch.ones(20_000, 2)
    assert float(generators.slope(Linear(direction), real, drawn, rng)) == pytest.approx((5 - 1) ** 2)

    class Square(torch.nn.Module):
        def forward(self, x):
            return 0.5 * x.square().sum(1)

    found = float(generators.slope(Square(), real, 2 * drawn, rng).detach())  # slopes u √8, u even in [0, 1]
    assert found == pytest.approx(8 / 3 - 8**0.5 + 1, abs=0.03)  # four standard errors


def test_the_levels_of_a_pixel_have_probabilities_that_sum_to_one():
    """Five logistics, of any width from far below a level to far above all of them."""
    levels = (torch.arange(256, dtype=torch.float64) / 127.5 - 1).view(256, 1, 1, 1)
    parameters = torch.randn(50, 3, 5, 1, 1, dtype=torch.float64, generator=generator(0, "levels"))
    parameters[:, 2] *= 4
    for one in parameters:
        total = generators.log_prob_of_levels(levels, one.expand(256, -1, -1, -1, -1)).exp().sum()
        assert float(total) == pytest.approx(1, abs=1e-9)


def test_a_pixel_follows_from_those_before_it_and_is_drawn_as_the_whole_image_says():
    """Two logistics a quarter of a level wide: each pixel drawn is one of both means that the whole image gives it."""
    rng = generator(0, "pixels")
    model = generators.PixelCNN(rng, n_channels=8, n_blocks=3, n_logistics=2)
    generators.initialised(model, rng)  # blocks begin as the identity otherwise
    x = torch.rand(1, 1, 28, 28, generator=rng, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x)[0, 1, 0, 14, 9], x)
    assert (slope.flatten()[: 14 * 28 + 9] != 0).sum() > 40
    assert (slope.flatten()[14 * 28 + 9 :] == 0).all()
    with torch.no_grad():
        model.last.weight.mul_(torch.tensor([0, 0, 0.3, 0.3, 0, 0])[:, None, None, None])
        model.last.bias.copy_(torch.tensor([0.0, 0.0, -0.5, 0.5, -20.0, -20.0]))
        image = 2 * model.draw(4, rng) - 1
        means = model(image.view(4, 1, 28, 28))[:, 1].flatten(2).clamp(-1, 1)
    assert float(means.std(2).min()) > 0.1
    assert float((image[:, None] - means).abs().amin(1).max()) < 1 / 255 + 12 * np.exp(-7)


@pytest.mark.whole
@pytest.mark.parametrize("make", [generators.vae, generators.two_stage, generators.wasserstein, generators.pixelcnn])
def test_generators_draw_images_that_depend_on_their_seed_alone_where_the_clock_decides_nothing(make):
    """One step each, and of the GAN one of its maker after five of its critic."""
    x = torch.rand(256, 784, generator=generator(1))
    first, again, other = (make(x, 8, 1e-9, seed) for seed in (0, 0, 1))
    assert first.shape == (8, 784)
    assert first.min() >= 0
    assert first.max() <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
