"""Distances between sets of images: closed forms, a published program, and sets whose overlap is known."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from grbm import UserError, cli, runs
from grbm.data.images import load_digits
from grbm.evaluate import references
from grbm.evaluate.features import inception_768, inception_2048, train_classifier
from grbm.evaluate.frechet import FeatureStatistics, frechet, frechet_estimate, kernel_distance, neighbours
from grbm.report import image_scores
from tests.helpers import assert_standard, mean_z

SHARED = Path(os.environ.get("GRBM_DATA_DIR", Path(__file__).resolve().parents[2] / "shared" / "data"))
WEIGHTS = SHARED / "weights" / "inception_v3_2015-12-05_to_mixed_8_bnfolded.npz"


def features(n: int, d: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=rng) @ torch.randn(d, d, generator=rng) + shift


def test_the_frechet_distance_of_gaussians_is_the_closed_form():
    """Covariances that commute: Σ (s_i − t_i)² + ‖m − n‖²; and one pair that does not, by its 2 x 2 square root."""
    turn = torch.linalg.qr(features(4, 4, 0).double()).Q
    s, t = torch.tensor([1.0, 2.0, 0.5, 0.0]).double(), torch.tensor([3.0, 0.1, 0.5, 1.0]).double()
    m, n = torch.tensor([1.0, 0, 0, 2]).double(), torch.tensor([0.0, 1, 0, 2]).double()
    a = FeatureStatistics(m, turn @ torch.diag(s**2) @ turn.T)
    b = FeatureStatistics(n, turn @ torch.diag(t**2) @ turn.T)
    assert frechet(a, b) == pytest.approx(float((s - t).square().sum()) + 2.0)
    assert frechet(b, a) == pytest.approx(frechet(a, b))
    assert frechet(a, a) < 1e-12
    p, q = torch.tensor([[2.0, 1.0], [1.0, 1.0]]).double(), torch.tensor([[1.0, 0.0], [0.0, 3.0]]).double()
    # tr √X of a 2 x 2 matrix is sqrt(tr X + 2 sqrt(det X))
    x = p @ q
    expected = 3 + 4 - 2 * float((x.trace() + 2 * x.det().sqrt()).sqrt())
    zero = torch.zeros(2).double()
    assert frechet(FeatureStatistics(zero, p), FeatureStatistics(zero, q)) == pytest.approx(expected)


def test_frechet_and_kernel_distance_agree_with_torch_fidelity():
    fid = pytest.importorskip("torch_fidelity.metric_fid")
    kid = pytest.importorskip("torch_fidelity.metric_kid")
    a, b = features(500, 30, 1), features(600, 30, 2, shift=0.3)
    theirs = fid.fid_statistics_to_metric(fid.fid_features_to_statistics(a), fid.fid_features_to_statistics(b), False)
    ours = frechet(FeatureStatistics.of(a), FeatureStatistics.of(b))
    assert ours == pytest.approx(theirs["frechet_inception_distance"], rel=1e-3)
    small = features(200, 30, 3)
    settings = {"kid_subsets": 1, "kid_subset_size": 200, "rng_seed": 0, "verbose": False}
    expected = kid.kid_features_to_metric(small.double(), a[:200].double(), **settings)
    found = kernel_distance(small, a[:200], n_subsets=1, size=200)
    assert found.mean == pytest.approx(expected["kernel_inception_distance_mean"], rel=1e-6)


def test_the_kernel_distance_of_equal_distributions_is_zero_within_its_error():
    """Unbiased: it can be below 0."""
    a, b, c = (torch.randn(2000, 10, generator=torch.Generator().manual_seed(k)) for k in (0, 1, 2))
    same, other = kernel_distance(a, b, size=500), kernel_distance(a, 1.3 * c, size=500)
    assert_standard(same.mean / same.error)
    assert other.mean > 5 * other.error
    assert kernel_distance(a, b, size=500) == same


def by_definition(real: torch.Tensor, made: torch.Tensor, k: int) -> tuple[float, float, float, float]:
    """Precision, recall, density and coverage, point by point (Kynkäänniemi et al. 2019, Naeem et al. 2020)."""
    real, made = real.double(), made.double()

    def apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[:, None] - y[None]).norm(dim=2)

    real_reach, made_reach = (apart(x, x).sort(1).values[:, k] for x in (real, made))  # the nearest is itself
    in_real = apart(made, real) <= real_reach[None]  # (made, real): whether a made point lies in a real one's ball
    in_made = apart(real, made) <= made_reach[None]
    shares = in_real.any(1), in_made.any(1), in_real.sum(1) / k, in_real.any(0)
    return tuple(float(share.double().mean()) for share in shares)


def test_neighbours_of_sets_whose_overlap_is_known():
    """Ten clusters far apart, of 60 points each."""
    rng = torch.Generator().manual_seed(0)
    places = 100 * torch.randn(10, 8, generator=rng)
    real = (places[:, None] + torch.randn(10, 60, 8, generator=rng)).reshape(-1, 8)
    same = neighbours(real, real, k=5)
    assert (same.precision, same.recall, same.coverage) == (1, 1, 1)
    assert same.density == pytest.approx(6 / 5, rel=0.01)  # each ball holds its five neighbours and itself
    half = (places[:5, None] + torch.randn(5, 120, 8, generator=rng)).reshape(-1, 8)
    dropped = neighbours(real, half, k=5)
    assert dropped == pytest.approx(by_definition(real, half, 5))
    assert dropped.recall <= 0.5  # of the ten clusters, five are not drawn at all
    assert dropped.coverage <= 0.5
    # the other way round, half of what is generated is nowhere near
    invented = neighbours(half, real, k=5)
    assert invented == pytest.approx(by_definition(half, real, 5))
    assert invented.precision <= 0.5
    assert min(dropped.precision, dropped.density, invented.recall, invented.coverage) > 0.5
    far = neighbours(real, real + 1e4)
    assert far == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="600 and 10"):
        neighbours(real, half[:10])


def test_the_classifier_learns_and_repeats_itself():
    images, labels = load_digits()
    models = []
    for seed, threads in ((0, 1), (0, 2), (1, 1)):
        torch.set_num_threads(threads)
        models.append(train_classifier(images[:1500], labels[:1500], (8, 8), epochs=8, seed=seed))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(1)
    with torch.no_grad():
        accuracy = (models[0](images[1500:].view(-1, 1, 8, 8)).argmax(1) == labels[1500:]).float().mean()
    assert accuracy > 0.8
    assert torch.equal(models[0].last.weight, models[1].last.weight)
    assert not torch.equal(models[0].last.weight, models[2].last.weight)
    assert models[0].features(images[:7].view(-1, 1, 8, 8)).shape == (7, 128)


@pytest.mark.whole
def test_reference_models_are_fitted_to_the_images():
    images, _ = load_digits()
    mean, covariance = images.mean(0), torch.cov(images.T)
    one = references.gaussian(images, 20_000, seed=1)
    torch.testing.assert_close(one.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(torch.cov(one.T), covariance, atol=0.02, rtol=0)
    several = references.mixture(images, 2000, n_components=5)
    truth = FeatureStatistics.of(images)
    assert frechet(truth, FeatureStatistics.of(several)) < 0.5
    with pytest.MonkeyPatch.context() as patch:  # as if there were too many columns for full covariances
        patch.setattr(references, "LARGEST", 60)
        patch.setattr(references, "COMPONENTS", 20)
        assert frechet(truth, FeatureStatistics.of(references.mixture(images, 2000, n_components=5))) < 0.5
    made = references.autoencoder(images, 500, epochs=60)
    assert ((made >= 0) & (made <= 1)).all()
    torch.testing.assert_close(made.mean(0), mean, atol=0.15, rtol=0)
    for sample in (references.gaussian, references.autoencoder):
        assert torch.equal(sample(images, 5, seed=2), sample(images, 5, seed=2))


def test_noise_of_the_small_vae_has_the_deviation_of_its_code(monkeypatch):
    """Codes of mean 3 and variance 4 are drawn as such while it learns."""
    drawn, decode = [], references._Autoencoder.decode
    code = torch.full((256, 20), 3.0), torch.full((256, 20), 4.0).log()
    monkeypatch.setattr(references._Autoencoder, "encode", lambda self, x: code)
    monkeypatch.setattr(references._Autoencoder, "decode", lambda self, z: drawn.append(z) or decode(self, z))
    references.autoencoder(torch.rand(256, 5, generator=torch.Generator().manual_seed(0)), 3, epochs=1)
    z = drawn[0].double().flatten() - 3
    assert_standard(mean_z(torch.stack([z, z.square()], 1), torch.tensor([0.0, 4.0])))


def test_one_gaussian_has_the_covariance_of_its_images_however_few_they_are():
    """Of four images a covariance by n, n - 1 or n + 1 differs by a quarter or more."""
    images = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    drawn = references.gaussian(images, 40_000, seed=1).double()
    centred = drawn - images.double().mean(0)
    products = torch.stack([centred[:, 0] ** 2, centred[:, 1] ** 2, centred[:, 0] * centred[:, 1]], 1)
    covariance = torch.cov(images.double().T, correction=0)
    assert_standard(mean_z(products, torch.stack([covariance[0, 0], covariance[1, 1], covariance[0, 1]])))


@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the Inception weights are not here")
def test_the_partial_inception_network_is_the_one_described():
    """Against torchvision's network with the weights put in as their description says, and its pooling replaced."""
    from torchvision.models import inception

    images = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    found = inception_768(WEIGHTS).extract(images)
    network = inception.Inception3(aux_logits=False, init_weights=False).eval()
    arrays = np.load(WEIGHTS)
    for name, layer in network.named_modules():
        if isinstance(layer, inception.BasicConv2d) and f"{name}.weight" in arrays:
            layer.conv.weight.data = torch.from_numpy(arrays[f"{name}.weight"])
            layer.bn.bias.data = torch.from_numpy(arrays[f"{name}.bias"])
            layer.bn.running_var.fill_(1 - 0.001)
            layer.bn.weight.data.fill_(1)
    taken = []
    network.Mixed_6e.register_forward_hook(lambda module, given, out: taken.append(out.mean((2, 3))))
    pool = functional.avg_pool2d
    x = functional.interpolate(images.expand(-1, 3, -1, -1), (299, 299), mode="bilinear", align_corners=False)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(functional, "avg_pool2d", lambda x, **k: pool(x, count_include_pad=False, **k))
        network(2 * x - 1)
    assert found.shape == (3, 768)
    torch.testing.assert_close(found, taken[0], atol=2e-4, rtol=1e-3)


@pytest.mark.whole
def test_a_table_is_remembered_for_what_it_was_made_of(tmp_path, monkeypatch):
    """Of the same weights and data it is not made twice; of other data, weights or program it is made anew."""
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    assert cli.main(["train", "digits", "--out", str(folder), "--train.n-updates", "30", "--no-figures"]) == 0
    run = runs.read(folder)
    data = run.load_data()
    made = []

    def score(run=run, data=data):
        made.clear()
        return image_scores.score_images(run, data, None, n=60, say=made.append)

    first = score()
    assert made[0] == "training images"
    assert score() == first
    assert not made
    other = score(data=data._replace(train=data.train.flip(0) * 0.5))
    assert made
    assert other.rows["full-covariance Gaussian"] != first.rows["full-covariance Gaussian"]
    with torch.no_grad():
        run.model.b += 1
    assert score().rows["this run"] != first.rows["this run"]
    assert score().rows["full-covariance Gaussian"] == first.rows["full-covariance Gaussian"]
    for path in (tmp_path / "cache").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])  # a damaged cache is made anew
    (folder / runs.FID).unlink()
    assert score().rows["full-covariance Gaussian"] == first.rows["full-covariance Gaussian"]
    with pytest.raises(UserError, match="at least 50"):
        score(data=data._replace(train=data.train[:40]))


def test_networks_that_cannot_be_had_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.(npz|pth)"):
        inception_768(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(UserError, match=r"other\.npz"):
        inception_768(tmp_path / "other.npz")
    pytest.importorskip("torch_fidelity")
    with pytest.raises(UserError, match=r"none\.(npz|pth)"):
        inception_2048(tmp_path / "none.pth")
    (tmp_path / "bad.pth").write_bytes(b"no network")
    with pytest.raises(UserError, match="does not hold the Inception network's tensors"):
        inception_2048(tmp_path / "bad.pth")


def test_the_command_writes_a_table_with_its_protocol(tmp_path, capsys, monkeypatch):
    run = str(tmp_path / "run")
    assert cli.main(["train", "digits", "--out", run, "--train.n-updates", "30", "--no-figures"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("grbm.evaluate.features.inception_2048", lambda *a: (_ for _ in ()).throw(UserError("none.")))
    assert cli.main(["evaluate", run, "--fid", "--fid-samples", "300"]) == 0
    out, err = capsys.readouterr()
    assert "Only the classifier" in err
    table = json.loads((tmp_path / "run" / "fid.json").read_text())
    names = ["this run", "held-out images", "full-covariance Gaussian", "mixture of 20", "small VAE"]
    assert list(table["rows"]) == names
    assert table["rows"]["held-out images"]["Fréchet"] < table["rows"]["this run"]["Fréchet"]
    assert "300 images" in table["own_protocol"][0]
    assert "179 only" in table["protocol"][0]
    assert all(name in out for name in names)
    plane = str(tmp_path / "plane")
    assert cli.main(["train", "isotropic", "--out", plane, "--train.n-updates", "2", "--no-figures"]) == 0
    for wrong, sentence in (
        ([plane, "--fid"], "not a run on images"),
        ([run, "--fid", "--fid-samples", "5"], "at least 100"),
        ([run, "--fid", "--fid-weights", str(tmp_path / "none.npz")], "is not a file"),
    ):
        assert cli.main(["evaluate", *wrong]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("n", [300, pytest.param(1000, marks=pytest.mark.whole)])
def test_errors_of_distances_are_deviations_over_draws(n):
    """Of 100 draws of n from a Gaussian, against the mean of their own errors: the ratio, itself known to 8 %."""
    exact = FeatureStatistics(torch.zeros(5).double(), torch.eye(5).double())
    real = torch.randn(2000, 5, generator=torch.Generator().manual_seed(1000))
    draws = [torch.randn(n, 5, generator=torch.Generator().manual_seed(k)) * 1.5 + 0.5 for k in range(100)]
    for found in (
        [frechet_estimate(exact, x) for x in draws],
        [kernel_distance(real, x, n_subsets=1, size=n) for x in draws],
    ):
        assert np.mean([f.error for f in found]) == pytest.approx(np.std([f.mean for f in found]), rel=0.25)
    assert frechet_estimate(exact, draws[0]).mean == frechet(exact, FeatureStatistics.of(draws[0]))


def test_the_error_of_a_kernel_distance_is_the_jackknife_of_the_distance_itself():
    """Each tenth left out in turn, and the unbiased distance of all that is left computed anew."""
    real, found = features(31, 4, 1), features(43, 4, 2, shift=0.3)
    left = [found[torch.arange(43) % 10 != k] for k in range(10)]
    without = []
    for x in left:
        size = len(x)
        xx, xy = ((x.double() @ y.double().T / 4 + 1) ** 3 for y in (x, real))
        without.append(float((xx.sum() - xx.trace()) / (size * (size - 1)) - 2 * xy.mean()))
    expected = np.sqrt(9 / 10 * np.square(np.array(without) - np.mean(without)).sum())
    assert kernel_distance(real, found, n_subsets=1).error == pytest.approx(expected)
