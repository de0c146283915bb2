"""`grbm compare`: runs side by side, in the terminal and on a page."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from grbm.core.files import write_text
from grbm.core.streams import plain
from grbm.data.images import tile
from grbm.data.loading import Dataset
from grbm.data.tables import spread
from grbm.report import html
from grbm.report.doctor import diagnose
from grbm.report.page import CURVES, curve, data_of, samples, scores
from grbm.report.words import duration
from grbm.runs import Run
from grbm.runs.paper import describe


def compare(
    several: Sequence[Run], path: Path, *, seed: int = 1, warn: Callable[[str], None] = lambda text: None
) -> list[tuple[str, ...]]:
    """Write runs side by side to ``path``; returns the table of settings that differ and scores, with its head.

    ``warn`` is told where data of a run are not there.
    """
    names = _names(several)
    data = [data_of(run, warn) for run in several]
    verdicts = [_verdict(run, own, seed) for run, own in zip(several, data, strict=True)]
    table: list[tuple[str, ...]] = [("", *names), *_differences(several), ("the doctor", *verdicts)]
    found = [_final(run) | dict(scores(run)) for run in several]
    for label in dict.fromkeys(label for own in found for label in own):
        table.append((label, *(own.get(label, "–") for own in found)))
    curves = [curve(dict(zip(names, several, strict=True)), *which) for which in CURVES]
    panels = [
        f"<div><h3>{escape(name)}</h3>{''.join(samples(run, own, seed, real=False))}</div>"
        for name, run, own in zip(names, several, data, strict=True)
    ]
    body = [
        f"<h1>{len(several)} runs side by side</h1>",
        html.section("Settings that differ, and scores", html.table(table[1:], table[0])),
        html.section("Samples", *_real(several, data), f'<div class="grid">{"".join(panels)}</div>'),
        html.section("Learning", f'<div class="grid">{"".join(filter(None, curves))}</div>'),
    ]
    write_text(path, html.page("Runs side by side", body))
    return table


def _verdict(run: Run, data: Dataset | None, seed: int) -> str:
    """What the doctor says of a run, in short."""
    wrong = [finding.about for finding in diagnose(run, data, seed=seed) if finding.level == "wrong"]
    return f"wrong: {', '.join(wrong)}" if wrong else "nothing is wrong"


def _final(run: Run) -> dict[str, str]:
    """How near the chains of training were to the data at its end."""
    last = run.metrics[-1].get("energy_distance") if run.metrics else None
    return {"energy distance at the end": "–" if last is None else f"{last:.3g}"}


def _real(several: Sequence[Run], data: Sequence[Dataset | None]) -> Iterator[str]:
    """One strip of training images for all runs that have them."""
    seen = set()
    for run, own in zip(several, data, strict=True):
        if own is None or run.image_shape is None or (run.config.dataset, run.config.data) in seen:
            continue
        seen.add((run.config.dataset, run.config.data))
        strip = html.picture(tile(own.train[spread(len(own.train), 40)], run.image_shape, 20))
        yield html.figure(strip, f"Training images: {run.config.dataset.name}.", "training images", "pixels")


def _differences(several: Sequence[Run]) -> list[tuple[str, ...]]:
    """What was run, where it is not the same: experiments, data, settings, updates, time and machine."""
    rows = []
    for run in several:
        last = run.metrics[-1] if run.metrics else {"update": 0, "seconds": 0.0}
        row = {"what": describe(run.config), "data": str(run.config.data or "")} | run.config.identity()
        done = {"updates done": f"{last['update']:,}", "time": duration(last["seconds"])}
        rows.append(row | done | {"machine": run.status.machine})
    always = ("updates done", "time")
    keys = [key for key in rows[0] if key in always or len({str(row.get(key)) for row in rows}) > 1]
    return [(key, *("–" if row.get(key) in (None, "") else plain(str(row[key])) for row in rows)) for key in keys]


def _names(several: Sequence[Run]) -> list[str]:
    names = [plain(run.folder.resolve().name) for run in several]
    return names if len(set(names)) == len(names) else [plain(str(run.folder)) for run in several]
