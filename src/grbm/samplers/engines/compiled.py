"""The native code (the C files beside this one), compiled once on a machine by its own compiler."""

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from grbm import forks
from grbm.errors import UserError
from grbm.files import cache_folder, keeping, kept
from grbm.model import Energy
from grbm.samplers.engines.structs import (
    AnnealedPath,
    Ascent,
    Averages,
    Descent,
    Follower,
    Given,
    Ladder,
    Noise,
    Packing,
    Phases,
    Pool,
    Sweep,
    Table,
    Walk,
)

SOURCES = [
    Path(__file__).with_name(f"{name}.c")
    for name in ("native", "packing", "tempered", "annealed", "given", "collapsed", "averages", "learning", "noise")
]
CALLS = (
    *("walk", "temper", "anneal", "walk_given", "sweep", "average", "lay", "pack", "pool", "ascend"),
    *("learn", "descend", "draw"),
)  # each takes the address of a struct, and a number of threads
HEADERS = [Path(__file__).with_name(name) for name in ("arithmetic.h", "tiles.h", "steps.h")]
FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-pthread"]


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
            (loaded.grbm_table_size, Table),
            (loaded.grbm_pool_size, Pool),
            (loaded.grbm_ascent_size, Ascent),
            (loaded.grbm_phases_size, Phases),
            (loaded.grbm_descent_size, Descent),
            (loaded.grbm_follower_size, Follower),
            (loaded.grbm_noise_size, Noise),
        ):
            if size() != ctypes.sizeof(kind):
                raise OSError("it is not what was compiled")
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        if wanted == "native":
            raise UserError(f"GRBM_ENGINE=native, but {_why(error)}.") from error
        logging.getLogger("grbm").warning("%s: chains run in plain PyTorch, several times slower.", _why(error))
        return None
    for name in CALLS:
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
            try:
                _compile([*compiler.split(), *FLAGS, "-fopenmp"], made)
            except subprocess.CalledProcessError:
                _compile([*compiler.split(), *FLAGS], made)
        path = kept(folder, name, ".so")
        if path is None:
            raise OSError(f"what was compiled did not stay in {folder}")
    _own(path)
    return path


def _compile(command: list[str], library: Path) -> None:
    """Each source beside the others, and all of them into one library."""

    def run(*arguments: str | Path) -> None:
        subprocess.run([*command, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=120)

    objects = [library.with_name(f"{source.stem}.o") for source in SOURCES]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda source, made: run("-c", source, "-o", made), SOURCES, objects))
    run("-shared", "-o", library, *objects, "-lm")


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
    return 1 if forks.is_child else torch.get_num_threads()
