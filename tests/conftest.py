"""Small random models, exact chains and the shared data folder."""

import atexit
import gzip
import os
import shutil
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import GRBM
from grbm.evaluate import exact
from grbm.moments import Moments
from grbm.randomness import generator

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # and in the processes that tests start
if "GRBM_CACHE_DIR" not in os.environ:  # what other versions of the program left in the user's cache must not be found
    os.environ["GRBM_CACHE_DIR"] = tempfile.mkdtemp(prefix="grbm-tests-")
    atexit.register(shutil.rmtree, os.environ["GRBM_CACHE_DIR"], ignore_errors=True)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # CUDA kernels on the CPU; read when Triton is imported


@pytest.fixture
def few_looks(monkeypatch):
    """At held-out rows: 40, as in any fit, would take longer than the short fits of tests themselves."""
    monkeypatch.setattr("grbm.options.LOOKS", 8)


def random_model(n_visible: int, n_hidden: int, seed: int, *, strength: float = 1.0, dtype=torch.float64) -> GRBM:
    """A model with unequal variances whose hidden units matter: nothing is zero, nothing symmetric."""
    model = GRBM(n_visible, n_hidden, dtype=dtype)
    rng = generator(seed, "test model")
    with torch.no_grad():
        model.W.copy_(strength * torch.randn(n_visible, n_hidden, generator=rng, dtype=torch.float64))
        model.mu.copy_(torch.randn(n_visible, generator=rng, dtype=torch.float64))
        model.log_var.copy_(0.5 * torch.randn(n_visible, generator=rng, dtype=torch.float64) - 0.3)
        # log p(e_j)/p(0) moderate for every unit j, so that no state is too rare for a standard error to mean anything
        shifted = ((model.mu[:, None] + model.W) ** 2 - model.mu[:, None] ** 2) / model.var[:, None]
        model.b.copy_(0.7 * torch.randn(n_hidden, generator=rng, dtype=torch.float64) - 0.5 * shifted.sum(0))
    return model


def exact_chains(model: GRBM, n: int, seed: int):
    """Independent exact draws (v, h)."""
    return exact.sample(model, n, seed=seed)


def z_scores(v: torch.Tensor, h: torch.Tensor, moments: Moments) -> torch.Tensor:
    """Deviations of the sample moments of v, v², h and v hᵀ from the exact ones, in standard errors."""
    vh = torch.einsum("ci,cj->cij", v, h).flatten(1)
    columns = torch.cat([v, v.square(), h, vh], 1).double()
    truth = torch.cat([moments.v, moments.v2, moments.h, moments.vh.flatten()])
    return (columns.mean(0) - truth) / (columns.std(0) / len(v) ** 0.5)


def shared_data() -> Path:
    """The folder with MNIST, or a skip with the reason."""
    here = Path(__file__).resolve().parent.parent
    candidates = [os.environ.get("GRBM_DATA_DIR"), here.parent / "shared" / "data", here / "data"]
    for folder in candidates:
        if folder and (Path(folder) / "MNIST" / "raw").is_dir():
            return Path(folder)
    pytest.skip("no MNIST folder: set GRBM_DATA_DIR to one that holds MNIST/raw/*-ubyte[.gz]")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Folders laid out as the real ones: 60 images each of MNIST, Fashion-MNIST and CelebA."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        raw = folder / name / "raw"
        raw.mkdir(parents=True)
        for kind in ("train", "t10k"):
            images, labels = rng.integers(0, 256, (60, 28, 28), np.uint8), rng.integers(0, 10, 60).astype(np.uint8)
            head = struct.pack(">IIII", 0x803, 60, 28, 28)
            (raw / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
            (raw / f"{kind}-labels-idx1-ubyte.gz").write_bytes(
                gzip.compress(struct.pack(">II", 0x801, 60) + labels.tobytes())
            )
    faces = folder / "celeba" / "img_align_celeba"
    faces.mkdir(parents=True)
    for k in range(60):
        Image.fromarray(rng.integers(0, 255, (109, 89, 3), dtype=np.uint8)).save(faces / f"{k:06d}.jpg")
    return folder
