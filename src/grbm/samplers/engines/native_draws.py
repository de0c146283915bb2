"""Rows of counter-based random numbers in native code (`noise.c`): those that `grbm.randomness.Philox` defines."""

import ctypes

from torch import Tensor

from grbm import memory
from grbm.randomness import Blocks, Philox
from grbm.samplers.engines.compiled import library, n_threads
from grbm.samplers.engines.structs import Noise


def draw(kind: str, n_chains: int, n: int, rng: Blocks | Philox) -> Tensor:
    """Draws of this ``kind``, "normal" or "uniform", (n_chains, n) of float32."""
    native = library()
    assert native is not None
    philox = rng.philox(n_chains) if isinstance(rng, Blocks) else rng
    out = memory.empty(n_chains, n)
    noise = Noise(n_chains, n, kind == "uniform", philox.key, philox.first_chain, philox.draw, out.data_ptr())
    native.grbm_draw(ctypes.byref(noise), n_threads())
    rng.draw += 1
    return out
