"""Helpers of all tests: models whose answers are known, statistical bounds, small data sets, commands and errors."""

import gzip
import math
import os
import struct
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from grbm import GRBM, PCD, Base, FitOptions, Gibbs, TrainState, cli, fit
from grbm.core.randomness import Philox, generator
from grbm.evaluate import exact
from grbm.model.contrasts import Contrasts
from grbm.samplers.chains import Walk
from grbm.samplers.moments import Moments, gradient

# Statistical bounds

CHANCE = 1e-3  # probability that a family of correct z-scores has one beyond its bound


def z_bound(n: int) -> float:
    """Bound on the absolute values of a family of ``n`` z-scores, by Bonferroni's inequality.

    With probability 1 - `CHANCE` or more, no score of a correct family of normal scores is beyond it: 3.3 for one
    score, 3.9 for 10, 4.4 for 100, 4.9 for 1,000. It follows from the number of scores alone, never from their values.
    """
    return NormalDist().inv_cdf(1 - CHANCE / (2 * n))


def assert_standard(z: object, n_cases: int = 1, n: int | None = None) -> None:
    """Assert that all z-scores are within the bound of their family.

    Parameters
    ----------
    z : array_like
        Deviations from the truth, in standard errors; NaN fails.
    n_cases : int
        Number of sets of such scores in the family: the cases of a parametrised test, the turns of a loop.
    n : int, optional
        Number of scores in the family, where its sets are not of one size.
    """
    scores = torch.as_tensor(z, dtype=torch.float64).abs()
    bound = z_bound(n or scores.numel() * n_cases)
    assert bool((scores < bound).all()), f"a z-score of {float(scores.max()):.2f} is beyond {bound:.2f}"


def mean_z(x: torch.Tensor, truth: object) -> torch.Tensor:
    """Deviations of the means of ``x`` over its first axis from ``truth``, in standard errors of these means."""
    x = torch.as_tensor(x, dtype=torch.float64)
    return (x.mean(0) - torch.as_tensor(truth, dtype=torch.float64)) / (x.std(0) / len(x) ** 0.5)


def share_z(share: float, truth: float, n: int) -> float:
    """Deviation of the share of ``n`` independent cases from its probability, in standard errors."""
    return (float(share) - truth) / (truth * (1 - truth) / n) ** 0.5


def z_scores(v: torch.Tensor, h: torch.Tensor, moments: Moments) -> torch.Tensor:
    """Deviations of the sample moments of v, v², h and v hᵀ from the exact ones, in standard errors."""
    v, h = v.detach().cpu().double(), h.detach().cpu().double()
    vh = torch.einsum("ci,cj->cij", v, h).flatten(1)
    truth = torch.cat([moments.v, moments.v2, moments.h, moments.vh.flatten()])
    return mean_z(torch.cat([v, v.square(), h, vh], 1), truth)


FEW_AND_MANY = pytest.mark.parametrize("n_chains", [8_000, pytest.param(40_000, marks=pytest.mark.whole)])


def rest_in_whole(n: int, *cases) -> list:
    """Values of one parameter of a test, of which all but the first ``n`` are for the tier `whole`."""
    return [*cases[:n], *(pytest.param(case, marks=pytest.mark.whole) for case in cases[n:])]


# Pictures whose pixels are known


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Bytes of colours (height, width, channels) laid on white by bytes of opacity (height, width)."""
    a = alpha[..., None] / 255
    return colour * a + 255 * (1 - a)


def thrice(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, -1)


def upright(stored: np.ndarray, orientation: int) -> np.ndarray:
    """The picture whose first row and column in a file are the sides that an EXIF orientation names (2.32, 4.6.4)."""
    turned = stored if orientation < 5 else stored.swapaxes(0, 1)
    down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
    return turned[:: -1 if down else 1, :: -1 if across else 1]


# Models whose answers are known


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


def exact_chains(model: GRBM, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Independent exact draws (v, h)."""
    return exact.sample(model, n, seed=seed)


def two_modes(distance: float = 12.0, dtype=torch.float64) -> GRBM:
    """A model of one unit each: modes ``distance`` deviations apart, with masses 0.2 (h = 0) and 0.8 (h = 1)."""
    model = GRBM(1, 1, dtype=dtype)
    with torch.no_grad():
        model.W.fill_(distance)
        model.mu.fill_(-distance / 2)
        model.b.fill_(math.log(4))
    return model


WIDE = Base(torch.zeros(1).double(), torch.full((1,), 30.0).double())  # a base distribution that covers both modes


def contrasted(n_visible: int = 2, n_hidden: int = 3, units: list[int] | None = None) -> GRBM:
    """A float64 model at three contrasts, about a centre that differs from its mean.

    ``units`` has 1 for a visible unit that has contrast and 0 for one that has none; by default all have it.
    """
    model = GRBM(n_visible, n_hidden, n_contrasts=3, dtype=torch.float64, seed=1)
    rng = generator(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    centre = torch.linspace(-0.4, 0.5, n_visible).double()
    scales = torch.tensor([0.4, 1.0, 2.5]).double()
    chosen = None if units is None else torch.tensor(units).double()
    model.contrasts = Contrasts(torch.tensor([0.5, 0.2, 0.3]).double().log(), scales.log(), centre, chosen)
    return model


# Walks of two engines


def agree(one, two) -> None:
    """Two walks from the same random numbers agree up to rounding.

    A chain that came within 1e-6 of a threshold may have gone another way; at most one in twenty does.
    """
    same = (one.chains.h == two.chains.h).all(-1) & ((one.chains.v - two.chains.v).abs() < 1e-3).all(-1)
    assert same.double().mean() >= 0.95
    for a, b in zip(one.chains[:3], two.chains[:3], strict=True):
        torch.testing.assert_close(a[same], b[same], rtol=1e-4, atol=1e-4)
    assert (one.accept_prob is None) == (two.accept_prob is None)
    if one.accept_prob is not None:
        assert one.accept_prob.shape == one.chains.v.shape[:-1]
        torch.testing.assert_close(one.accept_prob[same], two.accept_prob[same], rtol=0, atol=1e-3)
        torch.testing.assert_close(one.accept_prob.mean(-1), one.accept_rate, rtol=0, atol=1e-6)


def own_moments(engine, energy, moves, v, n_steps: int, burn_in: int, probabilities: bool, key: int):
    """Moments that an engine's walk should have summed: means over its own states, from a shorter walk for each."""
    states = []
    for k in range(burn_in + 1, n_steps + 1):
        chains = engine.run(energy, moves.part(0, k), Walk(v, k), Philox(key, 5)).chains
        states.append((chains.v.double(), (chains.h_prob if probabilities else chains.h).double()))
    v, h = (torch.cat(x) for x in zip(*states, strict=True))
    return [v.mean(0), v.square().mean(0), h.mean(0), v.T @ h / len(v)]


# CUDA kernels, in Triton's interpreter where there is no GPU

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
TALL = {"BM": 128 if CUDA else 512}  # fewer tiles; the interpreter takes as long for each
KERNEL_KEY = 0xFEDCBA9876543210  # above 2^63: the kernels see it as a negative number
in_minutes = [] if CUDA else [pytest.mark.slow]  # walks of many tiles in the interpreter
interpreted = [] if CUDA else [pytest.mark.whole]  # walks of seconds in the interpreter


# Learning, step by step


def new_state(n_hidden: int = 6, optimizer=torch.optim.Adam) -> TrainState:
    """A model of four visible units that has learned nothing."""
    model = GRBM(4, n_hidden, seed=1)
    return TrainState(model, optimizer(model.parameters(), lr=0.01), seed=2)


def learn(state: TrainState, until: int, total: int = 30, objective=None) -> TrainState:
    """Train ``state`` on 100 rows of noise, of ``total`` updates as far as ``until``."""
    data = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    objective = objective or PCD(Gibbs(), 2, n_chains=20, restart=0.1)
    for _ in fit(state, data, objective, FitOptions(n_updates=total, batch_size=20, average_decay=0.9, blocks=4)):
        if state.update == until:
            break
    return state


# Data


def shared_data() -> Path:
    """The folder with MNIST, or a skip with the reason."""
    here = Path(__file__).resolve().parent.parent
    candidates = [os.environ.get("GRBM_DATA_DIR"), here.parent / "shared" / "data", here / "data"]
    for folder in candidates:
        if folder and (Path(folder) / "MNIST" / "raw").is_dir():
            return Path(folder)
    pytest.skip("no MNIST folder: set GRBM_DATA_DIR to one that holds MNIST/raw/*-ubyte[.gz]")


def write_idx(path: Path, array: np.ndarray, compress: bool) -> None:
    """Write ``array`` as bytes in the format of MNIST."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    raw = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if compress else raw)


def mnist_folder(folder: Path, compress: bool, name: str = "MNIST", n_train: int = 20, n_test: int = 6) -> Path:
    """Make a folder laid out as MNIST's, of random images and labels, and return that of the files."""
    raw = folder / name / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    suffix = ".gz" if compress else ""
    for kind, n in (("train", n_train), ("t10k", n_test)):
        write_idx(raw / f"{kind}-images-idx3-ubyte{suffix}", rng.integers(0, 256, (n, 28, 28)), compress)
        write_idx(raw / f"{kind}-labels-idx1-ubyte{suffix}", rng.integers(0, 10, (n,)), compress)
    return raw


# The command line

TINY = ["--train.n-updates", "3", "--model.n-hidden", "6", "--log.no-tensorboard", "--no-figures"]


def refused(args, capsys, *named: object, by_parser: bool = False, notes: int = 0) -> str:
    """Assert that a command exits with 2 and says in one sentence what is wrong, which names ``named``; return it.

    ``notes`` lines may stand before the sentence. With ``by_parser`` the parser of options refuses a value of a wrong
    type, which it does by an exception and a box of several lines.
    """
    capsys.readouterr()
    if by_parser:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(a) for a in args])
        code = stop.value.code
    else:
        code = cli.main([str(a) for a in args])
    said = capsys.readouterr().err
    assert code == 2, said
    if not by_parser:
        lines = said.splitlines()
        assert all(line.startswith("Note: ") for line in lines[:notes]), said
        lines = lines[notes:]
        assert len(lines) == 1, said
        assert lines[0].startswith("grbm: "), said
    assert "Traceback" not in said
    for word in named:
        assert str(word) in said, said
    return said


@torch.no_grad()
def exact_gradient(model: GRBM, data: torch.Tensor) -> dict[str, torch.Tensor]:
    """Exact gradient of the mean log-likelihood of ``data`` (n, N), by parameter name."""
    energy, v = exact._energy(model), data.double()
    contrasts = model.contrasts.to(v)
    share = contrasts.log_joint(v, energy.free_energy).softmax(1).T / len(v)  # (K, n)
    parts = []
    for weight, scale in zip(share, contrasts.log_scales.exp(), strict=True):
        u = contrasts.at(v, scale)
        h = energy.hidden_logits(u).sigmoid()
        parts.append((weight @ u, weight @ u.square(), weight @ h, (u * weight[:, None]).T @ h))
    return gradient(energy, Moments(*(torch.stack(x).sum(0) for x in zip(*parts, strict=True))), exact.moments(model))
