"""What runs a walk of plain moves: PyTorch (the definition), C on a CPU, kernels on a GPU; and the choice among them.

$GRBM_ENGINE chooses: "native", "pytorch", or by default the fastest that can be had.
"""

import functools
import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grbm.model import Base, Energy, TemperedEnergy
from grbm.randomness import Rng, n_blocks, normal, uniform
from grbm.samplers.chains import Chains, Walked, gather, start_chains
from grbm.samplers.engines import compiled, native, native_draws, native_paths
from grbm.samplers.moves import Moves, move_step

Engine = Callable[..., Walked]  # called as `run_moves` is


def run_moves(
    energy: Energy,
    moves: Moves,
    v: Tensor,
    n_steps: int,
    rng: Rng,
    *,
    given: Chains | None = None,
    burn_in: int | None = None,
    probabilities: bool = False,
    engine: Engine | None = None,
) -> Walked:
    """Walk ``n_steps`` moves from v ([R,] C, N), with h ~ p(h | v) or the hidden units of ``given``, as fast as can be.

    The states after the first ``burn_in`` steps are summed, from the start on with −1, none with None; with
    ``probabilities`` p(h | v) is summed in place of h. ``engine`` is by default what `pick_engine` picks; a walk in
    stretches has one for all of them.
    """
    engine = engine or pick_engine(energy, moves, v, n_steps, rng)
    return engine(energy, moves, v, n_steps, rng, given=given, burn_in=burn_in, probabilities=probabilities)


def run_ladder(
    energy: Energy, base: Base, ladder: TemperedEnergy, moves: Moves, v: Tensor, n_steps: int, rng: Rng, **options: Any
) -> Walked | None:
    """A whole walk of parallel tempering at once, where an engine can; ``options`` are those of `run_moves`.

    The replicas v (R, C, N) have the energies ``ladder`` from ``base`` to ``energy``.
    """
    if isinstance(rng, torch.Generator):
        return None
    if energy.W.is_cuda and _cuda() is not None:
        from grbm.samplers.engines import cuda_ladder

        if cuda_ladder.serves(energy, moves):
            return cuda_ladder.run_ladder(energy, base, ladder, moves, v, n_steps, rng, **options)
    if not compiled.serves(energy) or not native_paths.serves_moves(moves):
        return None
    return native_paths.run_ladder(energy, base, ladder, moves, v, n_steps, rng, **options)


def run_given(
    energy: Energy, y: Tensor, share: Tensor, std: Tensor, v: Tensor, n_steps: int, rng: Rng, **options: Any
) -> tuple[Chains, native_paths.GivenSums | None] | None:
    """A whole walk under measurements at once, where an engine can: `native_paths.run_given` with its ``options``."""
    plain = v.ndim == 2 and v.dtype == energy.W.dtype and not energy.is_tempered
    if isinstance(rng, torch.Generator) or not plain or not compiled.serves(energy):
        return None
    if len(v) == 0 or len(v) % n_blocks(rng):
        return None
    return native_paths.run_given(energy, y, share, std, v, n_steps, rng, **options)


def draw(kind: str, shape: tuple[int, int], energy: Energy, rng: Rng) -> Tensor:
    """Draws for chains, "normal" or "uniform" (C, n), as those of an engine where one serves: for `Philox`, its own."""
    if isinstance(rng, torch.Generator) or not compiled.serves(energy):
        return (normal if kind == "normal" else uniform)(shape, energy.W, rng)
    return native_draws.draw(kind, *shape, rng)


def pick_engine(energy: Energy, moves: Moves, v: Tensor, n_steps: int, rng: Rng) -> Engine:
    """The function that runs this walk fastest: the only place where an engine is chosen.

    Only `Blocks` and `Philox` give an engine numbers of its own; with a plain generator the definition is run.
    """
    if not isinstance(rng, torch.Generator):
        cuda = _cuda() if energy.W.is_cuda else None
        if cuda is not None and cuda.serves(energy, moves, v, n_steps):
            engine: Engine = cuda.run_moves
            return engine
        if compiled.serves(energy):
            return native.run_moves
    return definition


def definition(
    energy: Energy, moves: Moves, v: Tensor, n_steps: int, rng: Rng, *, given: Chains | None = None, **sums: Any
) -> Walked:
    """`run_moves` in plain PyTorch, for every device and dtype; ``sums`` are its further options."""
    chains = start_chains(energy, v, rng) if given is None else given._replace(v=v)
    return gather(energy, move_step(energy, moves), chains, n_steps, rng, **sums)


def engine_name(device: torch.device) -> str:
    """What runs the chains of a float32 model on ``device``: "native", "fused" or "pytorch"."""
    if device.type == "cuda":
        return "pytorch" if _cuda() is None else "fused"
    return "native" if device.type == "cpu" and compiled.library() is not None else "pytorch"


@functools.cache
def _cuda() -> Any:
    """The module of the CUDA kernels, where Triton is installed and not switched off."""
    if os.environ.get("GRBM_ENGINE") == "pytorch":
        return None
    try:
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            raise ImportError("it needs gcc or clang")
        from grbm.samplers.engines import cuda
    except ImportError as error:
        logging.getLogger("grbm").warning("No Triton here (%s): chains run in plain PyTorch, slower.", error)
        return None
    return cuda
