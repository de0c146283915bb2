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

from grbm import GRBM, UserError, cli, runs
from grbm.cli import options
from grbm.cli.common import flags_of
from grbm.data.arrays import open_array
from grbm.files import read_tensors

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
    wrongs = [None, True, -1, 0, 10**400, 1e308, float("nan"), "text", "", [], {}, [1, "x"], {"x": {}}, "9" * 50]
    try:
        document = json.loads(text.splitlines()[0] if text.startswith('{"update"') else text)
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
            (raw / f"{kind}-{name}-ubyte.gz").write_bytes(gzip.compress(head + body))
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
    expected = {}
    for k, use in enumerate(USES):
        folder = Path(shutil.copytree(home / "run", tmp_path / f"whole{k}"))
        assert outcome([word.replace("RUN", str(folder)) for word in use])[0] in (0, 2, 3)
        expected[k] = written(folder)
    for k, rng in enumerate(cases(560, "run")):
        folder = Path(shutil.copytree(home / "run", tmp_path / "run"))
        kind, number = kinds[k % len(kinds)], rng.randrange(len(USES))
        path = folder / kind
        if path.suffix in (".json", ".jsonl") and rng.random() < 0.7:
            path.write_text(other_json(path.read_text(), rng))
        else:
            path.write_bytes(mutated(path.read_bytes(), rng))
        if rng.random() < 0.3:
            (folder / runs.STATUS).unlink(missing_ok=True)
        try:
            code, said = outcome([word.replace("RUN", str(folder)) for word in USES[number]])
            if code in (0, 3) and path.suffix == ".safetensors" and "damaged" not in said and "usable" not in said:
                for name, numbers in written(folder).items():
                    if name in expected[number] and name != kind:
                        assert np.array_equal(numbers, expected[number][name], equal_nan=True), name
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
                damaged = gzip.compress(mutated(gzip.decompress(body), rng)) if k % 2 else mutated(body, rng)
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
    kinds = {
        "sample": options.SampleOptions,
        "evaluate": options.EvaluateOptions,
        "mixing": options.MixingOptions,
        "encode": options.EncodeOptions,
        "impute": options.ImputeOptions,
        "doctor": options.DoctorOptions,
        "resume": options.ResumeOptions,
    }
    few = {"mixing": ["--draws", "10", "--burn-in", "0"], "evaluate": ["--samples", "10", "--ais-steps", "3"]}
    for k, rng in enumerate(cases(280, "flags")):
        if k % 2:
            args = ["train", "array", "--data", home / "x.npy", *TINY, "--out", tmp_path / "run"]
            flags = train
        else:
            command = rng.choice(sorted(kinds))
            args = [command, home / "run", *few.get(command, [])]
            args += {"encode": ["test"], "impute": [home / "x.npy"]}.get(command, [])
            flags = [flag for flag in flags_of(kinds[command]) if flag not in ("--out", "--fid")]
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
