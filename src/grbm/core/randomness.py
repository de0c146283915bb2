"""Explicit random numbers: each follows from a seed, what it is for, and its chain."""

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def seed_of(seed: int, *purpose: str | int) -> int:
    """63 bits that tell purposes apart, e.g. ``seed_of(0, "negative", update)``: a hash of all arguments."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose; equal arguments give equal streams, different ones unrelated streams.

    PyTorch's global state is not touched.
    """
    return torch.Generator(device=device).manual_seed(seed_of(seed, *purpose))


ROUNDS = 7  # the fewest that pass all of BigCrush (Salmon et al. 2011, Table 2)


def philox(counter: Sequence[Tensor], key: int) -> list[Tensor]:
    """Philox 4x32-7 of four int64 tensors that hold numbers below 2^32, broadcast against one another."""
    low = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key & low, key >> 32
    for _ in range(ROUNDS):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # modulo 2^64
        c0, c1, c2, c3 = (b >> 32) & low ^ c1 ^ k0, b & low, (a >> 32) & low ^ c3 ^ k1, a & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return [c0, c1, c2, c3]


class Philox:
    """Counter-based random numbers (Salmon et al. 2011, Philox 4x32-7): a number for each (key, chain, draw, unit).

    The definition of what the native and the CUDA implementations draw inside their loops. Number i of a chain's draw
    is word (i // 16) % 4 of the counter (16 (i // 64) + i % 16, chain, draw, replica). A uniform number is the upper
    24 bits of its word; two words make two normal ones (Box & Muller 1958).

    The ``key`` has 64 bits; ``first_chain`` is the number of the first chain held here, and ``draw`` that of the next
    draw: `normal` and `uniform` each make one. A key that is a tensor is read where numbers are drawn.
    """

    def __init__(self, key: int | Tensor, first_chain: int = 0, draw: int = 0) -> None:
        self.key, self.first_chain, self.draw = key, first_chain, draw

    def philox(self, n_chains: int) -> "Philox":
        """Itself, where `Blocks.philox` makes one."""
        return self

    def words(self, shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
        """The words (..., chains, panels, 4, 16), int64 below 2^32, of a draw of ``shape`` ([replicas,] chains, n)."""
        *replicas, n_chains, n = shape

        def numbers(first: int, count: int, axis: int) -> Tensor:
            return torch.arange(first, first + count, device=device).view(-1, *[1] * axis)

        panels = math.ceil(n / 64)
        c0 = numbers(0, 16 * panels, 0).view(panels, 16)
        c1, c3 = numbers(self.first_chain, n_chains, 2), numbers(0, math.prod(replicas), 3)
        c2 = torch.full_like(c0, self.draw)
        self.draw += 1
        return torch.stack(philox([c0, c1, c2, c3], int(self.key)), -2).reshape(*replicas, n_chains, panels, 4, 16)

    def uniform(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uniform draws in [0, 1)."""
        u = (self.words(shape, like.device) >> 8) * 2.0**-24
        return u.flatten(-3)[..., : shape[-1]].to(like)

    def normal(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Standard normal draws; the largest possible is 6.7."""
        words = self.words(shape, like.device)
        radius, angle = words[..., 0::2, :].double(), words[..., 1::2, :]
        r = (-2 * ((radius.div(2).floor() + 0.5) * 2.0**-31).log()).sqrt()
        a = (angle >> 8).double() * (2 * math.pi * 2.0**-24)
        return torch.stack((r * a.cos(), r * a.sin()), -2).flatten(-4)[..., : shape[-1]].to(like)


class Blocks:
    """Random numbers that belong to the chain, for equal and consecutive blocks of chains.

    A block draws the same numbers whichever process holds it, and whatever other blocks that process holds. ``seed``
    and ``total`` are of the blocks of all processes; ``own`` are those that this process holds, by default all. A seed
    that is a tensor () may be written anew before what was recorded is drawn again (`grbm.learning.recorded`).
    """

    def __init__(
        self, seed: int | Tensor, total: int, own: range | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.seed, self.total, self.own, self.device = seed, total, range(total) if own is None else own, device
        self.draw = 0  # of the counter-based numbers
        self._generators: list[torch.Generator] = []

    @property
    def generators(self) -> list[torch.Generator]:
        """A generator for each block that this process holds."""
        if not self._generators:
            self._generators = [generator(int(self.seed), "block", k, device=self.device) for k in self.own]
        return self._generators

    def philox(self, n_chains: int) -> Philox:
        """The same chains' counter-based numbers, from here on, where this process holds ``n_chains`` of them."""
        return Philox(self.seed, self.own.start * n_chains // len(self.own), self.draw)


Rng = torch.Generator | Blocks | Philox


def n_blocks(rng: Rng) -> int:
    """Blocks that ``rng`` draws for; without blocks all chains are in one."""
    return len(rng.own) if isinstance(rng, Blocks) else 1


def local(n_chains: int, rng: Rng) -> int:
    """How many of ``n_chains`` chains are this process's own."""
    return n_chains * len(rng.own) // rng.total if isinstance(rng, Blocks) else n_chains


def normal(shape: Sequence[int], like: Tensor, rng: Rng, *, chain_axis: int | None = None) -> Tensor:
    """Standard normal draws, dtype and device as ``like``; blocks lie one after another along ``chain_axis``.

    By default that is the last axis but one, as of states (C, N), or the only one, as of a number for each chain (C,).
    """
    return _draw("normal", torch.randn, shape, like, rng, chain_axis)


def uniform(shape: Sequence[int], like: Tensor, rng: Rng, *, chain_axis: int | None = None) -> Tensor:
    """Uniform draws in [0, 1), as `normal`."""
    return _draw("uniform", torch.rand, shape, like, rng, chain_axis)


def _draw(
    name: str, kind: Callable[..., Tensor], shape: Sequence[int], like: Tensor, rng: Rng, chain_axis: int | None
) -> Tensor:
    chain_axis = (-1 if len(shape) == 1 else -2) if chain_axis is None else chain_axis
    if isinstance(rng, Philox):
        found: Tensor = getattr(rng, name)((*shape, 1) if chain_axis == -1 else shape, like)
        return found.squeeze(-1) if chain_axis == -1 else found
    if isinstance(rng, torch.Generator):
        return kind(tuple(shape), generator=rng, dtype=like.dtype, device=like.device)
    part = list(shape)
    part[chain_axis] //= len(rng.own)
    drawn = [kind(part, generator=g, dtype=like.dtype, device=like.device) for g in rng.generators]
    return torch.cat(drawn, chain_axis)
