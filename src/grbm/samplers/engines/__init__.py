"""Engines that run chains: PyTorch (the definition), C on a CPU, kernels on a GPU; and the choice among them.

$GRBM_ENGINE chooses: "native", "pytorch", or by default the fastest that can be had.
"""

import functools
import logging
import os
import shutil

import torch
from torch import Tensor

from grbm.core.randomness import Rng
from grbm.samplers.engines import compiled
from grbm.samplers.engines.definition import Engine
from grbm.samplers.engines.native import Native


def engine_for(like: Tensor, rng: Rng | None = None) -> Engine:
    """The engine that is fastest for numbers such as those of ``like``: the only place where one is chosen.

    Only `Blocks` and `Philox` give an engine numbers of its own; with a plain generator the definition is run. Without
    ``rng`` nothing is drawn.
    """
    if isinstance(rng, torch.Generator) or like.dtype != torch.float32:
        return Engine()
    return engine_on(like.device)


def engine_on(device: torch.device) -> Engine:
    """The engine of float32 numbers on ``device``."""
    if device.type == "cuda":
        return _cuda()
    return Native() if device.type == "cpu" and compiled.library() is not None else Engine()


def engine_name(device: torch.device) -> str:
    """Name of the engine for a float32 model on ``device``: "native", "fused" or "pytorch"."""
    return engine_on(device).name


@functools.cache
def _cuda() -> Engine:
    """That of the CUDA kernels, where Triton is installed and not switched off."""
    if os.environ.get("GRBM_ENGINE") == "pytorch":
        return Engine()
    try:
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            raise ImportError("it needs gcc or clang")
        from grbm.samplers.engines.cuda import Cuda
    except ImportError as error:
        logging.getLogger("grbm").warning("No Triton here (%s): chains run in plain PyTorch, slower.", error)
        return Engine()
    return Cuda()
