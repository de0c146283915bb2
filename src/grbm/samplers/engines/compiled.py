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
from typing import Any

import torch

from grbm.core import devices
from grbm.core.errors import UserError
from grbm.core.files import cache_folder, keeping, kept
from grbm.samplers.engines.structs import HEADERS, SOURCES, handed

FLAGS = ["-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-pthread"]


def call(function: str, argument: Any, n: int | None = None) -> None:
    """Call a function of the native code by the ``argument``, a struct, and a number: by default that of threads."""
    code = library()
    assert code is not None
    getattr(code, function)(ctypes.byref(argument), ctypes.c_int64(n_threads() if n is None else n))


def half() -> int:
    """Operands of "fast": pairs of bfloat16 on vectors (1) or matrix units (2), or nothing but float32 (0)."""
    code = library()
    return 0 if code is None else int(code.grbm_half())


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
        for name, struct in handed().items():
            if loaded[f"grbm_size_of_{name}"]() != ctypes.sizeof(struct):
                raise OSError("it is not what was compiled")
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        if wanted == "native":
            raise UserError(f"GRBM_ENGINE=native, but {_why(error)}.") from error
        logging.getLogger("grbm").warning("%s: chains run in plain PyTorch, several times slower.", _why(error))
        return None
    return loaded


def _why(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    told = next((line for line in lines if "error" in line), lines[-1])  # a compiler goes on to show where it is
    return f"native.c could not be compiled or kept ({told.strip()})"


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
    """Name of the processor, on which -march=native depends: homes may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return platform.machine() + "".join(sorted({x for x in lines if x.startswith(("model name", "flags", "Features"))}))


def n_threads() -> int:
    """Threads of a walk."""
    return 1 if devices.is_child else torch.get_num_threads()
