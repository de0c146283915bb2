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
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from grbm import memory
from grbm.errors import UserError
from grbm.files import cache_folder, keeping, kept
from grbm.model import Energy
from grbm.moments import Moments, MomentSum
from grbm.randomness import Blocks, Philox, n_blocks
from grbm.samplers.chains import Chains, Walked
from grbm.samplers.engines.structs import (
    AnnealedPath,
    Ascent,
    Averages,
    Given,
    Ladder,
    Packing,
    Pool,
    Sweep,
    Walk,
)
from grbm.samplers.moves import Moves

SOURCES = [
    Path(__file__).with_name(f"{name}.c")
    for name in ("native", "packing", "tempered", "annealed", "given", "collapsed", "averages", "learning")
]
HEADERS = [Path(__file__).with_name(name) for name in ("arithmetic.h", "tiles.h", "steps.h")]
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread"]
PANEL, FEW = 64, 4  # as in native.c: columns of a packed matrix that lie together; visible units treated one by one


_forked = False  # OpenMP's threads do not outlive a fork, and waiting for them would be for ever


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


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
            (loaded.grbm_given_size, Given),
            (loaded.grbm_sweep_size, Sweep),
            (loaded.grbm_averages_size, Averages),
            (loaded.grbm_packing_size, Packing),
            (loaded.grbm_pool_size, Pool),
            (loaded.grbm_ascent_size, Ascent),
        ):
            if size() != ctypes.sizeof(kind):
                raise OSError("it is not what was compiled")
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        if wanted == "native":
            raise UserError(f"GRBM_ENGINE=native, but {_why(error)}.") from error
        logging.getLogger("grbm").warning("%s: chains run in plain PyTorch, several times slower.", _why(error))
        return None
    for name in ("walk", "temper", "anneal", "walk_given", "sweep", "average", "pack", "pool", "ascend"):
        function = loaded[f"grbm_{name}"]
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], None
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


_packed: WeakKeyDictionary[Energy, dict[bool, dict[str, Tensor]]] = WeakKeyDictionary()  # by untempered energy and half
_tables: WeakKeyDictionary[Energy, dict[tuple[int, bool], dict[str, Tensor]]] = WeakKeyDictionary()  # the rest


def _pack(energy: Energy, half: bool) -> dict[str, Tensor]:
    """W by visible and by hidden units, as products read it (`packing.c`); with FEW visible units as it is, padded."""
    native = library()
    assert native is not None
    N, M, step = energy.n_visible, energy.n_hidden, 2 if half else 1
    W, unit = energy.W.contiguous(), (energy.var.sqrt() if half else energy.var).contiguous()
    up = memory.empty(-(-M // PANEL), -(-N // step), PANEL)
    down = memory.empty(-(-N // PANEL), -(-M // step), PANEL) if N > FEW else None
    every = Packing(N, M, half, W.data_ptr(), unit.data_ptr(), up.data_ptr(), None if down is None else down.data_ptr())
    native.grbm_pack(ctypes.byref(every), n_threads())
    return {"up": up, "down": functional.pad(W, (0, padded(M) - M)).contiguous() if down is None else down}


def constants(energy: Energy, R: int, half: bool) -> dict[str, Tensor]:
    """What the parameters give, padded, and with a row for each of R replicas; made once for an energy."""
    N, M = energy.n_visible, energy.n_hidden
    v_row, h_row = padded(N), padded(M)

    def table(x: Tensor | None, n: int, row: int, padding: float = 0.0) -> Tensor:
        """Per-unit numbers ([R, 1,] n), or ones, as (R, row)."""
        x = torch.ones(n) if x is None else x
        return functional.pad(x.expand(R, 1, n)[:, 0], (0, row - n), value=padding).contiguous()

    packed = _packed.setdefault(energy.untempered, {})
    if half not in packed:
        packed[half] = _pack(energy.untempered, half)
    tables = _tables.setdefault(energy, {})
    if (R, half) not in tables:
        sigma = energy.var.sqrt()
        tables[R, half] = {  # with half, at one temperature, operands are (v - mu)/sigma and W/sigma
            "real": table(None, N, v_row),
            "inverse": table(1 / sigma, N, v_row),
            "beta": table(energy.beta, 1, 1),
            "b": table(energy.b + (energy.mu / energy.var) @ energy.W if half else energy.b, M, h_row, -87.0),
            "mu": table(energy.mu, N, v_row),
            "gain": table(sigma if half else energy.gain, N, v_row),
            "inverse_var": table(1 / energy.var, N, v_row),
        }
    return packed[half] | tables[R, half]


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
        made = memory.empty(R * parts, slots, chunk, row)
        if start is not None:
            padding = (0, row - start.shape[-1], 0, parts * chunk - C)
            made[:, 0] = functional.pad(start, padding).view(R * parts, chunk, row)
        return made

    shrink, noise_std = (
        functional.pad(x.float().reshape(T, -1, N).expand(T, R, N), (0, v_row - N)).contiguous()
        for x in (moves.shrink, moves.noise_std)
    )
    half = native.grbm_half() if energy.precision == "fast" and energy.beta is None and N > FEW else 0
    tensors = constants(energy, R, half > 0) | {
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
        tensors["halves"] = memory.empty(R * parts, ring * chunk + 1, (v_row + h_row) // 2)
    if adjusted:
        tensors |= {"old_mean": room(1, v_row), "free_energy": room(1, 1), "old_free_energy": room(1, 1)}
        tensors |= {"accept": torch.empty(R * parts, n_steps), "accept_chain": torch.zeros(*v.shape[:-1])}
    if burn_in is not None:
        tensors |= {"sum_v": torch.empty(parts, v_row), "sum_v2": torch.empty(parts, v_row)}
        tensors |= {"sum_h": torch.empty(parts, h_row), "sum_vh": memory.empty(parts, N, h_row)}
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
        sums = MomentSum.of(Moments(*summed, tensors["sum_vh"][..., :M]), C * (n_steps - burn_in))
    return Walked(chains, sums, accept_prob, accept_rate)
