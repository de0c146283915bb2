"""Explicit generators: every random number follows from a seed and the names of what it is for."""

import hashlib

import torch


def generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose, e.g. ``generator(0, "negative", update)``; PyTorch's global state is not touched.

    Equal arguments give equal streams; different ones give unrelated streams (the seed is a hash of them all).
    """
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    rng = torch.Generator(device=device)
    rng.manual_seed(int.from_bytes(digest, "little") >> 1)
    return rng
