"""How near generated images are to real ones: one table of distances, with reference points and its protocol."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from grbm.config import RunConfig
from grbm.data.images import load_digits, load_idx
from grbm.data.loading import Dataset
from grbm.data.rows import spread
from grbm.evaluate import references
from grbm.evaluate.features import Features, classifier
from grbm.evaluate.frechet import Statistics, frechet, kernel_distance, neighbours
from grbm.generate import generate
from grbm.runs import Run

NEIGHBOURS = 5000  # images that precision, recall, density and coverage are taken over


class Table(NamedTuple):
    """Rows of numbers by column name, and how they were made."""

    rows: dict[str, dict[str, float]]
    protocol: list[str]

    def lines(self) -> Iterator[str]:
        columns = list(next(iter(self.rows.values())))
        width = max(map(len, self.rows))
        yield " " * width + "".join(f"  {name:>10}" for name in columns)
        for name, row in self.rows.items():
            yield f"{name:<{width}}" + "".join(f"  {row[column]:>10.4g}" for column in columns)
        yield from self.protocol


def score_images(
    run: Run,
    dataset: Dataset,
    inception: Features | None,
    *,
    n: int = 10_000,
    with_references: bool = True,
    seed: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> Table:
    """Score ``n`` images drawn from noise against ``n`` training images, and reference points in the same way.

    Parameters
    ----------
    run, dataset
        A run on images, and its data.
    inception : Features, optional
        `inception_2048` or `inception_768`. Digits, MNIST and Fashion-MNIST also have a classifier of their own.
    with_references : bool
        Also held-out images, one Gaussian, a mixture of 20 and a small variational autoencoder of the training images.
    say : callable
        Told what is going on.
    """
    shape = dataset.image_shape
    if shape is None:
        raise ValueError(f"{run.folder} is not a run on images.")
    n = min(n, len(dataset.train))
    real = dataset.train[spread(len(dataset.train), n)].float()
    drawn = generate(run, n, seed=seed).float().clamp(0, 1)
    sets: dict[str, Callable[[], Tensor]] = {"this run": lambda: drawn}
    if with_references:
        whole = dataset.train[spread(len(dataset.train), 60_000)].float()
        if len(dataset.test):
            sets["held-out images"] = lambda: dataset.test[spread(len(dataset.test), n)].float()
        sets["one Gaussian"] = lambda: references.gaussian(whole, n, seed)
        sets["mixture of 20"] = lambda: references.mixture(whole, n, seed)
        sets["autoencoder"] = lambda: references.autoencoder(whole, n, seed)
    judges = [f for f in (_own(run.config, shape), inception) if f is not None]
    truth = {judge.name: judge.extract(real.view(-1, *shape)) for judge in judges}
    rows: dict[str, dict[str, float]] = {}
    for name, make in sets.items():
        say(name)
        images = make().clamp(0, 1).view(-1, *shape)
        rows[name] = {}
        for judge in judges:
            found = judge.extract(images)
            rows[name] |= _compare(judge, truth[judge.name], found, seed)
    sampling = run.config.sampling
    how = f"{sampling.n_steps} steps of {sampling.sampler.name} from noise"
    how += ", conditional means of the last states" if sampling.mean else ""
    protocol = [f"This run: {n:,} images, {how}, against {n:,} training images, evenly spaced."]
    if with_references and 0 < len(dataset.test) < n:
        protocol += [
            f"Held-out images: {len(dataset.test):,} only, and a Fréchet distance rises where there are fewer."
        ]
    protocol += [f"{judge.label}: {judge.protocol}." for judge in judges]
    return Table(rows, protocol)


def _compare(judge: Features, real: Tensor, found: Tensor, seed: int) -> dict[str, float]:
    kernel = kernel_distance(real, found, seed=seed)
    scores = {
        judge.label: frechet(Statistics.of(real), Statistics.of(found)),
        f"{judge.label.replace('FID', 'KID').replace('Fréchet', 'kernel')} x1000": 1000 * kernel.mean,
    }
    if judge.name.startswith("classifier"):
        k = min(NEIGHBOURS, len(real), len(found))
        around = neighbours(real[spread(len(real), k)], found[spread(len(found), k)])
        scores |= {name: float(x) for name, x in around._asdict().items()}
    return scores


def _own(config: RunConfig, shape: tuple[int, int, int]) -> Features | None:
    """The classifier of these images, where they have labels."""
    name = config.dataset.name
    if name == "digits":
        images, labels = load_digits()
        return classifier(name, (images[:1500], labels[:1500]), (images[1500:], labels[1500:]), shape[1:])
    if name in ("mnist", "fashion-mnist"):
        known, unseen = (load_idx(name, config.data_dir, train=part) for part in (True, False))
        return classifier(name, known, unseen, shape[1:])
    return None
