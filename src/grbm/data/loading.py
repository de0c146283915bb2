"""From a configuration to the tables that a run trains on."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.config import RunConfig
from grbm.data.arrays import open_array
from grbm.data.folders import Look, is_arrow, open_arrow, open_pictures
from grbm.data.images import load_digits, load_idx
from grbm.data.mixtures import MIXTURES, Mixture
from grbm.data.rows import Statistics, Table, measure, refuse_not_finite
from grbm.data.standardise import Standardizer
from grbm.errors import UserError
from grbm.randomness import generator


class Dataset(NamedTuple):
    """Rows in their own units, and what is known about them."""

    train: Table  # (n, N), in memory or on the disk
    test: Table  # (n', N), never trained on; may be empty
    image_shape: tuple[int, int, int] | None = None  # channels, height, width
    mixture: Mixture | None = None  # the true density, if known
    levels: int | None = None  # where numbers are k/(levels − 1): how many different ones there are
    numbers: tuple[Tensor, Tensor] | None = None  # of the rows of train and test in the file that was split


IMAGE_SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28)}
LEVELS = {"digits": 17, "mnist": 256, "fashion-mnist": 256, "celeba": 256, "images": 256}
CELEBA_CROP = 140 / 178  # of the width of aligned pictures, whatever their size


def load(config: RunConfig) -> Dataset:
    """The data set that ``config`` names; raises UserError where it is missing or malformed."""
    name = config.dataset.name
    if name in MIXTURES:
        mixture = MIXTURES[name]
        # Equal counts per mode up to rounding: the luck of 1,000 draws alone would move the modes' shares by 0.015.
        train = mixture.sample(config.dataset.n_points, seed=config.seed, stratified=True)
        return Dataset(train.float(), mixture.sample(10_000, seed=config.seed + 1).float(), mixture=mixture)
    if name == "array":
        assert config.data is not None
        key = config.dataset.key
        rows = open_arrow(config.data, key) if is_arrow(config.data) else open_array(config.data, key)
        return _split(rows, config)
    if name == "images":
        assert config.data is not None
        look = Look(config.dataset.crop, config.dataset.size, config.dataset.grey)
        rows, shape = open_pictures(config.data, look, config.dataset.key)
        return _split(rows, config)._replace(image_shape=shape, levels=LEVELS[name])
    if name == "celeba":
        look = Look(CELEBA_CROP, config.dataset.size or 32, config.dataset.grey)
        rows, shape = open_pictures(config.data or _find_celeba(config.data_dir), look)
        return _split(rows, config)._replace(image_shape=shape, levels=LEVELS[name])
    if name == "digits":
        return _split(load_digits()[0], config)._replace(image_shape=IMAGE_SHAPES[name], levels=LEVELS[name])
    train, test = (load_idx(name, config.data_dir, train=part)[0] for part in (True, False))
    return Dataset(train, test, image_shape=IMAGE_SHAPES[name], levels=LEVELS[name])


def _find_celeba(folder: Path) -> Path:
    """The aligned pictures, as torchvision lays them out, as they are published, or at half size."""
    names = ("celeba/img_align_celeba", "img_align_celeba", "celeba/img_align_celeba.zip", "img_align_celeba.zip")
    for name in (*names, "faces/celeba_aligned_half_10000.zip"):
        if (folder / name).exists():
            return folder / name
    raise UserError(
        f"The aligned pictures of CelebA are not in {folder}; give --data their folder or zip file "
        f"(img_align_celeba), which torchvision.datasets.CelebA downloads."
    )


def load_for(config: RunConfig, n_visible: int) -> Dataset:
    """The data of a trained run; raises UserError where they no longer fit its model."""
    dataset = load(config)
    if dataset.train.shape[1] != n_visible:
        where, found = config.data or config.dataset.name, dataset.train.shape[1]
        raise UserError(f"{where} has {found} columns now, but the model has {n_visible} visible units; give its data.")
    return dataset


def statistics(config: RunConfig, dataset: Dataset) -> Statistics:
    """One pass over the training rows; refuses what is not finite, and data without any variation."""
    where = str(config.data or config.dataset.name)
    stats = measure(dataset.train, where)
    if not (stats.high > stats.low).any():
        raise UserError("Every column of the data is constant, so there is nothing to learn; check the input.")
    if len(dataset.test):
        measure(dataset.test, where)
    return stats


def standardizer(config: RunConfig, dataset: Dataset, stats: Statistics) -> Standardizer:
    """Fitted to the training rows."""
    channels, floor = (dataset.image_shape[0], 0.1) if dataset.image_shape else (1, 0.0)
    return Standardizer.fit(stats, config.dataset.standardise, n_channels=channels, floor=floor)


def _split(rows: Table, config: RunConfig) -> Dataset:
    """Rows to train on and rows held out, each in their own order, in memory where they fit into ``config.memory``."""
    if len(rows) < 2:
        what = "picture" if config.dataset.name in ("images", "celeba") else "row"
        raise UserError(f"{config.data or config.data_dir} holds a single {what}; training needs at least 2.")
    order = torch.randperm(len(rows), generator=generator(config.seed, "split"))[: config.dataset.subset]
    n_test = int(len(order) * config.dataset.held_out)
    parts = order[n_test:].sort().values, order[:n_test].sort().values
    if isinstance(rows, Tensor):
        return Dataset(rows[parts[0]], rows[parts[1]], numbers=parts)
    if len(order) * rows.n_columns * 4 > config.memory << 20:
        return Dataset(rows.take(parts[0]), rows.take(parts[1]), numbers=parts)
    held = [rows[part] for part in parts]
    for part, numbers in zip(held, parts, strict=True):
        refuse_not_finite(part.numpy(), numbers, str(config.data))
    return Dataset(held[0], held[1], numbers=parts)
