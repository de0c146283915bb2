"""The walk in native code (`native.c`), for float32 on a CPU; all C is compiled once on a machine, by its compiler."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from grbm.errors import UserError
from grbm.files import cache_folder, keeping, kept
from grbm.model import Energy
from grbm.moments import Moments, MomentSum
from grbm.randomness import Blocks, Philox, n_blocks
from grbm.samplers.chains import Chains, Walked
from grbm.samplers.moves import Moves

SOURCES = [
    Path(__file__).with_name(name) for name in ("native.c", "tempered.c", "annealed.c", "collapsed.c", "averages.c")
]
HEADERS = [Path(__file__).with_name(name) for name in ("arithmetic.h", "steps.h")]
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread"]
PANEL, FEW = 64, 4  # as in native.c: columns of a packed matrix that lie together; visible units treated one by one


_forked = False  # OpenMP's threads do not outlive a fork, and waiting for them would be for ever


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class Walk(ctypes.Structure):
    """The C struct of the same name, in steps.h."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in (
            "n_replicas", "n_chains", "chunk", "n_visible", "n_hidden", "n_steps", "burn_in", "adjusted", "adjust_from",
            "mean_field", "probabilities", "draw_start", "held", "keep_p", "v_row", "h_row", "ring", "move_row", "half",
        )]
        + [("key", ctypes.c_uint64)]
        + [(name, ctypes.c_uint32) for name in ("first_chain", "first_draw", "replica")]
        + [("temperature", ctypes.c_float)]
        + [(name, ctypes.c_void_p) for name in (
            "up", "down", "real", "inverse", "beta", "b", "mu", "gain", "inverse_var", "shrink", "noise_std",
            "v", "h", "p", "last_v", "last_h", "last_p", "mean", "old_mean", "free_energy", "old_free_energy", "log_q",
            "tile", "plain_b", "coupling", "halves", "sum_v", "sum_v2", "sum_h", "sum_vh", "accept", "accept_chain",
        )]
    )  # fmt: skip


class Ladder(ctypes.Structure):
    """The C struct of the same name, in tempered.c."""

    _fields_: ClassVar = [("walk", Walk)] + [(name, ctypes.c_void_p) for name in (
        "gaps", "base_mean", "base_inverse_var", "plain_mu", "plain_inverse_var", "v", "h", "p", "difference",
        "accepted",
    )]  # fmt: skip


class AnnealedPath(ctypes.Structure):
    """The C struct Path, in annealed.c."""

    _fields_: ClassVar = [
        ("walk", Walk), ("betas", ctypes.c_void_p), ("base_mean", ctypes.c_void_p),
        ("base_inverse_var", ctypes.c_void_p), ("back", ctypes.c_int64), ("tables", ctypes.c_void_p),
        ("logits", ctypes.c_void_p), ("log_weight", ctypes.c_void_p),
    ]  # fmt: skip


class Sweep(ctypes.Structure):
    """The C struct of the same name, in collapsed.c."""

    _fields_: ClassVar = [("n_hidden", ctypes.c_int64), ("n_blocks", ctypes.c_int64)] + [
        (name, ctypes.c_void_p) for name in ("J", "bar", "h", "field")
    ]


class Averages(ctypes.Structure):
    """The C struct of the same name, in averages.c."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in (
        "n", "chunk", "n_visible", "n_hidden", "h_row", "weighted",
    )] + [(name, ctypes.c_void_p) for name in (
        "v", "up", "b", "mu", "inverse_var", "log_q", "free_energy", "top", "sum_v", "sum_v2", "sum_h", "sum_vh",
    )]  # fmt: skip


def serves(energy: Energy) -> bool:
    """Whether walks under ``energy`` can be run here."""
    return serves_tensor(energy.W)


def serves_tensor(x: Tensor) -> bool:
    """Whether numbers such as those of ``x`` are for the native code."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled C files; None, with one notice, where there is no compiler."""
    wanted = os.environ.get("GRBM_ENGINE", "auto")
    if wanted not in ("auto", "native", "pytorch"):
        raise UserError(f"GRBM_ENGINE must be native, pytorch or auto, not {wanted!r}.")
    if wanted == "pytorch":
        return None
    try:
        loaded = ctypes.CDLL(str(_compiled()))
        for size, kind in (
            (loaded.grbm_size, Walk),
            (loaded.grbm_ladder_size, Ladder),
            (loaded.grbm_path_size, AnnealedPath),
            (loaded.grbm_sweep_size, Sweep),
            (loaded.grbm_averages_size, Averages),
        ):
            if size() != ctypes.sizeof(kind):
                raise OSError("it is not what was compiled")
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        if wanted == "native":
            raise UserError(f"GRBM_ENGINE=native, but {_why(error)}.") from error
        logging.getLogger("grbm").warning("%s: chains run in plain PyTorch, several times slower.", _why(error))
        return None
    for walk in (loaded.grbm_walk, loaded.grbm_temper, loaded.grbm_anneal, loaded.grbm_sweep, loaded.grbm_average):
        walk.argtypes, walk.restype = [ctypes.c_void_p, ctypes.c_int64], None
    return loaded


def _why(error: Exception) -> str:
    output = getattr(error, "stderr", None) or str(error)
    return f"native.c could not be compiled or kept ({output.strip().splitlines()[-1]})"


def _compiled() -> Path:
    """The shared library in the user's cache, made there if this source has not been compiled for this processor.

    Raises OSError where that cannot be done, and where others could have put it there or changed it.
    """
    chosen = os.environ.get("CC") or None
    code = [path.read_bytes() for path in (*SOURCES, *HEADERS)]
    name = hashlib.blake2b(repr((code, chosen, FLAGS, _processor())).encode(), digest_size=8).hexdigest()
    folder = cache_folder() / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _own(folder)
    if (path := kept(folder, name, ".so")) is None:
        compiler = chosen or next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
        if compiler is None or sys.platform == "win32":
            raise OSError("no C compiler found; install gcc or clang")
        with keeping(folder, name, ".so") as made:
            command = [*compiler.split(), *FLAGS, "-o", str(made), *map(str, SOURCES), "-lm"]
            if subprocess.run([*command, "-fopenmp"], capture_output=True, timeout=120).returncode:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        path = kept(folder, name, ".so")
        if path is None:
            raise OSError(f"what was compiled did not stay in {folder}")
    _own(path)
    return path


def _own(path: Path) -> None:
    """Raise OSError for what somebody else could have put there, or could change: it would run with our rights."""
    if hasattr(os, "geteuid"):
        found = path.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{path} belongs to, or can be written by, somebody else; set GRBM_CACHE_DIR to your own")


def _processor() -> str:
    """What -march=native depends on: homes may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return platform.machine() + "".join(sorted({x for x in lines if x.startswith(("model name", "flags", "Features"))}))


def n_threads() -> int:
    """Threads of a walk."""
    return 1 if _forked else torch.get_num_threads()


def padded(n: int) -> int:
    """Floats from one row of ``n`` to the next: whole cache lines, no power of two (rows would share cache sets)."""
    row = -(-n // 16) * 16
    return row + 16 if row % 128 == 0 else row


def _pack(matrix: Tensor) -> Tensor:
    """(K, n) as panels (n/64, K, 64), the last one filled with zeros."""
    K, n = matrix.shape
    panels, whole = -(-n // PANEL), n // PANEL
    packed = torch.empty(panels, K, PANEL)
    packed[:whole] = matrix[:, : whole * PANEL].reshape(K, whole, PANEL).transpose(0, 1) if whole else packed[:0]
    if whole < panels:
        packed[whole] = functional.pad(matrix[:, whole * PANEL :], (0, panels * PANEL - n))
    return packed


def _pack_pairs(matrix: Tensor) -> Tensor:
    """(K, n) in bfloat16 as panels (n/64, K/2, 64), a pair of neighbouring rows in the place of a float."""
    bits = functional.pad(matrix, (0, 0, 0, len(matrix) % 2)).to(torch.bfloat16).view(torch.int16).int()
    return _pack(((bits[0::2] & 0xFFFF) | (bits[1::2] << 16)).view(torch.float32))


_packed: WeakKeyDictionary[Energy, dict[str, Tensor]] = WeakKeyDictionary()  # W and W/σ², by untempered energy
_tables: WeakKeyDictionary[Energy, dict[int, dict[str, Tensor]]] = WeakKeyDictionary()  # the rest, by energy and R


def constants(energy: Energy, R: int, half: bool) -> dict[str, Tensor]:
    """What the parameters give, padded, and with a row for each of R replicas; made once for an energy."""
    N, M = energy.n_visible, energy.n_hidden
    v_row, h_row = padded(N), padded(M)

    def table(x: Tensor | None, n: int, row: int, padding: float = 0.0) -> Tensor:
        """Per-unit numbers ([R, 1,] n), or ones, as (R, row)."""
        x = torch.ones(n) if x is None else x
        return functional.pad(x.expand(R, 1, n)[:, 0], (0, row - n), value=padding).contiguous()

    if half:
        sigma = energy.var.sqrt()
        V = energy.W / sigma[:, None]
        return {
            "up": _pack_pairs(V),
            "down": _pack_pairs(V.T.contiguous()),
            "real": table(None, N, v_row),
            "inverse": table(1 / sigma, N, v_row),
            "beta": torch.ones(R),
            "b": table(energy.hidden_logits(energy.mu), M, h_row, -87.0),
            "mu": table(energy.mu, N, v_row),
            "gain": table(sigma, N, v_row),
            "inverse_var": table(1 / energy.var, N, v_row),
        }
    if (packed := _packed.get(energy.untempered)) is None:
        up = _pack(energy.projection.T.contiguous())
        down = _pack(energy.W.T.contiguous()) if N > FEW else functional.pad(energy.W, (0, h_row - M)).contiguous()
        packed = _packed[energy.untempered] = {"up": up, "down": down}
    tables = _tables.setdefault(energy, {})
    if R not in tables:
        tables[R] = {
            "real": table(None, N, v_row),
            "beta": table(None if energy.beta is None else energy.beta, 1, 1),
            "b": table(energy.b, M, h_row, -87.0),
            "mu": table(energy.mu, N, v_row),
            "gain": table(energy.gain, N, v_row),
            "inverse_var": table(1 / energy.var, N, v_row),
        }
    return packed | tables[R]


def run_moves(
    energy: Energy,
    moves: Moves,
    v: Tensor,
    n_steps: int,
    rng: Blocks | Philox,
    *,
    given: Chains | None = None,
    burn_in: int | None = None,
    probabilities: bool = False,
    code: ctypes.CDLL | None = None,
) -> Walked:
    """`grbm.samplers.engines.run_moves` for float32 on a CPU. ``code`` is by default `library`."""
    native = code or library()
    assert native is not None
    *_, C, N = v.shape
    R, M = (len(v) if v.ndim == 3 else 1), energy.n_hidden
    v_row, h_row = padded(N), padded(M)
    threads = n_threads()
    T = len(moves.shrink)
    if C < 1 or C % n_blocks(rng):
        raise ValueError(f"{C} chains cannot be shared evenly by {n_blocks(rng)} blocks.")
    if len(moves.noise_std) != T or (T not in (1, n_steps) and n_steps > 0):
        raise ValueError(f"A walk of {n_steps} steps needs as many moves or one for all, got {T}.")
    if R > 1 and burn_in is not None:
        raise ValueError("Replicas cannot be summed; sum those at one temperature.")
    # What is walked together: a block where sums are wanted, else what keeps threads and caches busy.
    chunk = C // n_blocks(rng) if burn_in is not None else min(64, -(-C // threads))
    parts = -(-C // chunk)
    ring = min(n_steps + 1, max(2, -(-384 // chunk)))  # states enough for one efficient product
    adjust_from = n_steps if moves.adjust_from is None else min(n_steps, moves.adjust_from)
    adjusted = adjust_from < n_steps
    p_slots = ring if moves.mean_field or probabilities or adjusted else 1
    philox = rng.philox(C) if isinstance(rng, Blocks) else rng

    def room(slots: int, row: int, start: Tensor | None = None) -> Tensor:
        """Room for (R parts, slots, chunk, row), the start ([R,] C, ·) in the first slot."""
        made = torch.empty(R * parts, slots, chunk, row)
        if start is not None:
            padding = (0, row - start.shape[-1], 0, parts * chunk - C)
            made[:, 0] = functional.pad(start, padding).view(R * parts, chunk, row)
        return made

    shrink, noise_std = (
        functional.pad(x.float().reshape(T, -1, N).expand(T, R, N), (0, v_row - N)).contiguous()
        for x in (moves.shrink, moves.noise_std)
    )
    half = energy.precision == "fast" and energy.beta is None and N > FEW and bool(native.grbm_has_half())
    tensors = constants(energy, R, half) | {
        "shrink": shrink,
        "noise_std": noise_std,
        "v": room(ring, v_row, v),
        "h": room(ring, h_row, None if given is None else given.h),
        "p": room(p_slots, h_row, None if given is None else given.h_prob),
        "last_v": torch.empty(*v.shape),
        "last_h": torch.empty(*v.shape[:-1], M),
        "last_p": torch.empty(*v.shape[:-1], M),
        "mean": room(1, v_row),
        "log_q": room(1, 1),
        "tile": room(1, PANEL),
    }
    if half:
        tensors["halves"] = torch.empty(R * parts, ring * chunk + 1, (v_row + h_row) // 2)
    if adjusted:
        tensors |= {"old_mean": room(1, v_row), "free_energy": room(1, 1), "old_free_energy": room(1, 1)}
        tensors |= {"accept": torch.empty(R * parts, n_steps), "accept_chain": torch.zeros(*v.shape[:-1])}
    if burn_in is not None:
        tensors |= {"sum_v": torch.empty(parts, v_row), "sum_v2": torch.empty(parts, v_row)}
        tensors |= {"sum_h": torch.empty(parts, h_row), "sum_vh": torch.empty(parts, N, h_row)}
    walk = Walk(
        n_replicas=R, n_chains=C, chunk=chunk, n_visible=N, n_hidden=M, n_steps=n_steps,
        burn_in=n_steps if burn_in is None else burn_in, adjusted=adjusted, adjust_from=adjust_from,
        mean_field=moves.mean_field, probabilities=probabilities, draw_start=given is None, keep_p=p_slots == ring,
        v_row=v_row, h_row=h_row, ring=ring, move_row=R * v_row if T > 1 else 0, half=half, key=philox.key,
        first_chain=philox.first_chain, first_draw=philox.draw, temperature=moves.temperature,
        **{name: x.data_ptr() for name, x in tensors.items()},
    )  # fmt: skip
    native.grbm_walk(ctypes.byref(walk), threads)
    rng.draw += (given is None) + 2 * n_steps + (n_steps - adjust_from)

    chains = Chains(tensors["last_v"], tensors["last_h"], tensors["last_p"])
    accept_prob, accept_rate, sums = None, None, None
    if adjusted:
        accept_prob = tensors["accept_chain"] / (n_steps - adjust_from)
        total = tensors["accept"][:, adjust_from:].double().view(R, -1).sum(1)
        accept_rate = (total / (C * (n_steps - adjust_from))).to(v).view(v.shape[:-2])
    if burn_in is not None:
        summed = (tensors["sum_v"][:, :N], tensors["sum_v2"][:, :N], tensors["sum_h"][:, :M])
        vh = tensors["sum_vh"][..., :M]
        if half:
            vh = vh * energy.var.sqrt()[:, None] + energy.mu[:, None] * summed[2][:, None, :]
        sums = MomentSum.of(Moments(*summed, vh), C * (n_steps - burn_in))
    return Walked(chains, sums, accept_prob, accept_rate)
