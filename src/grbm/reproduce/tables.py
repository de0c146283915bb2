"""The tables of the paper as text: its number beside ours, our own recipe, reference points, and which order holds."""

import json
import math
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grbm import runs
from grbm.core import files
from grbm.core.streams import aligned
from grbm.evaluate.features import Features
from grbm.report.image_scores import OWN, cells, judges_of, score_images
from grbm.report.words import ending
from grbm.runs.paper import EXPERIMENTS, describe

SECONDS = "seconds"  # the column of training times


def table(what: str, done: Sequence[runs.Run], folder: Path, network: Features | None, n_images: int) -> Iterator[str]:
    """Score ``done``, runs of one or more seeds, write ``what``.json into ``folder`` and yield the lines of the table.

    With several seeds a row has their means, and as errors the standard errors of these means.
    """
    seeds: dict[str, list[dict[str, float]]] = {}  # the scores of each seed, by the name of the row
    dataset, references, protocol, judges = None, {}, [], []
    for run in done:
        dataset = dataset or run.load_data()
        print(f"  scoring {run.folder.relative_to(folder)} ...", flush=True)
        scored = score_images(run, dataset, network, n=n_images)
        time = {SECONDS: run.metrics[-1]["seconds"]} if run.metrics else {}
        seeds.setdefault(run.config.preset, []).append(scored.rows[OWN] | time)
        protocol = [f"{scored.settings['n']:,} images from noise each, against as many training images, evenly spaced."]
        protocol += scored.protocol
        references = {k: row for k, row in scored.rows.items() if k != OWN}
        judges = [judge.label for judge in judges_of(run, network)]
    n_seeds = max(map(len, seeds.values()))
    if n_seeds > 1:
        protocol += [f"Means over {n_seeds} seeds and their standard errors over them; reference points as said above."]
    rows = {name: over_seeds(several) for name, several in seeds.items()}
    shown = {name: cells(row) for name, row in (rows | references).items()}
    for name, mean in rows.items():
        shown[name] |= {SECONDS: f"{mean[SECONDS]:.0f}"} if SECONDS in mean else {}
    left_out = ("density", "coverage", SECONDS)
    columns = [*dict.fromkeys(c for row in shown.values() for c in row if c not in left_out), SECONDS]
    body = []
    for name, row in shown.items():
        printed = _printed(name)
        number = "" if printed is None else f"{printed:.2f}"
        body.append([title(name) if name in rows else name, number, *(row.get(c, "–") for c in columns)])
    yield f"Table {what.removeprefix('table')} of the paper, its FID (2048 features, full scale) beside ours"
    head, *lines = aligned([["", "paper FID", *columns], *body], numbers=True)
    yield head
    for name, line in zip(shown, lines, strict=True):
        stopped = sum(run.status.ended != "finished" for run in done if run.config.preset == name)
        yield line + ("" if not stopped else "  stopped" if n_seeds == 1 else f"  {stopped} stopped")
    for column in judges:
        yield order(column, rows)
    yield from ("", *protocol, *notes(done))
    content: dict[str, Any] = {
        "rows": {name: {"paper FID": _printed(name), **row} for name, row in rows.items()},
        "seeds": seeds,
        "references": references,
        "protocol": protocol,
        "about": {run.config.preset: about(run) for run in done},
    }
    path = folder / f"{what}.json"
    files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    yield f"Written to {path}."


def over_seeds(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The means of what all ``rows`` have, with their standard errors; of one row, that row.

    An error is that over the rows, which a few of them show badly, but at least what their own errors leave of it.
    """
    if len(rows) == 1:
        return rows[0]
    n, found = len(rows), dict[str, float]()
    for name in rows[0]:
        if name.endswith("±") or not all(name in row for row in rows):
            continue
        values, own = ([row.get(key, 0.0) for row in rows] for key in (name, f"{name} ±"))
        least = math.sqrt(statistics.mean(error**2 for error in own) / n)
        found |= {name: statistics.mean(values), f"{name} ±": max(statistics.stdev(values) / n**0.5, least)}
    return found


def order(column: str, rows: dict[str, dict[str, float]]) -> str:
    """How many pairs stand in the order of the paper, how many cannot be told apart, and which stand the other way."""
    scored = [name for name in rows if column in rows[name] and _printed(name) is not None]
    names = sorted(scored, key=lambda name: _printed(name) or 0.0)
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    gaps = [rows[b][column] - rows[a][column] for a, b in pairs]
    errors = [math.hypot(rows[a].get(f"{column} ±", 0.0), rows[b].get(f"{column} ±", 0.0)) for a, b in pairs]
    right = sum(gap > 2 * error for gap, error in zip(gaps, errors, strict=True))
    wrong = [pair for pair, gap, error in zip(pairs, gaps, errors, strict=True) if gap < -2 * error]
    text = f"{column}: {right} of {len(pairs)} pairs stand in the paper's order by more than two standard errors, "
    lines = [f"{text}{len(wrong)} the other way round{':' if wrong else '.'}"]
    for better in names:
        if beaten := [title(a) for a, b in wrong if b == better]:
            lines.append(f"  {title(better)} is better here than {' and than '.join(beaten)}.")
    return "\n".join(textwrap.fill(line, 110, subsequent_indent="    ") for line in lines)


def notes(done: Iterable[runs.Run]) -> Iterator[str]:
    """Lines on each kind of run, once for all its seeds, and on early endings."""
    told = set()
    for run in done:
        if run.config.preset not in told:
            yield from textwrap.wrap(f"{run.config.preset}: {about(run)}", 110, subsequent_indent="  ")
        told.add(run.config.preset)
        if run.status.ended != "finished":
            yield f"  {run.config.preset}, seed {run.config.seed}: {ending(run)}"


def title(name: str) -> str:
    """Name of a row or a panel."""
    if name not in EXPERIMENTS:
        return f"our recipe ({name})"
    return EXPERIMENTS[name].title + (", annealed" if EXPERIMENTS[name].anneal else "")


def about(run: runs.Run, *, title: bool = True) -> str:
    """Description of a run, and of what of it is shown."""
    config = run.config
    what = describe(config, title=title)
    if config.preset not in EXPERIMENTS:
        what = f"our recipe; {config.model.n_hidden:,} hidden units, {config.train.n_updates:,} updates"
    if config.precision != "highest":
        what += f"; precision {config.precision}"
    return f"{what}; {'conditional means' if config.sampling.mean else 'states v'} shown"


def _printed(name: str) -> float | None:
    return EXPERIMENTS[name].fid if name in EXPERIMENTS else None
