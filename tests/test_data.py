"""Data in, standardised and back; what is malformed is refused with one sentence."""

import numpy as np
import pytest
import sklearn.datasets
import torch

from grbm.core.errors import UserError
from grbm.data.arrays import open_array
from grbm.data.config import DatasetConfig
from grbm.data.images import load_digits, load_idx
from grbm.data.loading import statistics
from grbm.data.standardise import standardise
from grbm.runs.config import RunConfig
from tests.helpers import mnist_folder, shared_data


@pytest.mark.parametrize("mode", ["pixel", "channel", "scalar", "none"])
def test_standardising_and_back(mode):
    x = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 13) + 5
    fitted = standardise(x, mode, n_channels=3)
    torch.testing.assert_close(fitted.inverse(fitted(x)), x.double(), rtol=1e-5, atol=1e-5)
    z = fitted(x).double()
    if mode == "pixel":
        groups = z
    elif mode == "channel":
        groups = z.view(50, 3, 4).transpose(0, 1).reshape(3, -1).T
    elif mode == "scalar":
        groups = z.reshape(-1, 1)
    else:
        assert torch.equal(z.float(), x)
        return
    torch.testing.assert_close(groups.mean(0), torch.zeros(groups.shape[1]).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(groups.std(0, correction=0), torch.ones(groups.shape[1]).double(), atol=1e-6, rtol=0)


def test_constant_columns_are_safe():
    x = torch.randn(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 1] = 3.0
    x[:, 2] = 3.0 + 1e-15 * x[:, 2]  # varies by rounding alone
    x[:, 3] *= 1e-4  # small, but real: another unit
    x[:, 4] = 0
    x[0, 4] = 1.0  # a pixel lit once
    found = standardise(x, "pixel")
    z = found(x)
    assert torch.isfinite(z).all()
    assert found.kept.tolist() == [True, False, False, True, True]
    assert float(z[:, 1].std()) == pytest.approx(1, rel=0.02)
    assert z[0, 2] > 6
    torch.testing.assert_close(found.inverse(found.exactly(x)), x, rtol=1e-14, atol=1e-14)
    assert not found.breaks(x + 1e-13).any(), "rounding"
    assert found.breaks(x + 1e-9).any(0).tolist() == [False, True, True, False, False]
    some = standardise(x, "pixel", floor=0.6)
    assert some(x)[0, 4] < 4
    assert some.kept.all(), "pixels are all of one unit"


def test_digits_are_there(monkeypatch):
    images, labels = load_digits()
    pixels, numbers = sklearn.datasets.load_digits(return_X_y=True)
    monkeypatch.setattr("grbm.data.images.find_spec", lambda name: None)  # as where the file is at another place
    for images, labels in ((images, labels), load_digits()):
        assert torch.equal(images, torch.from_numpy(pixels / 16).float())
        assert torch.equal(labels, torch.from_numpy(numbers))
    assert images.shape == (1797, 64)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    dataset = RunConfig(DatasetConfig("digits")).load_data()
    assert (len(dataset.train), len(dataset.test)) == (1618, 179)


@pytest.mark.parametrize("compress", [False, True])
def test_idx_files_are_read_gzipped_or_not(tmp_path, compress):
    mnist_folder(tmp_path, compress)
    images, labels = load_idx("mnist", tmp_path)
    expected = np.random.default_rng(0).integers(0, 256, (20, 28, 28))
    assert np.array_equal((images.numpy() * 255).round().reshape(20, 28, 28), expected)
    assert labels.shape == (20,)
    assert load_idx("mnist", tmp_path, train=False)[0].shape == (6, 784)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_npy_format_is_read(tmp_path, version):
    x = np.random.default_rng(0).normal(size=(7, 3))
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, x, version)
    assert np.array_equal(open_array(tmp_path / "x.npy")[:].numpy(), x)


@pytest.mark.parametrize("damage", ["truncate", "empty", "header"])
@pytest.mark.parametrize("compress", [False, True])
def test_damaged_idx_files_are_named(tmp_path, compress, damage):
    raw = mnist_folder(tmp_path, compress)
    path = next(raw.glob("train-images*"))
    content = path.read_bytes()
    path.write_bytes({"truncate": content[: len(content) // 2], "empty": b"", "header": b"xxxxxxxxxx"}[damage])
    with pytest.raises(UserError, match="train-images"):
        load_idx("mnist", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_files(name):
    images, labels = load_idx(name, shared_data())
    assert images.shape == (60_000, 784)
    if name == "mnist":
        assert labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert float(images.double().mean()) == pytest.approx(0.1307, abs=5e-5)
        assert float(images.double().std()) == pytest.approx(0.3081, abs=5e-5)


def test_arrays_of_any_shape_and_number_type(tmp_path):
    for dtype in (np.float64, np.float32, np.int16, np.bool_):
        np.save(tmp_path / "x.npy", np.arange(24).reshape(4, 2, 3).astype(dtype))
        rows = open_array(tmp_path / "x.npy")
        assert rows.shape == (4, 6)
        assert torch.equal(rows[:], torch.from_numpy(np.load(tmp_path / "x.npy").reshape(4, 6).astype(np.float64)))


def test_a_small_variation_on_a_large_number_is_not_lost(tmp_path):
    x = np.stack([1.7e9 + 20 * np.sin(np.arange(100)), np.arange(100)], 1)
    np.save(tmp_path / "x.npy", x)
    config = RunConfig(DatasetConfig("array"), data=tmp_path / "x.npy")
    dataset = config.load_data()
    fitted = standardise(statistics(dataset, "x").train, config.dataset.standardise)
    z = fitted(dataset.train)
    assert z.dtype == torch.float32
    assert z.std(0).tolist() == pytest.approx([1, 1], rel=0.02)
    torch.testing.assert_close(fitted.inverse(z), dataset.train, rtol=0, atol=1e-4)


def bad_arrays():
    infinite = np.zeros((5, 3))
    infinite[3, 1] = np.inf
    return {
        "row 3, column 1": infinite,
        "shape": np.zeros(5),
        "n, N >= 1": np.zeros((0, 3)),
        "single row": np.zeros((1, 3)),
        "real numbers": np.array([["a", "b"]]),
        "Python objects": np.array([[{}, []]], dtype=object),
    }


@pytest.mark.parametrize("message", bad_arrays())
def test_bad_arrays_are_refused(tmp_path, message):
    np.save(tmp_path / "x.npy", bad_arrays()[message], allow_pickle=True)
    with pytest.raises(UserError, match=message):
        RunConfig(DatasetConfig("array"), data=tmp_path / "x.npy").load_data()


def test_what_is_no_array_is_refused(tmp_path):
    path = tmp_path / "x.npy"
    with pytest.raises(UserError, match=r"x\.npy"):
        open_array(path)
    path.write_text("hello, these are words\n")
    with pytest.raises(UserError, match=r"not a whole \.npy"):
        open_array(path)
    path.write_bytes(b"PK\x03\x04 this starts as an archive does")
    with pytest.raises(UserError, match=r"not a whole \.npy"):
        open_array(path)
    np.save(path, np.zeros((9, 9)))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"not a whole \.npy"):
        open_array(path)


def test_data_without_variation_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.full((20, 3), 7.0))
    config = RunConfig(DatasetConfig("array"), data=tmp_path / "x.npy")
    with pytest.raises(UserError, match="constant"):
        statistics(config.load_data(), "x")


def test_a_pixel_that_is_hardly_ever_lit_is_not_blown_up():
    """Its scale is bounded by a share of the deviation of all pixels, whose variances are 0.5, 1 and nearly 0."""
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0**0.5, 0.0]]).double().repeat(50, 1) * 2**0.5
    x[0, 2] = 1e-3
    bounded = standardise(x, "pixel", floor=0.1)
    overall = float(x.var(0, correction=0).mean().sqrt())
    assert bounded.scale.tolist() == pytest.approx([0.5**0.5, 1.0, 0.1 * overall])
    assert bounded.n_units == 3
