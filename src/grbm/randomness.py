"""Explicit generators: every random number follows from a seed, what it is for, and its block of chains."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose, e.g. ``generator(0, "negative", update)``; PyTorch's global state is not touched.

    Equal arguments give equal streams; different ones give unrelated streams (the seed is a hash of them all).
    """
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    rng = torch.Generator(device=device)
    rng.manual_seed(int.from_bytes(digest, "little") >> 1)
    return rng


class Blocks:
    """Generators for equal, consecutive blocks of chains: random numbers that belong to the chain.

    A block draws the same numbers whichever process holds it, and whatever other blocks that process holds.

    Parameters
    ----------
    generators : sequence of torch.Generator
        One for each block that this process holds.
    total : int
        Blocks of all processes together.
    """

    def __init__(self, generators: Sequence[torch.Generator], total: int) -> None:
        self.generators, self.total = tuple(generators), total


Rng = torch.Generator | Blocks


def n_blocks(rng: Rng) -> int:
    """Blocks that ``rng`` draws for; a plain generator has all chains in one."""
    return len(rng.generators) if isinstance(rng, Blocks) else 1


def local(n_chains: int, rng: Rng) -> int:
    """How many of ``n_chains`` chains are this process's own."""
    return n_chains * len(rng.generators) // rng.total if isinstance(rng, Blocks) else n_chains


def normal(shape: Sequence[int], like: Tensor, rng: Rng, *, chain_axis: int = -2) -> Tensor:
    """Standard normal draws, dtype and device as ``like``; blocks lie one after another along ``chain_axis``."""
    return _draw(torch.randn, shape, like, rng, chain_axis)


def uniform(shape: Sequence[int], like: Tensor, rng: Rng, *, chain_axis: int = -2) -> Tensor:
    """Uniform draws in [0, 1), as `normal`."""
    return _draw(torch.rand, shape, like, rng, chain_axis)


def _draw(kind: Callable[..., Tensor], shape: Sequence[int], like: Tensor, rng: Rng, chain_axis: int) -> Tensor:
    if isinstance(rng, torch.Generator):
        return kind(tuple(shape), generator=rng, dtype=like.dtype, device=like.device)
    part = list(shape)
    part[chain_axis] //= len(rng.generators)
    drawn = [kind(part, generator=g, dtype=like.dtype, device=like.device) for g in rng.generators]
    return torch.cat(drawn, chain_axis)
