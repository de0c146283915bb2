"""Damaged files of every kind that is read, odd flags, special arrays: no traceback, no hang, no other numbers.

`uv run pytest -m slow -k fuzz`; GRBM_FUZZ_SEED=7 makes other cases of the same kinds.
"""

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import signal
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import GRBM, GaussianBernoulliRBM, UserError, cli, runs
from grbm.cli import options
from grbm.cli.common import flags_of, function_of
from grbm.core.files import read_tensors
from grbm.data.arrays import open_array
from grbm.data.pictures import Look, open_pictures
from tests.helpers import on_white, thrice, upright

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("GRBM_FUZZ_SEED", "0"))
TINY = ["--train.n-updates", "2", "--model.n-hidden", "5", "--objective.n-steps", "2", "--train.batch-size", "8"]
TINY += ["--objective.n-chains", "8", "--no-figures", "--sampling.n-steps", "3"]
LIMIT = 60.0  # seconds of a case


class HangError(BaseException):
    """A case took too long."""


def outcome(args) -> tuple[int, str]:
    """The exit code of a command and what it said as an error; anything else that it does is a failure."""
    said, printed = io.StringIO(), io.StringIO()

    def stop(*_):
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                code = cli.main([str(a) for a in args])
            except SystemExit as error:  # of the parser of options
                code = error.code if isinstance(error.code, int) else 1
                assert code == 2
                said.write("grbm: options\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    text = said.getvalue()
    assert "Traceback" not in text
    assert code in (0, 1, 2, 3), (code, text)
    if code == 2:
        lines = [line for line in text.splitlines() if line.startswith("grbm: ")]
        assert len(lines) == 1, text
    return code, text


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A damaged copy."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        kind = rng.choice(["flip", "flip", "byte", "cut", "zero", "insert", "delete", "repeat", "head"])
        n = len(data)
        if n == 0:
            break
        at = rng.randrange(n)
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == "cut":
            del data[at:]
        elif kind == "zero":
            end = min(n, at + rng.randrange(1, 64))
            data[at:end] = bytes(end - at)
        elif kind == "insert":
            data[at:at] = rng.randbytes(rng.randrange(1, 16))
        elif kind == "delete":
            del data[at : at + rng.randrange(1, 16)]
        elif kind == "repeat":
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        else:  # headers are at the front
            data[rng.randrange(min(n, 128))] = rng.randrange(256)
    return bytes(data)


def other_json(text: str, rng: random.Random) -> str:
    """The document with one value of another type, or one name changed."""
    wrongs = [None, True, -1, 0, 10**400, 1e308, "text", "", [], {}, [1, "x"], {"x": {}}, "9" * 50]
    wrongs += [float("nan"), float("inf"), float("-inf")]
    if text.startswith('{"update"'):
        lines = text.splitlines()
        k = rng.randrange(len(lines))
        return "\n".join([*lines[:k], other_json(f" {lines[k]}", rng), *lines[k + 1 :], ""])
    try:
        document = json.loads(text)
    except ValueError:
        return text
    place, path = document, []
    while isinstance(place, dict | list) and place and (not path or rng.random() < 0.7):
        name = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        path.append((place, name))
        place = place[name]
    if not path:
        return json.dumps(rng.choice(wrongs))
    holder, name = path[-1]
    if isinstance(holder, dict) and rng.random() < 0.2:
        holder[f"{name}x"] = holder.pop(name)
    else:
        holder[name] = rng.choice(wrongs)
    return json.dumps(document)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run with everything that is read beside it, and data of every kind."""
    folder = tmp_path_factory.mktemp("fuzz")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.savez(folder / "x.npz", x=x, columns=np.array(list("abcd")))
    np.savez_compressed(folder / "packed.npz", x=x)
    (folder / "pictures").mkdir()
    for k, suffix in enumerate(("png", "jpg", "bmp", "gif", "tif", "ppm", "webp", "pgm")):
        pixels = rng.integers(0, 256, (9, 9, 3), np.uint8)
        picture = Image.fromarray(pixels).convert("L" if suffix == "pgm" else "RGB")
        picture.save(folder / "pictures" / f"{k}.{suffix}")
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((folder / "pictures").iterdir()):
            archive.write(path, path.name)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for kind in ("train", "t10k"):
        images = rng.integers(0, 256, (30, 28, 28), np.uint8).tobytes()
        for name, head, body in (
            ("images-idx3", struct.pack(">IIII", 0x803, 30, 28, 28), images),
            ("labels-idx1", struct.pack(">II", 0x801, 30), bytes(30)),
        ):
            (raw / f"{kind}-{name}-ubyte.gz").write_bytes(gzip.compress(head + body, mtime=0))
    train = ["train", "array", "--data", str(folder / "x.npz"), *TINY, "--out", str(folder / "run")]
    assert cli.main([*train, "--checkpoint.trajectory", "0.9", "--checkpoint.updates", "1", "--log.points", "2"]) == 0
    run = str(folder / "run")
    assert cli.main(["evaluate", run, "--samples", "20", "--ais-steps", "5", "--ais-chains", "10"]) == 0
    assert cli.main(["mixing", run, "--draws", "10", "--burn-in", "0", "--chains", "4"]) == 0
    GRBM(4, 3).save_pretrained(folder / "model")
    torch.save({"x": torch.zeros(3)}, folder / "weights.pth")
    np.savez(folder / "weights.npz", x=np.zeros(3))
    return folder


def cases(count: int, *kind: str):
    """As many generators of random numbers."""
    return [random.Random(f"{SEED} {kind} {k}") for k in range(count)]


USES = (
    ["sample", "RUN", "--n", "2", "--steps", "2", "--overwrite"],
    ["sample", "RUN", "--n", "2", "--steps", "2", "--overwrite", "--weights", "best"],
    ["sample", "RUN", "--n", "2", "--sampler", "trajectory-tempering", "--steps", "2", "--overwrite"],
    ["doctor", "RUN"],
    ["report", "RUN"],
    ["resume", "RUN", "--no-figures"],
    ["list", "RUN"],
    ["encode", "RUN", "test", "--overwrite"],
    ["export", "RUN", "RUN/exported", "--overwrite"],
    ["evaluate", "RUN", "--samples", "10", "--ais-steps", "3", "--ais-chains", "4", "--json"],
)


def test_fuzz_files_of_a_run(home, tmp_path):
    """Weights, samples and codes that a command writes, where it says nothing, are those of the whole run."""
    kinds = sorted(p.relative_to(home / "run").as_posix() for p in (home / "run").rglob("*") if p.is_file())
    kinds = [kind for kind in kinds if Path(kind).suffix in (".json", ".jsonl", ".safetensors")]
    assert len(kinds) >= 12
    expected = {}  # by use, and by whether training has ended
    for k, use in enumerate(USES):
        for has_ended in (True, False):
            folder = Path(shutil.copytree(home / "run", tmp_path / f"whole{k}{has_ended}"))
            if not has_ended:
                (folder / runs.STATUS).unlink()
            assert outcome([word.replace("RUN", str(folder)) for word in use])[0] in (0, 2, 3)
            expected[k, has_ended] = written(folder)
    for k, rng in enumerate(cases(560, "run")):
        folder = Path(shutil.copytree(home / "run", tmp_path / "run"))
        kind, number = kinds[k % len(kinds)], rng.randrange(len(USES))
        path = folder / kind
        if path.suffix in (".json", ".jsonl") and rng.random() < 0.7:
            path.write_text(other_json(path.read_text(), rng))
        else:
            path.write_bytes(mutated(path.read_bytes(), rng))
        has_ended = kind == runs.STATUS or rng.random() > 0.3
        if not has_ended:
            (folder / runs.STATUS).unlink()
        try:
            code, said = outcome([word.replace("RUN", str(folder)) for word in USES[number]])
            if code in (0, 3) and path.suffix == ".safetensors" and "damaged" not in said and "usable" not in said:
                whole = expected[number, has_ended]
                for name, numbers in written(folder).items():
                    if name in whole and name != kind:
                        assert np.array_equal(numbers, whole[name], equal_nan=True), name
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: {kind}, {USES[number]}")
            raise
        shutil.rmtree(folder)


def written(folder: Path) -> dict[str, np.ndarray]:
    """The numbers that a command may have written."""
    found = {}
    for name in ("samples/samples.npy", "codes/test.npy"):
        if (folder / name).is_file():
            found[name] = np.load(folder / name)
    with contextlib.suppress(UserError):
        found["model"] = read_tensors(folder / runs.WEIGHTS)["W"].numpy()
    return found


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "packed.npz"])
def test_fuzz_arrays_on_the_disk(home, tmp_path, name):
    """An archive gives the numbers that it was given, or is refused; a .npy file has no checksum."""
    whole = (home / name).read_bytes()
    truth = open_array(home / name)[:].numpy()
    for k, rng in enumerate(cases(130, name)):
        path = tmp_path / name
        path.write_bytes(mutated(whole, rng))
        try:
            code, _ = outcome(["train", "array", "--data", path, *TINY, "--out", tmp_path / "run"])
            if code == 0 and name != "x.npy":
                assert np.array_equal(open_array(path)[:].numpy(), truth)
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}")
            raise
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_fuzz_pictures(home, tmp_path, monkeypatch):
    """Files in a folder, and a zip file of them, which has checksums."""
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    out = tmp_path / "run"
    for k, rng in enumerate(cases(230, "pictures")):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        if k % 3 == 0:
            data = tmp_path / "x.zip"
            data.write_bytes(mutated((home / "x.zip").read_bytes(), rng))
        else:
            data = tmp_path / "pictures"
            shutil.rmtree(data, ignore_errors=True)
            shutil.copytree(home / "pictures", data)
            path = rng.choice(sorted(data.iterdir()))
            path.write_bytes(mutated(path.read_bytes(), rng))
        try:
            outcome(["train", "images", "--data", data, "--dataset.size", "6", *TINY, "--out", out])
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}")
            raise
        shutil.rmtree(out, ignore_errors=True)


def test_fuzz_files_of_mnist_and_of_others(home, tmp_path):
    """IDX files, folders of pretrained weights, weights of FID, tables of Hugging Face."""
    for k, rng in enumerate(cases(120, "others")):
        try:
            if k % 3 == 0:
                data = tmp_path / "mnist"
                shutil.rmtree(data, ignore_errors=True)
                shutil.copytree(home / "MNIST", data / "MNIST")
                path = rng.choice(sorted((data / "MNIST" / "raw").iterdir()))
                body = path.read_bytes()
                damaged = gzip.compress(mutated(gzip.decompress(body), rng), mtime=0) if k % 2 else mutated(body, rng)
                path.write_bytes(damaged)
                outcome(["train", "mnist-small", "--data-dir", data, *TINY, "--out", tmp_path / "run"])
                shutil.rmtree(tmp_path / "run", ignore_errors=True)
            elif k % 3 == 1:
                folder = tmp_path / "model"
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(home / "model", folder)
                path = rng.choice(sorted(folder.iterdir()))
                if path.suffix == ".json" and rng.random() < 0.7:
                    path.write_text(other_json(path.read_text(), rng))
                else:
                    path.write_bytes(mutated(path.read_bytes(), rng))
                with contextlib.suppress(UserError):
                    GRBM.from_pretrained(folder)
            else:
                path = tmp_path / rng.choice(["weights.pth", "weights.npz"])
                path.write_bytes(mutated((home / path.name).read_bytes(), rng))
                outcome(["evaluate", home / "run", "--fid", "--fid-weights", path, "--fid-samples", "100"])
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}")
            raise


VALUES = ("nan", "inf", "-inf", "-1", "0", "1", "2", "3.5", "1e-300", "1e308", "", "None", "text", "9" * 30, "0x10")
VALUES += ("1_000", "½", "-0", "True", "\x00", "-9223372036854775809", "é" * 300, "../..", "$HOME")


def test_fuzz_values_of_flags(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = [
        flag for flag in flags_of(options.TrainOptions) if not flag.startswith(("--out", "--log.wandb", "--data-dir"))
    ]
    commands = ["doctor", "encode", "evaluate", "impute", "mixing", "resume", "sample"]
    few = {"mixing": ["--draws", "10", "--burn-in", "0"], "evaluate": ["--samples", "10", "--ais-steps", "3"]}
    for k, rng in enumerate(cases(280, "flags")):
        if k % 2:
            args = ["train", "array", "--data", home / "x.npy", *TINY, "--out", tmp_path / "run"]
            flags = train
        else:
            command = rng.choice(commands)
            args = [command, home / "run", *few.get(command, [])]
            args += {"encode": ["test"], "impute": [home / "x.npy"]}.get(command, [])
            flags = [flag for flag in flags_of(function_of(command)[1]) if flag not in ("--out", "--fid")]
        for _ in range(rng.choice([1, 1, 2])):
            args += [rng.choice(flags), rng.choice(VALUES)]
        if "--sampler.name" not in args and rng.random() < 0.3 and k % 2:
            args += ["--sampler.name", rng.choice(["langevin", "parallel-tempering", "annealed", "gibbs-langevin"])]
        try:
            outcome(args)
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: {args}")
            raise
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def special(rng: random.Random) -> np.ndarray:
    """An array of an odd shape, type or content."""
    draw = np.random.default_rng(rng.randrange(2**32))
    n, columns = rng.choice([(0, 3), (1, 3), (2, 3), (30, 1), (30, 2), (30, 3), (3, 30), (40, 0)])
    x = draw.normal(size=(n, columns))
    change = rng.choice(
        ["none", "nan", "inf", "constant", "huge", "tiny", "scaled", "equal", "spike", "shape", "steps"]
    )
    if x.size:
        column = rng.randrange(columns)
        if change in ("nan", "inf"):
            x[rng.randrange(n), column] = {"nan": np.nan, "inf": -np.inf}[change]
        elif change == "constant":
            x[:, column] = rng.choice([0.0, 1.0, -1e300, 1e-310])
        elif change in ("huge", "tiny"):
            x[:, column] *= {
                "huge": rng.choice([1e20, 1e38, 1e154, 1e307]),
                "tiny": rng.choice([1e-20, 1e-160, 1e-310]),
            }[change]
        elif change == "scaled":
            x *= 10.0 ** rng.randrange(-300, 300, 50)
        elif change == "equal":
            x[:] = x[0]
        elif change == "spike":
            x[rng.randrange(n), column] = 10.0 ** rng.randrange(5, 300, 20)
        elif change == "shape":
            return rng.choice([x[0], x[None], x.reshape(n, columns, 1), np.array(1.0), x[..., None, None]])
        elif change == "steps":
            x = np.sign(x)
    with np.errstate(all="ignore"):
        kind = rng.choice(["f8", "f8", "f8", "f4", "f2", ">f8", "i8", "u1", "?", "c16", "U3", "S2", "g", "M8[s]", "F"])
        if kind == "F":
            return np.asfortranarray(x)
        if kind in ("i8", "u1", "M8[s]"):
            x = np.nan_to_num(x, posinf=9, neginf=-9).clip(-1e6, 1e6).astype("i8")
        return x.astype(kind)


@pytest.mark.parametrize("standardise", ["pixel", "none"])
def test_fuzz_special_arrays(tmp_path, standardise):
    """Refused before there is a run folder, or learned from and drawn with finite numbers."""
    out = tmp_path / "run"
    for k, rng in enumerate(cases(110, "arrays", standardise)):
        np.save(tmp_path / "x.npy", special(rng))
        more = rng.choice(
            [[], ["--dataset.held-out", "0"], ["--sampler.name", "parallel-tempering"], ["--model.start", "anchored"]]
        )
        args = ["train", "array", "--data", tmp_path / "x.npy", "--dataset.standardise", standardise, *TINY, *more]
        try:
            code, _ = outcome([*args, "--out", out])
            assert (code == 2) == (not (out / "config.json").exists())
            if code == 0:
                assert outcome(["sample", out, "--n", "3"])[0] == 0
                assert np.isfinite(np.load(out / "samples" / "samples.npy")).all()
                assert outcome(["doctor", out])[0] in (0, 3)
                assert outcome(["figures", out])[0] == 0
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}")
            raise
        shutil.rmtree(out, ignore_errors=True)


def test_fuzz_columns_of_every_magnitude_and_offset(tmp_path):
    """Scores and samples are those of the same numbers about 0 with deviation 1, but for the units.

    Digits that are lost may turn the axes of whitening round, and so lead to another model of the same rows.
    """
    for k, rng in enumerate(cases(60, "columns")):
        draw = np.random.default_rng(rng.randrange(2**32))
        n, columns = rng.choice([12, 60, 400]), rng.choice([1, 2, 3])
        width = 10.0 ** np.array([rng.randrange(-140, 140) for _ in range(columns)])
        far = np.array(
            [rng.choice([0.0, 10.0 ** rng.randrange(-2, 13), -(10.0 ** rng.randrange(0, 13))]) for _ in width]
        )
        centre, digits = far * width, max(1e-5, 4 * float(np.spacing(np.abs(far)).max()))
        X = centre + width * draw.normal(size=(n, columns))
        U = ((X.astype(np.longdouble) - centre) / width).astype(float)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours, plain = (GaussianBernoulliRBM(4, n_iter=2, random_state=0).fit(x) for x in (X, U))
                assert ours.constant_ == ours.collinear_ == []
                drawn, expected = (ours.sample(2000).astype(np.longdouble) - centre) / width, plain.sample(2000)
                assert np.abs(drawn.mean(0) - expected.mean(0)).max() < 0.3
                assert np.abs(drawn.std(0) / expected.std(0) - 1).max() < 0.2
                assert ours.score(X) == pytest.approx(plain.score(U) - np.log(width).sum(), abs=0.2 + 100 * digits)
            np.save(tmp_path / "x.npy", X)
            for args in (
                ["train", "array", "--data", tmp_path / "x.npy", *TINY, "--out", tmp_path / "run"],
                ["sample", tmp_path / "run", "--n", "200", "--steps", "20"],
            ):
                assert outcome(args)[1] == ""
            drawn = (np.load(tmp_path / "run" / "samples" / "samples.npy").astype(np.longdouble) - centre) / width
            assert np.abs(drawn.mean(0) - U.mean(0)).max() < 1
            assert 0.4 < (drawn.std(0) / U.std(0)).min() <= (drawn.std(0) / U.std(0)).max() < 2.5
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: {n} rows, deviations {width}, centres {centre}")
            raise
        shutil.rmtree(tmp_path / "run")


def test_fuzz_columns_that_are_nearly_sums_of_others():
    """What is left over of a sum is a direction like any other, down to the digits of the columns."""
    for k, rng in enumerate(cases(12, "sums")):
        draw = np.random.default_rng(rng.randrange(2**32))
        width, far = 10.0 ** rng.randrange(-20, 20), 10.0 ** rng.randrange(0, 6)
        rest = 10.0 ** -rng.uniform(1, 7) * width
        parts = width * (draw.normal(size=(600, 2)) + far)
        left = rest * draw.normal(size=600)
        X = np.c_[parts, parts.sum(1) + left]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rbm = GaussianBernoulliRBM(4, random_state=0).fit(X)
                found = rbm.sample(2000) @ [-1, -1, 1]
                near = X[:1] - np.array([0, 0, left[0]])
                at, off = rbm.score_samples(np.r_[near, near + np.array([0, 0, 20 * rest])])
            assert rbm.collinear_ == []
            assert found.std() == pytest.approx((X @ [-1, -1, 1]).std(), rel=0.25)
            assert 50 < at - off < 800  # 200 under a Gaussian of the deviation that is left
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: deviation {width}, centre {far * width}, rest {rest}")
            raise


def test_fuzz_pictures_of_every_turn_mode_and_depth(tmp_path, monkeypatch):
    """The numbers are those of a calculation in NumPy, in a folder and in a zip file, and hidden files none of them."""
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    formats = {"L": ("png", "tif"), "LA": ("png", "tif"), "RGB": ("png", "tif", "webp"), "RGBA": ("png", "tif", "webp")}
    formats |= {"I;16": ("png", "tif"), "I": ("tif",), "F": ("tif",)}
    for k, rng in enumerate(cases(150, "turns")):
        draw = np.random.default_rng(rng.randrange(2**32))
        height, width = rng.randrange(2, 9), rng.randrange(2, 9)
        folder, deep, expected = tmp_path / "pictures", [], []
        most = rng.choice([200, 1000, 4095, 60_000])
        for number in range(rng.randrange(1, 6)):
            mode = rng.choice(list(formats))
            suffix, orientation = rng.choice(formats[mode]), rng.randrange(1, 9)
            name = f"{rng.choice(['', 'inner/', 'a.b/'])}{number}.{suffix}"
            alpha = draw.integers(0, 256, (height, width), np.uint8)
            if mode in ("I;16", "I", "F"):
                x = draw.integers(0, most, (height, width)).astype({"I;16": "<u2", "I": "<i4", "F": "<f4"}[mode])
                x = x / np.float32(most * 1.25) if mode == "F" else x
                deep.append((number, x, mode == "F"))
                expected.append((name, None))
            else:
                colours = draw.integers(0, 256, (height, width, 3), np.uint8)
                shown = thrice(colours[..., 0]) if mode.startswith("L") else colours
                expected.append((name, on_white(shown, alpha) if mode.endswith("A") else shown.astype(float)))
                x = colours[..., 0] if mode == "L" else colours
                x = np.dstack([colours[..., 0], alpha]) if mode == "LA" else x
                x = np.dstack([colours, alpha]) if mode == "RGBA" else x
            image = Image.fromarray(np.ascontiguousarray(upright(x, {6: 8, 8: 6}.get(orientation, orientation))))
            exif = image.getexif()
            exif[0x0112] = orientation
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            image.save(folder / name, exif=exif, lossless=True, exact=True)
        for name in rng.sample(["._0.png", ".hidden/1.png", "__MACOSX/0.tif", "inner/.ipynb_checkpoints/a.webp"], 2):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(rng.randbytes(20))
        largest = max((float(x.max()) for _, x, _ in deep), default=0.0)
        white = max(1.0, largest)
        if largest > 1 and not any(is_fraction for *_, is_fraction in deep):
            white = float(next(2**bits - 1 for bits in range(8, 66, 2) if 2**bits > largest))
        for number, x, _ in deep:
            expected[number] = expected[number][0], thrice(x / white * 255)
        data = folder
        try:
            if rng.random() < 0.4:
                data = tmp_path / "x.zip"
                with zipfile.ZipFile(data, "w") as archive:
                    for path in folder.rglob("*"):
                        archive.write(path, path.relative_to(folder))
            rows, (channels, *size), *_ = open_pictures(data, Look())
            assert size == [height, width]
            found = 255 * rows[:].numpy().reshape(len(rows), channels, height, width).transpose(0, 2, 3, 1)
            order = sorted(expected, key=lambda case: Path(case[0]) if data == folder else case[0])
            truth = np.stack([x for _, x in order])
            np.testing.assert_allclose(found, truth[..., :channels], rtol=0, atol=1.01)
            assert channels == 3 or np.ptp(truth, axis=-1).max() == 0
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: {[name for name, _ in expected]}, white {white}, {data.name}")
            raise
        shutil.rmtree(folder)


def test_fuzz_links_in_a_run(home, tmp_path):
    """Whatever in a run is a link, nothing is read, written or removed at its other end."""
    secret = tmp_path / "secret"
    names = sorted(p.relative_to(home / "run").as_posix() for p in (home / "run").rglob("*"))
    names += ["figures", "figures/density.png", "samples", "samples/samples.npy", "exported", "codes", "report.html"]
    for k, rng in enumerate(cases(150, "links")):
        folder = Path(shutil.copytree(home / "run", tmp_path / "run"))
        name, use = rng.choice(names), rng.choice(USES)
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        if place.is_dir():
            shutil.move(place, secret)
        else:
            place.unlink(missing_ok=True)
            secret.mkdir() if rng.random() < 0.3 else secret.write_text("sesame")
        if secret.is_dir():
            (secret / "word").write_text("sesame")
        if rng.random() < 0.3:
            (folder / runs.STATUS).unlink(missing_ok=True)
        place.symlink_to(rng.choice([secret, Path(os.path.relpath(secret, place.parent))]))
        before = contents(secret)
        try:
            said = outcome([word.replace("RUN", str(folder)) for word in use])[1]
            assert contents(secret) == before
            assert "sesame" not in said
            assert not any(
                b"sesame" in content for path, content in contents(folder).items() if not linked(path, folder)
            )
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: {name}, {use}")
            raise
        shutil.rmtree(folder)
        shutil.rmtree(secret) if secret.is_dir() else secret.unlink()


def contents(folder: Path) -> dict[str, bytes]:
    """What lies in a file or a folder, by path."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


def linked(path: str, folder: Path) -> bool:
    """Whether a path passes through a link inside a folder."""
    return any(part.is_symlink() for part in (Path(path), *Path(path).parents) if folder in part.parents)


def test_fuzz_encodings_of_standard_output(home, tmp_path, monkeypatch):
    """The exit code, what is written and what can be shown are the same as in UTF-8."""

    def printed(args, encoding: str) -> tuple[int, str]:
        content = io.BytesIO()
        with monkeypatch.context() as patch:
            stream = io.TextIOWrapper(content, encoding=encoding, errors="strict", write_through=True)
            patch.setattr("sys.stdout", stream)
            patch.setattr("sys.stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict"))
            return cli.main([str(a) for a in args]), content.getvalue().decode(encoding)

    kinds = ["ascii", "cp1252", "cp437", "cp932", "gb18030", "koi8-r", "latin-1", "utf-16-le", "utf-7", "mac-roman"]
    train = ["train", "array", "--data", str(home / "x.npz"), *TINY, "--seed", "1", "--out", "RUN", "--overwrite"]
    for k, rng in enumerate(cases(60, "encodings")):
        use, encoding, found = rng.choice([*USES, train]), rng.choice(kinds), {}
        try:
            for kind in ("utf-8", encoding):
                folder = Path(shutil.copytree(home / "run", tmp_path / "run"))
                code, text = printed([word.replace("RUN", str(folder)) for word in use], kind)
                found[kind] = code, text, written(folder)
                shutil.rmtree(folder)
            (code, text, numbers), (other_code, other_text, other_numbers) = found.values()
            assert other_code == code
            assert numbers.keys() == other_numbers.keys()
            assert all(np.array_equal(numbers[name], other_numbers[name]) for name in numbers)
            if use[0] in ("list", "doctor", "sample", "export"):  # the others print how long they took
                assert other_text == text.encode(encoding, "replace").decode(encoding)
        except BaseException as error:
            error.add_note(f"case {k}, seed {SEED}: {use} in {encoding}")
            raise
