"""From a configuration to the tensors that a run trains on."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.config import RunConfig
from grbm.data.arrays import load_array
from grbm.data.images import load_digits, load_idx
from grbm.data.mixtures import MIXTURES, Mixture
from grbm.data.standardise import Standardizer
from grbm.errors import UserError
from grbm.randomness import generator


class Dataset(NamedTuple):
    """Rows in their own units, and what is known about them."""

    train: Tensor  # (n, N) float32
    test: Tensor  # (n', N), never trained on; may be empty
    image_shape: tuple[int, int, int] | None = None  # channels, height, width
    mixture: Mixture | None = None  # the true density, if known


IMAGE_SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28)}


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
        return Dataset(*_split(load_array(config.data), config))
    if name == "digits":
        return Dataset(*_split(load_digits()[0], config), image_shape=IMAGE_SHAPES[name])
    train, test = (load_idx(name, config.data_dir, train=part)[0] for part in (True, False))
    return Dataset(train, test, image_shape=IMAGE_SHAPES[name])


def load_for(config: RunConfig, n_visible: int) -> Dataset:
    """The data of a trained run; raises UserError where they no longer fit its model."""
    dataset = load(config)
    if dataset.train.shape[1] != n_visible:
        where, found = config.data or config.dataset.name, dataset.train.shape[1]
        raise UserError(f"{where} has {found} columns now, but the model has {n_visible} visible units; give its data.")
    return dataset


def standardizer(config: RunConfig, dataset: Dataset) -> Standardizer:
    """Fitted to the training rows; refuses data without any variation."""
    spread = dataset.train.amax(0) - dataset.train.amin(0)
    if not (spread > 0).any():
        raise UserError("Every column of the data is constant, so there is nothing to learn; check the input.")
    channels, floor = (dataset.image_shape[0], 0.1) if dataset.image_shape else (1, 0.0)
    return Standardizer.fit(dataset.train, config.dataset.standardise, n_channels=channels, floor=floor)


def _split(rows: Tensor, config: RunConfig) -> tuple[Tensor, Tensor]:
    n_test = int(len(rows) * config.dataset.held_out)
    order = torch.randperm(len(rows), generator=generator(config.seed, "split"))
    return rows[order[n_test:]], rows[order[:n_test]]
