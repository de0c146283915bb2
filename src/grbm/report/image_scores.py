"""How near generated images are to real ones: one table of distances, with reference points and its protocol."""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from grbm.core.errors import UserError
from grbm.core.files import cache_folder, digest_of, read_tensors, write_tensors, write_text
from grbm.core.streams import aligned
from grbm.core.typed import is_kind, read_json, restore
from grbm.data.images import load_digits, load_idx
from grbm.data.loading import Dataset
from grbm.data.tables import spread
from grbm.evaluate import features, frechet, references
from grbm.evaluate.features import Features, classifier
from grbm.evaluate.frechet import FeatureStatistics, frechet_estimate, kernel_distance, neighbours
from grbm.report.words import with_error
from grbm.runs import FID, Run, RunConfig, model_digest
from grbm.runs.sampling import generate

FEWEST = 50  # images that distances are taken of
NEIGHBOURS = 5000  # images that precision, recall, density and coverage are taken over
OWN = "this run"
FORMAT = 3  # of fid.json; a table of another format is made anew before it is used


class ScoreTable(NamedTuple):
    """Rows of numbers by column name, and how they were made; a row is empty where images were not finite."""

    rows: dict[str, dict[str, float]]
    protocol: list[str]  # of the rows that other runs have too
    settings: dict[str, Any]  # equal for equal tables: numbers of images, weights, data, judges, seed, program
    own_protocol: list[str]  # of the run's own row

    def lines(self) -> Iterator[str]:
        yield from aligned(self.table(), numbers=True)
        yield from (*self.own_protocol, *self.protocol)

    def table(self) -> list[list[str]]:
        """The rows as text under a head, each after its name."""
        shown = {name: cells(row) for name, row in self.rows.items()}
        columns = list(dict.fromkeys(column for row in shown.values() for column in row))
        body = [[name, *(row.get(column, "–") for column in columns)] for name, row in shown.items()]
        return [["", *columns], *body]


def cells(row: dict[str, float]) -> dict[str, str]:
    """Numbers by column as text, with their standard errors, which are the columns that end in ±."""
    numbers = {name: x for name, x in row.items() if not name.endswith("±")}
    return {name: with_error(x, row[f"{name} ±"]) if f"{name} ±" in row else f"{x:.3f}" for name, x in numbers.items()}


def judges_of(run: Run, inception: Features | None) -> list[Features]:
    """The judges of a run's images: a classifier of its own kind of images, where there is one, and Inception."""
    assert run.image_shape is not None
    return [judge for judge in (_own(run.config, run.image_shape), inception) if judge is not None]


def score_images(
    run: Run,
    dataset: Dataset,
    inception: Features | None,
    *,
    n: int = 10_000,
    with_references: bool = True,
    seed: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> ScoreTable:
    """Score ``n`` images drawn from noise against ``n`` training images, and reference points in the same way.

    The table is written to fid.json in the run's folder; where that holds the very same table already, it is returned.

    Parameters
    ----------
    run, dataset
        A run on images, and its data.
    inception : Features, optional
        `inception_2048` or `inception_768`. Digits, MNIST and Fashion-MNIST also have a classifier of their own.
    with_references : bool
        Also held-out images, a full-covariance Gaussian, a mixture of 20 and a small variational autoencoder.
    say : callable
        Told what is going on.

    Raises
    ------
    UserError
        For fewer than `FEWEST` training images.
    """
    shape = dataset.image_shape
    if shape is None:
        raise ValueError(f"{run.folder} is not a run on images.")
    n = min(n, len(dataset.train))
    if n < FEWEST:
        raise UserError(f"{run.folder} has {len(dataset.train)} training images; distances need at least {FEWEST}.")
    judges = judges_of(run, inception)
    real, whole = (dataset.train[spread(len(dataset.train), k)].float() for k in (n, 60_000))
    data, program = digest_of(real, whole, dataset.test[:]), _program()
    settings = {"n": n, "seed": seed, "references": with_references, "model": model_digest(run.model), "data": data}
    settings |= {"format": FORMAT, "sampling": asdict(run.config.sampling)}
    settings |= {"judges": [f"{judge.name} {judge.key}" for judge in judges], "program": program}
    before = read_table(run)
    if before is not None and before.settings == settings:
        return before
    scorer = inspect.getsource(frechet) + inspect.getsource(compare)  # numbers that other code made are not used
    sets: dict[str, Callable[[], Tensor]] = {OWN: lambda: generate(run, n, seed=seed)}
    if with_references:
        if len(dataset.test) >= FEWEST:
            sets["held-out images"] = lambda: dataset.test[spread(len(dataset.test), n)]
        sets["full-covariance Gaussian"] = lambda: references.gaussian(whole, n, seed)
        sets["mixture of 20"] = lambda: references.mixture(whole, n, seed)
        sets["small VAE"] = lambda: references.autoencoder(whole, n, seed)

    def features_of(name: str, make: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Features by judge; those of sets that depend on the data alone are made once and kept in the user's cache."""
        images = None
        found = {}
        for judge in judges:
            path = _remembered((name, data, n, seed, shape, judge.name, judge.key, program), "safetensors")
            if name != OWN and path.is_file():
                with suppress(UserError, KeyError):  # a damaged file is made anew
                    found[judge.name] = read_tensors(path)["features"]
                    continue
            images = make().float().clamp(0, 1).view(-1, *shape) if images is None else images
            if not images.isfinite().all():
                return {}
            found[judge.name] = judge.extract(images)
            if name != OWN:
                write_tensors(path, {"features": found[judge.name]})
        return found

    say("training images")
    truth = features_of("training images", lambda: real)
    rows: dict[str, dict[str, float]] = {}
    for name, make in sets.items():
        say(name)
        path = _remembered((name, data, n, seed, shape, str(settings["judges"]), program, scorer), "json")
        if name != OWN and path.is_file():
            with suppress(ValueError, OSError):  # a damaged file is made anew
                remembered = read_json(path)
                if is_kind(dict[str, float], remembered):
                    rows[name] = remembered
                    continue
        found = features_of(name, make)
        rows[name] = {}
        for judge in judges if found else ():
            rows[name] |= compare(judge, truth[judge.name], found[judge.name], seed)
        if name != OWN:
            write_text(path, json.dumps(rows[name]) + "\n")
    protocol, own = list(_protocol(dataset, judges, n, rows)), list(_own_protocol(run, n, rows))
    table = ScoreTable(rows, protocol, settings, own)
    write_text(run.folder / FID, json.dumps(table._asdict(), indent=2) + "\n")
    return table


def _own_protocol(run: Run, n: int, rows: dict[str, dict[str, float]]) -> Iterator[str]:
    sampling = run.config.sampling
    how = f"{sampling.n_steps} steps of {sampling.sampler.name} from noise"
    how += ", conditional means of the last states" if sampling.mean else ""
    yield f"This run: {n:,} images, {how}, against {n:,} training images, evenly spaced."
    if not rows[OWN]:
        yield "This run: its chains leave the finite numbers, so there are no distances."


def _protocol(dataset: Dataset, judges: list[Features], n: int, rows: dict[str, dict[str, float]]) -> Iterator[str]:
    if "held-out images" in rows and len(dataset.test) < n:
        yield f"Held-out images: {len(dataset.test):,} only, and a Fréchet distance rises where there are fewer."
    if "mixture of 20" in rows and dataset.train.shape[1] > references.LARGEST:
        yield f"Mixture of 20: of {references.COMPONENTS} principal components; the others a Gaussian."
    yield from (f"{judge.label}: {judge.protocol}." for judge in judges)
    yield "Errors: what other draws of as many images would vary by."


def read_table(run: Run) -> ScoreTable | None:
    """The table that `score_images` wrote into the run's folder, if there is one that can be read."""
    try:
        table = restore(ScoreTable, read_json(run.folder / FID))
        return table if OWN in table.rows else None
    except (OSError, ValueError):
        return None


def _remembered(what: tuple[object, ...], kind: str) -> Path:
    """The file in the user's cache that keeps what was made of ``what``."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()
    return cache_folder() / "features" / f"{digest}.{kind}"


def _program() -> str:
    """A digest of the code that makes reference images and features: what other code made is not used."""
    parts: list[Any] = [references, features.inception_768, features.inception_2048, features._partial_inception]
    text = "".join(inspect.getsource(part) for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def compare(judge: Features, real: Tensor, found: Tensor, seed: int) -> dict[str, float]:
    """The numbers of one row in one judge's eyes, of features of real images (n, d) and of generated ones (m, d)."""
    distance = frechet_estimate(FeatureStatistics.of(real), found)
    kernel = kernel_distance(real, found, seed=seed)
    other = f"{judge.kernel_label} x1000"
    scores = {judge.label: distance.mean, f"{judge.label} ±": distance.error}
    scores |= {other: 1000 * kernel.mean, f"{other} ±": 1000 * kernel.error}
    if judge.neighbours:
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
