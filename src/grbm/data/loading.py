"""From the name of a data set to the tables that a run trains on."""

import hashlib
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grbm.core.devices import require_memory
from grbm.core.errors import UserError
from grbm.core.randomness import generator
from grbm.data.config import DatasetConfig, Source
from grbm.data.delimited import Reading
from grbm.data.images import load_digits, load_idx
from grbm.data.mixtures import MIXTURES, Mixture
from grbm.data.named import NamedTable, open_weighted
from grbm.data.pictures import ImageShape, Look, Pictures, open_pictures
from grbm.data.splitting import copies, split
from grbm.data.tables import ColumnStatistics, StoredTable, Table, measure, nothing_varies, refuse_not_finite
from grbm.data.transforms import Transform
from grbm.data.weighting import some_of
from grbm.model.censoring import UNCENSORED, Censoring


class Dataset(NamedTuple):
    """Rows in their own units, and what is known about them."""

    train: Table  # (n, N), in memory or on the disk
    test: Table  # (n', N), never trained on; may be empty
    image_shape: ImageShape | None = None  # channels, height, width
    mixture: Mixture | None = None  # the true density, if known
    levels: int | None = None  # where numbers are k/(levels − 1): how many different ones there are
    numbers: tuple[Tensor, Tensor] | None = None  # of the rows of train and test in the file that was split
    columns: tuple[str, ...] = ()  # their names, where they have any
    same: Tensor | None = None  # (n,), equal for rows of train that are copies of one another
    pictures: Pictures | None = None  # that the rows are, where they were decoded
    opened: NamedTable | None = None  # that the rows are of, where they were read from a file
    gappy: tuple[Tensor, Tensor] | None = None  # rows with gaps to train on beside those, and their numbers in the file
    weights: Tensor | None = None  # of all rows in the file, float64

    @property
    def limits(self) -> Censoring:
        """Limits of columns that marks in a file tell."""
        return UNCENSORED if self.opened is None else self.opened.limits

    def weights_of(self, part: Literal["train", "test"]) -> Tensor | None:
        """Weights of the rows to train on, or held out, (n,) float64; None where all count alike."""
        if self.weights is None or self.numbers is None:
            return None
        return self.weights[self.numbers[part == "test"]]

    def some(self, part: Literal["train", "test"], n: int, *, copies: bool = True) -> Tensor:
        """At most ``n`` rows of a part that count alike, as `grbm.data.weighting.some_of` finds them."""
        return some_of(self.train if part == "train" else self.test, n, self.weights_of(part), copies=copies)

    @property
    def is_grey(self) -> bool:
        """Whether the first thousand pictures of three channels have the same in each."""
        if self.image_shape is None or self.image_shape[0] != 3:
            return False
        n = min(1000, len(self.train))  # a few at a time: most pictures end it at once
        parts = (self.train[torch.arange(k, min(k + 32, n))].chunk(3, dim=1) for k in range(0, n, 32))
        return all(torch.equal(red, green) and torch.equal(red, blue) for red, green, blue in parts)


IMAGE_SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28)}
LEVELS = {"digits": 17, "mnist": 256, "fashion-mnist": 256, "celeba": 256, "images": 256}
FEWEST_COMPLETE = 20  # Minimum number of rows without gaps, by which what is learned can be judged.
LARGEST = 1e15  # in the model's units: squares of such numbers are far from the end of float32
CELEBA_CROP = 140 / 178  # of the width of aligned pictures, whatever their size


def load(config: DatasetConfig, source: Source, seed: int = 0) -> Dataset:
    """The data set that ``config`` names, split by ``seed``; raises UserError where it is missing or malformed."""
    name = config.name
    if name in MIXTURES:
        mixture = MIXTURES[name]
        require_memory(
            100.0 * config.n_points, f"A sample of {config.n_points:,} points", "use fewer --dataset.n-points"
        )
        # Equal counts per mode up to rounding: the luck of 1,000 draws alone would move the modes' shares by 0.015.
        train = mixture.sample(config.n_points, seed=seed, stratified=True)
        return Dataset(train.float(), mixture.sample(10_000, seed=seed + 1).float(), mixture=mixture)
    if name == "array":
        assert source.path is not None
        opened, weights = open_weighted(source.path, reading_of(config), config.weights)
        if _fits(opened.rows, len(opened.rows), source):  # larger ones are not read twice
            opened = opened._replace(gaps=True)
        complete, gappy = opened.parted()
        if not len(complete) + len(gappy):
            raise UserError(f"{source.path} holds no numbers: every value is missing.")
        learns = len(gappy) > 0 and config.subset is None and _fits(opened.rows, len(opened.rows), source)
        learns = learns and len(complete) >= FEWEST_COMPLETE
        if not learns and len(complete) < len(gappy):
            opened.refuse_few(len(complete), FEWEST_COMPLETE)
        found = _split(complete, config, source, seed)
        gaps = None
        if learns:
            gaps = gappy[:], gappy.index
            refuse_not_finite(gaps[0].nan_to_num(0.0, torch.inf, -torch.inf).numpy(), gappy.index, str(source.path))
        return found._replace(columns=opened.columns, opened=opened, gappy=gaps, weights=weights)
    if name in ("images", "celeba"):
        path = source.path or _find_celeba(source.folder)
        pictures = open_pictures(path, look_of(config), config.key if name == "images" else None)
        split = _split(pictures.rows, config, source, seed)
        return split._replace(image_shape=pictures.shape, levels=LEVELS[name], pictures=pictures)
    if name == "digits":
        found = _split(load_digits()[0], config, source, seed)
    else:
        train, test = (load_idx(name, source.folder, train=part)[0] for part in (True, False))
        found = Dataset(train, test)
    return found._replace(image_shape=IMAGE_SHAPES[name], levels=LEVELS[name])


def reading_of(config: DatasetConfig) -> Reading:
    """Options of reading a table, of this data set."""
    drop = config.drop if config.index is None else (*config.drop, config.index)
    return Reading(config.key, config.columns, drop, config.na, config.decimal, config.header)


def look_of(config: DatasetConfig) -> Look:
    """How this data set makes rows of pictures."""
    if config.name == "celeba":
        return Look(CELEBA_CROP, config.size or 32, config.grey, config.white)
    return Look(config.crop, config.size, config.grey, config.white)


def _find_celeba(folder: Path) -> Path:
    """The aligned pictures, as torchvision lays them out, as they are published, or at half size."""
    names = ("celeba/img_align_celeba", "img_align_celeba", "celeba/img_align_celeba.zip", "img_align_celeba.zip")
    for path in (folder / name for name in (*names, "faces/celeba_aligned_half_10000.zip")):
        if path.exists():
            return path
    raise UserError(
        f"The aligned pictures of CelebA are not in {folder}; give --data their folder or zip file "
        f"(img_align_celeba), which torchvision.datasets.CelebA downloads."
    )


class Measured(NamedTuple):
    """Statistics of a data set, from one pass over all rows."""

    train: ColumnStatistics
    test: ColumnStatistics | None  # None where nothing is held out
    fingerprint: str  # of all rows, those held out too: equal for equal data in equal order

    def refuse_extreme(self, transform: Transform, where: str) -> None:
        """Raise UserError for columns whose numbers, or their squares, leave float32 in the model's units."""
        for stats in filter(None, (self.train, self.test)):
            z = torch.maximum(*(transform.scaled(bound).abs() for bound in (stats.low, stats.high)))
            wrong = transform.kept & ~(z < LARGEST)
            if wrong.any():
                column = int(wrong.nonzero()[0])
                largest = max(abs(float(stats.low[column])), abs(float(stats.high[column])))
                raise UserError(
                    f"{where} holds numbers of up to {largest:.3g} in column {column}, too large for float32 "
                    f"as it is standardised; divide the column by a constant, or standardise each column."
                )


def statistics(dataset: Dataset, where: str) -> Measured:
    """One pass over all rows; refuses what is not finite in ``where``, and training rows without any variation."""
    digest = hashlib.sha256()
    train = measure(dataset.train, where, digest.update)
    if not (train.high > train.low).any():
        raise nothing_varies(len(dataset.train))
    test = measure(dataset.test, where, digest.update) if len(dataset.test) else None
    if dataset.gappy is not None:
        digest.update(dataset.gappy[0].numpy().tobytes())
    if dataset.weights is not None:
        digest.update(dataset.weights.numpy().tobytes())
    n, n_columns = dataset.train.shape
    return Measured(train, test, f"{n} + {len(dataset.test)} x {n_columns}, {digest.hexdigest()[:32]}")


def _split(rows: Table, config: DatasetConfig, source: Source, seed: int) -> Dataset:
    """Rows to train on and rows held out, each in their own order, in memory where they fit into ``source.memory``."""
    if len(rows) < 2:
        what = "picture" if config.name in ("images", "celeba") else "row"
        raise UserError(f"{source.path or source.folder} holds a single {what}; training needs at least 2.")
    order = torch.randperm(len(rows), generator=generator(seed, "split"))[: config.subset]
    n_test = int(len(order) * config.held_out)
    chosen = rows[order] if isinstance(rows, Tensor) else rows.take(order)
    found, same = copies(chosen, is_picture=config.name in ("images", "celeba")), None
    if found is not None:
        same = torch.zeros(len(rows), dtype=torch.int64).index_copy(0, order, found)
    parts = split(order, n_test, same)
    same = None if same is None else same[parts[0]]
    of_file = parts if isinstance(rows, Tensor) else (rows.index[parts[0]], rows.index[parts[1]])
    if not isinstance(rows, Tensor) and not _fits(rows, len(order), source):
        return Dataset(rows.take(parts[0]), rows.take(parts[1]), numbers=of_file, same=same)
    held = [rows[part] for part in parts]
    for part, numbers in zip(held, of_file, strict=True):
        refuse_not_finite(part.numpy(), numbers, str(source.path))
    return Dataset(held[0], held[1], numbers=of_file, same=same)


def _fits(rows: StoredTable, n: int, source: Source) -> bool:
    """Whether ``n`` of the rows are read into memory."""
    return n * rows.n_columns * 4 <= source.memory << 20
