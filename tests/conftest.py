"""Fixtures of all tests, and where they keep what is made once: compiled code, classifiers, trained runs."""

import atexit
import fcntl
import hashlib
import importlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

import grbm.core.options
from grbm.samplers.engines import compiled
from grbm.samplers.engines.native import Native

pytest.register_assert_rewrite("tests.helpers")
from tests.helpers import mnist_folder  # noqa: E402, whose assertions are rewritten too

SOURCE = Path(grbm.__file__).parent
DAY = 24 * 3600  # seconds

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # and in the processes that tests start
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # CUDA kernels on the CPU; read when Triton is imported


def pytest_configure(config: pytest.Config) -> None:
    """Keep what is costly to make beside pytest's own cache, from session to session.

    Compiled code lies there under the digest of its sources, compiler and processor; the rest in a folder named by the
    digest of the whole package, so nothing of another version is found. Tests of the cache itself use a fresh one.
    """
    if config.option.markexpr == "whole":
        config.option.markexpr = "whole and not slow"  # what takes minutes is slow, whatever else it is
    if "GRBM_CACHE_DIR" in os.environ:
        return
    if config.getoption("cacheclear", False) or getattr(config, "cache", None) is None:
        os.environ["GRBM_CACHE_DIR"] = tempfile.mkdtemp(prefix="grbm-tests-")
        atexit.register(shutil.rmtree, os.environ["GRBM_CACHE_DIR"], ignore_errors=True)
        return
    everything, digest = config.cache.mkdir("grbm"), hashlib.blake2b(digest_size=8)
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(path.read_bytes())
    for old in everything.iterdir():
        if old.name not in ("native", digest.hexdigest()) and time.time() - old.stat().st_mtime > DAY:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    here = everything / digest.hexdigest()
    for folder in (here, everything / "native"):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not (here / "native").exists():
        (here / "native").symlink_to(everything / "native")
    os.environ["GRBM_CACHE_DIR"] = str(here)


@pytest.fixture
def few_looks(monkeypatch):
    """Validate 8 times in place of 40: validations take longer than the short fits of tests themselves."""
    monkeypatch.setattr("grbm.core.options.LOOKS", 8)
    monkeypatch.setattr("grbm.core.options.LOOKS_BEFORE_ROUNDS", 8)


@pytest.fixture(params=["native", "fused"])
def fast_engine(request, monkeypatch):
    """Chains under measurements run on each engine that has a walk for them."""
    if request.param == "native":
        if compiled.library() is None:
            pytest.skip("there is no compiler here")
        return Native()
    pytest.importorskip("triton", reason="Triton is not installed")
    engine = importlib.import_module("grbm.samplers.engines.cuda").Cuda()
    monkeypatch.setattr("grbm.samplers.conditional.engine_for", lambda like, rng: engine)
    return engine


@pytest.fixture
def figures_drawn(monkeypatch):
    """Figures that are saved during a test, as matplotlib has them, in the order of saving."""
    figures, save = [], Figure.savefig

    def savefig(figure, *args, **options):
        figures.append(figure)
        return save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


class Runs:
    """Runs of the command line, each trained once a session by whichever process needs it first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def shared(self, preset: str, *options: str, **patches: object) -> Path:
        """The folder of a run of ``preset`` with ``options``, which all tests share: read it, change nothing in it.

        ``patches`` are attributes of ``grbm.core.options`` while it trains.
        """
        from grbm import cli

        settings = (preset, options, patches, grbm.core.options.LOOKS)  # which fixtures may have changed
        digest = hashlib.blake2b(repr(settings).encode(), digest_size=8).hexdigest()
        self.folder.mkdir(parents=True, exist_ok=True)
        out = self.folder / digest / preset
        with (self.folder / f"{digest}.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (out / "status.json").is_file():
                shutil.rmtree(out, ignore_errors=True)
                for name, value in patches.items():
                    patch.setattr(f"grbm.core.options.{name}", value)
                assert cli.main(["train", preset, *options, "--out", str(out)]) == 0
        return out

    def copy(self, to: Path, preset: str, *options: str, **patches: object) -> Path:
        """A copy of that run at ``to``, to be changed at will."""
        return Path(shutil.copytree(self.shared(preset, *options, **patches), to))


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory) -> Runs:
    """Trained runs by preset and options, shared by all processes of a session."""
    base = tmp_path_factory.getbasetemp()
    return Runs((base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "trained")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Folders laid out as the real ones: 60 images each of MNIST, Fashion-MNIST and CelebA."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("MNIST", "FashionMNIST"):
        mnist_folder(folder, True, name, 60, 60)
    rng = np.random.default_rng(0)
    faces = folder / "celeba" / "img_align_celeba"
    faces.mkdir(parents=True)
    for k in range(60):
        Image.fromarray(rng.integers(0, 255, (109, 89, 3), dtype=np.uint8)).save(faces / f"{k:06d}.jpg")
    return folder
