"""Tiles of the fused products on a CUDA device: what `python -m benchmarks.gpu` found fastest, else a default."""

import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grbm.core.files import cache_folder, write_text

RANGES = {"BM": (16, 256), "BN": (64, 256), "BK": (16, 128), "num_warps": (1, 16), "num_stages": (1, 8)}
NEAR = 2.5  # times as large, or as small, a product may be on each side to have the same tile


class Product(NamedTuple):
    """The sizes of a product (rows, n_inner) (n_inner, n_units)."""

    rows: int
    n_inner: int
    n_units: int


Tile = dict[str, int]
NARROW: Tile = {"BM": 32, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": 3}
MEASURED: dict[str, dict[Product, Tile]] = {  # what comes with the program
    "NVIDIA H100 80GB HBM3": {
        Product(512, 3072, 10_000): {"BM": 128, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": 3},
        Product(512, 784, 4096): {"BM": 128, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3},
        Product(256, 784, 512): {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4, "num_stages": 4},
        Product(100, 64, 256): NARROW,
        Product(100, 2, 256): NARROW,
    }
}


def path(device_name: str) -> Path:
    """Where the table of a device is kept, in the user's cache."""
    return cache_folder() / "tiles" / (re.sub(r"[^A-Za-z0-9]+", "-", device_name).strip("-") + ".json")


def save(device_name: str, table: Mapping[Product, Tile]) -> Path:
    """Keep a table beside what was kept of other products; processes that start from now on use it."""
    whole = {**read.__wrapped__(device_name), **table}
    entries = [{"product": list(product), "tile": tile} for product, tile in whole.items()]
    target = path(device_name)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, json.dumps(entries, indent=1) + "\n")
    read.cache_clear()
    return target


@functools.cache
def read(device_name: str) -> dict[Product, Tile]:
    """The table of a device: what was measured on it, before what comes with the program."""
    known = MEASURED.get(device_name, {})
    try:
        entries = json.loads(path(device_name).read_text())
        return known | {Product(*map(int, entry["product"])): _checked(entry["tile"]) for entry in entries}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none, or none that makes sense
        return known


def _checked(tile: Any) -> Tile:
    for name, (least, most) in RANGES.items():
        if not isinstance(tile[name], int) or not least <= tile[name] <= most:
            raise ValueError(f"{name} of a tile is {tile[name]!r}")
        if name != "num_stages" and tile[name].bit_count() != 1:
            raise ValueError(f"{name} of a tile is {tile[name]}, not a power of two")
    return {name: tile[name] for name in RANGES}


def tile_for(product: Product, device: torch.device, default: Tile) -> Tile:
    """The tile of the measured product that is nearest; ``default`` where none is near on all sides."""
    if device.type != "cuda" or min(product) < 1:
        return default

    def distance(other: Product) -> float:
        return max(abs(math.log2(a / b)) for a, b in zip(product, other, strict=True))

    table = read(torch.cuda.get_device_name(device))
    near = min(table, key=distance, default=None)
    return default if near is None or distance(near) > math.log2(NEAR) else table[near]
