"""Tables on the disk: read as they are, never loaded whole, and trained on exactly as if they were in memory."""

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import UserError, cli, runs
from grbm.core import files
from grbm.core.randomness import generator
from grbm.data.arrays import open_array
from grbm.data.config import DatasetConfig
from grbm.data.loading import Dataset
from grbm.data.pictures import Look, open_arrow, open_pictures
from grbm.data.standardise import base_of, standardise
from grbm.data.tables import StoredTable, measure, spread
from grbm.runs.config import RunConfig
from grbm.runs.presets import PRESETS
from tests.helpers import refused

TINY = ["--train.n-updates", "12", "--model.n-hidden", "8", "--objective.n-steps", "2", "--no-figures"]
TINY += ["--log.no-tensorboard", "--train.batch-size", "16", "--objective.n-chains", "16"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))


def table(n=200, N=6) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, N)) * np.arange(1, N + 1) + 5


def test_rows_are_indexed_like_a_tensor(tmp_path):
    x = table()
    np.save(tmp_path / "c.npy", x)
    np.save(tmp_path / "f.npy", np.asfortranarray(x))
    np.save(tmp_path / "cube.npy", np.asfortranarray(x.reshape(200, 2, 3)))
    np.savez(tmp_path / "one.npz", x)
    np.savez(tmp_path / "two.npz", other=np.zeros(3), x=x)
    np.savez_compressed(tmp_path / "packed.npz", x=x)
    for name, key in (("c.npy", None), ("f.npy", None), ("cube.npy", None), ("one.npz", None), ("two.npz", "x")):
        rows = open_array(tmp_path / name, key)
        which = torch.tensor([3, 199, 0, 3])
        assert torch.equal(rows[which], torch.from_numpy(x)[which]), name
        assert torch.equal(rows[10:20], torch.from_numpy(x)[10:20])
        assert torch.equal(rows.take(which)[1:], torch.from_numpy(x)[which][1:])
        assert rows[:0].shape == (0, 6)
    assert torch.equal(open_array(tmp_path / "packed.npz", "x")[:], torch.from_numpy(x))
    with pytest.raises(UserError, match=r"several arrays.*--key: other, x"):
        open_array(tmp_path / "two.npz")
    with pytest.raises(UserError, match="no array 'y'"):
        open_array(tmp_path / "two.npz", "y")


def test_spread_reaches_from_end_to_end_of_any_table():
    for n in (1, 5, 511, 512, 2**24 + 4, 10**8):
        rows = spread(n, 512)
        assert len(rows) == min(n, 512)
        assert (rows[0], rows[-1]) == (0, n - 1)
        assert (rows.diff() > 0).all()


def test_one_pass_gives_the_statistics_of_all(monkeypatch):
    x = torch.from_numpy(table(1000) + 1e6)
    monkeypatch.setattr("grbm.data.tables.CHUNK", 100)  # many chunks, the last one short
    stats = measure(x)
    torch.testing.assert_close(stats.mean, x.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(stats.var, x.var(0, correction=0), rtol=1e-9, atol=0)
    assert torch.equal(stats.low, x.amin(0))
    assert torch.equal(stats.high, x.amax(0))
    for mode, groups in (("channel", x.view(1000, 3, 2)), ("scalar", x.view(1000, 1, 6))):
        fitted = standardise(x, mode, n_channels=3)
        per_group = groups.std((0, 2), correction=0).repeat_interleave(groups.shape[2])
        torch.testing.assert_close(fitted.scale, per_group, rtol=1e-9, atol=0)
    base = base_of(standardise(stats, "pixel"), stats)
    torch.testing.assert_close(base.var, torch.ones(6))
    torch.testing.assert_close(base.mean, torch.zeros(6))


def test_the_row_of_what_is_not_finite_is_named_wherever_it_is(tmp_path, capsys):
    x = table()
    x[137, 2] = np.inf
    np.save(tmp_path / "x.npy", x)
    for memory in ("0", "256"):
        config = ["train", "array", "--data", tmp_path / "x.npy", *TINY, "--memory", memory]
        refused([*config, "--out", tmp_path / "run"], capsys, "row 137, column 2")


@pytest.mark.parametrize("name", ["x.npy", pytest.param("x.npz", marks=pytest.mark.whole)])
def test_training_from_the_disk_is_training_from_memory(tmp_path, name):
    np.save(tmp_path / "x.npy", table().astype(np.float32))
    np.savez(tmp_path / "x.npz", table().astype(np.float32))
    weights = []
    for memory in ("0", "256"):
        out = tmp_path / memory
        data = ["--data", str(tmp_path / name), "--memory", memory]
        assert cli.main(["train", "array", *data, *TINY, "--out", str(out)]) == 0
        weights.append(files.read_tensors(out / runs.RAW_WEIGHTS))
        assert isinstance(runs.read(out).config.load_data().train, StoredTable) == (memory == "0")
        if memory == "0":
            assert cli.main(["evaluate", str(out), "--samples", "20"]) == 0
            assert cli.main(["figures", str(out)]) == 0
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])


MEASURED = """
import sys
from grbm import cli
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
cli.main(["train", "digits", *sys.argv[3:], "--out", sys.argv[2] + "-small"])  # what training takes anyway
before = peak()
assert cli.main(["train", "array", "--data", sys.argv[1], *sys.argv[3:], "--out", sys.argv[2]]) == 0
print("rise", peak() - before)
"""


@pytest.mark.whole
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    ("gigabytes", "most"), [(0.35, 200), pytest.param(4, 1000, marks=pytest.mark.slow)], ids=["a third", "four"]
)
def test_resident_memory_stays_small(tmp_path, gigabytes, most):
    """Peak resident memory in MB, over that of a small run. The file is mostly a hole, but read all the same."""
    n = int(gigabytes * 2**30 / 4 / 1000)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (n, 1000))
    x[: n // 100] = np.random.default_rng(0).normal(size=(n // 100, 1000))
    x.flush()
    del x
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "x.npy"), str(tmp_path / "run"), *TINY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    rise = float(done.stdout.split("rise")[1])
    print(f"{gigabytes} GB: resident memory rose by {rise:.0f} MB")
    assert rise < most


def pictures(folder: Path, n=12, size=(20, 16)) -> None:
    rng = np.random.default_rng(0)
    for k in range(n):
        (folder / f"part{k % 2}").mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        image.save(folder / f"part{k % 2}" / f"{k:02}.png")


def test_folders_of_pictures(tmp_path):
    pictures(tmp_path / "p")
    rows, shape, *_ = open_pictures(tmp_path / "p", Look())
    assert shape == (3, 16, 20)
    assert rows.shape == (12, 960)
    first = np.asarray(Image.open(tmp_path / "p" / "part0" / "00.png")).transpose(2, 0, 1).reshape(-1) / 255
    np.testing.assert_allclose(rows[:1][0].numpy(), first, atol=1e-7)
    grey, shape, *_ = open_pictures(tmp_path / "p", Look(crop=12, size=8, grey=True))
    assert shape == (1, 8, 8)
    assert float(grey[:].min()) >= 0
    assert float(grey[:].max()) <= 1
    cached = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    assert len(cached) == 3  # two looks, and what the pictures are
    open_pictures(tmp_path / "p", Look())
    assert cached == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}  # decoded once
    Image.new("RGB", (5, 5)).save(tmp_path / "p" / "small.png")
    with pytest.raises(UserError, match=r"small.png is 5 x 5 pixels.*--dataset.size"):
        open_pictures(tmp_path / "p", Look())
    (tmp_path / "p" / "small.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"small.png is not a readable picture"):
        open_pictures(tmp_path / "p", Look())
    assert not list((tmp_path / "cache").glob(".*"))  # nothing half decoded is left


def test_pictures_of_sixteen_bits_and_crops_too_large(tmp_path):
    (tmp_path / "deep").mkdir()
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for k in range(2):
        Image.fromarray(ramp).save(tmp_path / "deep" / f"{k}.png")
    rows, *_ = open_pictures(tmp_path / "deep", Look(grey=True))
    np.testing.assert_allclose(rows[:1][0].numpy(), ramp.reshape(-1) / 65535, atol=1 / 255)
    with pytest.raises(UserError, match=r"8 x 8 pixels, smaller than the 9"):
        open_pictures(tmp_path / "deep", Look(crop=9))


def test_grey_pictures_are_those_whose_three_channels_are_equal():
    """One number of a thousand pictures tells them apart, in whatever channel it is."""
    grey = torch.rand(1000, 4, generator=generator(0)).repeat(1, 3)
    assert Dataset(grey, grey[:0], (3, 2, 2)).is_grey
    assert not Dataset(grey, grey[:0], (1, 6, 2)).is_grey
    for channel in range(3):
        coloured = grey.clone()
        coloured[999, 4 * channel] += 0.01
        assert not Dataset(coloured, grey[:0], (3, 2, 2)).is_grey


def test_pictures_train_and_draw(tmp_path, capsys):
    pictures(tmp_path / "p", n=30)
    options = ["--data", str(tmp_path / "p"), "--dataset.size", "8", *[o for o in TINY if o != "--no-figures"]]
    assert cli.main(["train", "images", *options, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "figures" / "samples.png").is_file()
    assert cli.main(["sample", str(tmp_path / "run"), "--n", "5"]) == 0
    assert (tmp_path / "run" / "samples" / "samples.png").is_file()
    assert "grey" not in capsys.readouterr().err
    for path in (tmp_path / "p").rglob("*.png"):
        Image.open(path).convert("L").save(path)
    grey = ["train", "images", "--data", str(tmp_path / "p"), "--dataset.size", "8", *TINY]
    assert cli.main([*grey, "--memory", "0", "--out", str(tmp_path / "three")]) == 0
    assert "--dataset.grey" in capsys.readouterr().err
    assert cli.main([*grey, "--dataset.grey", "--out", str(tmp_path / "one")]) == 0
    assert "grey" not in capsys.readouterr().err
    assert cli.main(["train", "images", *TINY, "--out", str(tmp_path / "x")]) == 2
    assert "--data FOLDER" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["train", "images", "--data", str(tmp_path / "empty"), *TINY, "--out", str(tmp_path / "x")]) == 2
    assert str(tmp_path / "empty") in capsys.readouterr().err


def test_hugging_face_data_sets(tmp_path, capsys):
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    x = table(60).astype(np.float32)
    pictures(tmp_path / "p")
    paths = sorted(str(p) for p in (tmp_path / "p").rglob("*.png"))
    datasets.Dataset.from_dict({"x": list(x), "word": ["a"] * 60, "ragged": [[1.0]] * 59 + [[1.0, 2.0]]}).save_to_disk(
        tmp_path / "numbers"
    )
    rows = open_arrow(tmp_path / "numbers", "x")
    which = torch.tensor([5, 59, 0])
    assert torch.equal(rows[which], torch.from_numpy(x).double()[which])
    assert torch.equal(rows[3:7], torch.from_numpy(x).double()[3:7])
    config = RunConfig(DatasetConfig("array", key="x"), data=tmp_path / "numbers", memory=0)
    assert isinstance(config.load_data().train, StoredTable)
    data = ["--data", str(tmp_path / "numbers"), "--dataset.key"]
    assert cli.main(["train", "array", *data, "x", *TINY, "--out", str(tmp_path / "run")]) == 0
    whole = ["--memory", "0", "--dataset.held-out", "0"]
    assert cli.main(["train", "array", *data, "x", *TINY, *whole, "--out", str(tmp_path / "all")]) == 0
    for key, words in (("word", "holds no numbers"), ("none", "no column 'none'"), ("ragged", "differ in length")):
        assert cli.main(["train", "array", *data, key, *TINY, "--out", str(tmp_path / key)]) == 2
        assert words in capsys.readouterr().err
    faces = datasets.Dataset.from_dict({"face": paths}).cast_column("face", datasets.Image())
    faces.save_to_disk(tmp_path / "faces")
    rows, shape, *_ = open_pictures(tmp_path / "faces", Look(size=8))
    assert shape == (3, 8, 8)
    folder_rows, *_ = open_pictures(tmp_path / "p", Look(size=8))
    assert torch.equal(rows[:], folder_rows[:])


def zipped(path, folder) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"inside/{file.name}")
        archive.writestr("inside/notes.txt", "not a picture")


def some_pictures(folder, count: int, size=(20, 24)) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(count):
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(folder / f"{k:03d}.png")


def test_a_zip_file_of_pictures_is_its_folder(tmp_path, monkeypatch):
    some_pictures(tmp_path / "p", 12)
    zipped(tmp_path / "p.zip", tmp_path / "p")
    monkeypatch.setattr("grbm.data.pictures.TOGETHER", 5)  # in rounds, with the rows in order all the same
    look = Look(size=8)
    rows, shape, *_ = open_pictures(tmp_path / "p.zip", look)
    expected, expected_shape, *_ = open_pictures(tmp_path / "p", look)
    assert shape == expected_shape == (3, 8, 8)
    assert torch.equal(rows[:], expected[:])
    content = bytearray((tmp_path / "p.zip").read_bytes())
    content[200] ^= 1  # in the first picture
    (tmp_path / "bad.zip").write_bytes(bytes(content[:-40]))
    with pytest.raises(UserError, match=r"bad\.zip"):
        open_pictures(tmp_path / "bad.zip", look)
    (tmp_path / "flipped.zip").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"000.png in .*flipped.zip"):
        open_pictures(tmp_path / "flipped.zip", Look(size=9))
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("notes.txt", "nothing")
    with pytest.raises(UserError, match=r"empty\.zip"):
        open_pictures(tmp_path / "empty.zip", look)


def test_a_subset_is_chosen_by_seed(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(200.0).reshape(100, 2))
    config = RunConfig(DatasetConfig("array", subset=30, held_out=0.2), data=tmp_path / "x.npy")
    first, again, other = (replace(config, seed=seed).load_data() for seed in (0, 0, 1))
    assert (len(first.train), len(first.test)) == (24, 6)
    assert torch.equal(first.train, again.train)
    assert not torch.equal(first.train, other.train)
    whole = replace(config, dataset=replace(config.dataset, subset=None)).load_data()
    assert (len(whole.train), len(whole.test)) == (80, 20)
    with pytest.raises(UserError, match="subset"):
        RunConfig(DatasetConfig("digits", subset=5)).check()
    with pytest.raises(UserError, match=r"dataset\.subset"):
        replace(config, dataset=replace(config.dataset, subset=1)).check()


def test_celeba_is_cropped_by_its_width_and_found_where_it_lies(tmp_path):
    """A square of 140/178 of the width from the middle: 70 of 89. Here it is black, and everything around it white."""
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    picture = np.full((109, 89, 3), 255, np.uint8)
    picture[19:89, 9:79] = 0
    for k in range(5):
        Image.fromarray(picture).save(folder / f"{k}.png")
    config = replace(PRESETS["celeba-small"].config, data_dir=tmp_path)
    config.check()
    data = config.load_data()
    assert data.image_shape == (3, 32, 32)
    assert data.levels == 256
    assert torch.cat([data.train, data.test]).shape == (5, 3072)
    assert float(data.train.max()) < 0.02
    with pytest.raises(UserError, match="CelebA"):
        replace(config, data_dir=tmp_path / "elsewhere").load_data()
