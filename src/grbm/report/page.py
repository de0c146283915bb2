"""`report.html` and `compare.html`: what a run is and how good, on one page that needs nothing but a browser."""

import base64
import io
import json
import shlex
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from grbm import runs
from grbm.data.images import tile
from grbm.data.loading import Dataset
from grbm.data.tables import spread
from grbm.errors import UserError
from grbm.files import write_text
from grbm.report import plots
from grbm.report.doctor import diagnose
from grbm.report.image_scores import OWN, ScoreTable, cells, read_table, widths
from grbm.report.words import duration, ending, with_error
from grbm.runs import Run
from grbm.runs.paper import describe
from grbm.runs.sampling import generate, on_device, trajectory, tuned_sampler
from grbm.typed import is_kind

N_FRAMES = 40
SCORES = {  # of evaluation.json, with what they are called on a page
    "log_likelihood_test": "log-likelihood, held out, nats",
    "log_likelihood_train": "log-likelihood, training, nats",
    "bits_per_dimension_test": "bits per dimension, held out",
    "bits_per_dimension_train": "bits per dimension, training",
    "log_z": "log Z, nats",
    "kl_data_model": "KL(data || model), nats",
    "within_3_deviations": "samples within 3 deviations of a mode",
    "reconstruction_test": "reconstruction error, held out",
}
OF_LOG_Z = [name for name in SCORES if name.startswith(("log_", "bits"))]  # as good as log Z is known
MIXED = {
    "rhat_max": "worst R-hat",
    "ess_bulk_min": "least bulk effective sample size",
    "steps_per_independent": "steps per independent draw",
}


def report(run: Run, *, seed: int = 1, dataset: Dataset | None = None) -> Path:
    """Write report.html into the run's folder, from its files; returns its path.

    Samples and the way to them are drawn anew; scores are those that ``grbm evaluate`` and ``grbm mixing`` left.
    """
    dataset = dataset or _data(run)
    body = [
        _head(run, dataset),
        _section("Samples", f'<div class="grid">{"".join(_samples(run, dataset, seed))}</div>'),
        _section("What was learned", *_learned(run)),
        _section("Scores", *_scored(run)),
        _section("The doctor's findings", _findings(run, dataset, seed)),
        _section("Settings", _settings(run)),
    ]
    path = run.folder / runs.REPORT
    write_text(path, _page(_name(run), body))
    return path


def compare(several: Sequence[Run], path: Path, *, seed: int = 1) -> list[tuple[str, ...]]:
    """Write runs side by side to ``path``; returns the table of settings that differ and scores, with its head."""
    names = _names(several)
    table: list[tuple[str, ...]] = [("", *names)]
    table += _differences(several)
    found = [dict(_scores(run)) for run in several]
    for label in dict.fromkeys(label for scores in found for label in scores):
        table.append((label, *(scores.get(label, "–") for scores in found)))
    curves = [_curve(dict(zip(names, several, strict=True)), *which) for which in CURVES]
    panels = [
        f"<div><h3>{escape(name)}</h3>{''.join(_samples(run, _data(run), seed))}</div>"
        for name, run in zip(names, several, strict=True)
    ]
    body = [
        f"<h1>{len(several)} runs side by side</h1>",
        _section("Settings that differ, and scores", _table(table[1:], table[0])),
        _section("Samples", f'<div class="grid">{"".join(panels)}</div>'),
        _section("Learning", f'<div class="grid">{"".join(filter(None, curves))}</div>'),
    ]
    write_text(path, _page("Runs side by side", body))
    return table


def _data(run: Run) -> Dataset | None:
    """The run's data, if they are where they were."""
    try:
        return run.load_data()
    except UserError:
        return None


def _page(title: str, body: Sequence[str]) -> str:
    """One file without any address: the policy forbids the browser to fetch anything."""
    css, js = ((resources("grbm.report") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · grbm</title>
<link rel="icon" href="data:,">
<style>
{css}</style>
</head>
<body>
<main>
{chr(10).join(body)}
</main>
<script>
{js}</script>
</body>
</html>
"""


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{chr(10).join(parts)}\n</section>"


def _table(rows: Sequence[Sequence[str]], head: Sequence[str], own: str = "") -> str:
    """Rows of text; the one whose first cell is ``own`` stands out."""

    def line(kind: str, row: Sequence[str]) -> str:
        rest = "".join(f"<{kind}{' class=wrap' if len(x) > 40 else ''}>{escape(x)}</{kind}>" for x in row[1:])
        return f"<tr{' class=own' if row[0] == own else ''}><th scope=row>{escape(row[0])}</th>{rest}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>'


def _head(run: Run, dataset: Dataset | None) -> str:
    config, seconds = run.config, (run.metrics[-1]["seconds"] if run.metrics else 0.0)
    shape = "" if run.image_shape is None else f" ({' x '.join(str(n) for n in run.image_shape)})"
    rows = "" if dataset is None else f"{len(dataset.train):,} rows of "
    held = "" if dataset is None or not len(dataset.test) else f"; {len(dataset.test):,} held out"
    train, objective = config.train, config.objective
    done = max(run.status.update, run.metrics[-1]["update"] if run.metrics else 0)
    facts = {
        "Data": f"{config.dataset.name}: {rows}{run.model.n_visible:,} visible units{shape}{held}",
        "Model": f"{run.model.n_hidden:,} hidden units, {sum(p.numel() for p in run.model.parameters()):,} parameters",
        "Training": f"{done:,} of {train.n_updates:,} updates of {train.batch_size:,} rows; {objective.name}, "
        f"{objective.n_steps} steps of {config.sampler.name}; {train.optimizer}, rate {train.learning_rate:g}",
        "Time": "; ".join(filter(None, (duration(seconds), run.status.machine))),
        "Seed": str(config.seed),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    if config.command:
        lines += f"<dt>Command</dt><dd><code>{escape(config.command)}</code></dd>"
    about = f'<p class="muted">{escape(describe(run.config))}</p>' if describe(run.config) else ""
    status = "" if run.status.ended == "finished" else f"<p><strong>{escape(ending(run))}</strong></p>"
    return f"<h1>{escape(_name(run))}</h1>\n{about}{status}\n<dl>{lines}</dl>"


def _samples(run: Run, dataset: Dataset | None, seed: int) -> Iterator[str]:
    """A sheet of samples, and the way from noise to some of them."""
    sampling, shape, size = run.config.sampling, run.image_shape, run.model.n_visible + 2 * run.model.n_hidden
    sampler = tuned_sampler(run, sampling.sampler, on_device(run))
    what = "conditional means of the last states" if sampling.mean else "last states"
    how = f"{sampling.n_steps} steps of {sampling.sampler.name} from noise; {what}"
    # few enough that a page of large pictures can be mailed, and that all states fit into memory
    n_chains = (32 if run.model.n_visible <= 1024 else 8) if shape else max(100, min(1000, 1_000_000 // size))
    states, steps = trajectory(run, n_chains, n_states=N_FRAMES, sampler=sampler, seed=seed)
    if not states.isfinite().all():
        yield f"<p><strong>{sampling.n_steps} steps from noise end in NaN or infinite numbers.</strong></p>"
        return
    if shape is not None:
        sheet = tile(generate(run, 100, sampler=sampler, seed=seed), shape, 10)
        yield _figure(_picture(sheet), f"{how}.", "100 samples", "pixels")
        frames = [_picture(tile(state, shape, min(8, n_chains // 2))) for state in states]
        caption = "The same chains from noise on."
        if dataset is not None:
            real = tile(dataset.train[spread(len(dataset.train), 100)], shape, 10)
            yield _figure(_picture(real), "Training images.", "100 training images", "pixels")
    else:
        data = None if dataset is None else dataset.train[spread(len(dataset.train), 1000)]
        seen = states[-1] if data is None else torch.cat([states[-1], data.to(states)])
        limits = plots.limits_of(seen[:, [0, min(1, run.model.n_visible - 1)]], 0.1)
        frames = [_raster(plots.cloud(state, data, limits)) for state in states]
        beside = "" if data is None else f", beside {len(data):,} rows of data"
        caption = f"{n_chains:,} chains{beside}; first two columns. {how}."
    pictures = "".join(
        f'<img src="{frame}" data-step="{step}" alt="the chains at step {step}"'
        f"{' class=pixels' if shape else ''}{'' if k == len(frames) - 1 else ' hidden'}>"
        for k, (frame, step) in enumerate(zip(frames, steps, strict=True))
    )
    last = len(frames) - 1
    yield (
        f'<figure class="player">{pictures}<div class="controls"><button type="button">Play</button>'
        f'<input type="range" min="0" max="{last}" value="{last}" aria-label="step of the chains">'
        f"<output>step {steps[-1]}</output></div><figcaption>{escape(caption)}</figcaption></figure>"
    )


CURVES = (
    ("log_var_mean", "log σ², mean over visible units", False),
    ("reconstruction", "reconstruction error, mean square", False),
    ("grad_norm", "gradient norm before clipping", True),
    ("energy_distance", "energy distance of chains and data", True),
)


def _learned(run: Run) -> Iterator[str]:
    if run.image_shape is not None:
        sheet = plots.filter_sheet(run.model.W, run.image_shape, 100)
        caption = "Weights of the hidden units of largest norm, each on its own scale; 0 is mid-grey."
        yield _figure(_picture(sheet), caption, "filters", "pixels", "max-width: 34rem")
    elif (run.folder / runs.FIGURES / "density.png").is_file():
        picture = base64.b64encode((run.folder / runs.FIGURES / "density.png").read_bytes()).decode()
        yield _figure(f"data:image/png;base64,{picture}", "", "data, learned density and samples")
    curves = [_curve({"": run}, *which) for which in CURVES]
    yield f'<div class="grid">{"".join(filter(None, curves))}</div>'


def _curve(several: dict[str, Run], name: str, title: str, log: bool) -> str:
    metrics = {label: run.metrics for label, run in several.items() if run.metrics}
    return _figure(_svg(plots.curve(metrics, name, title, log)), "", title) if metrics else ""


def _scores(run: Run) -> Iterator[tuple[str, str]]:
    """What ``grbm evaluate`` and ``grbm mixing`` found of these very weights, with errors where they are known."""
    found = _measured(run, runs.EVALUATION)
    verdict, converged = str(found.get("log_z_verdict", "")), found.get("log_z_converged")
    doubted = "" if not verdict or converged else " (log Z not converged)" if converged is False else " (see verdict)"
    for name, label in SCORES.items():
        if is_kind(float, found.get(name)):
            error = found.get(f"{name}_error")
            doubt = doubted if name in OF_LOG_Z else ""
            shown = with_error(found[name], error) if error and is_kind(float, error) else f"{found[name]:.3f}"
            yield label, shown + doubt
    if verdict:
        yield "log Z, verdict", verdict
    table = _images(run)
    if table is not None:
        yield from cells(table.rows[OWN]).items()
        n = table.settings.get("n")
        yield "images scored", f"{n:,}" if is_kind(int, n) else "–"
    mixed = _measured(run, runs.MIXING)
    for name, label in MIXED.items():
        if is_kind(float, mixed.get(name)):
            yield f"{label} ({mixed.get('sampler', '')})", f"{mixed[name]:.3g}"


def _scored(run: Run) -> Iterator[str]:
    rows = list(_scores(run))
    table = _images(run)
    if table is not None:
        columns = widths(table.rows)
        rows = [row for row in rows if row[0] not in columns and row[0] != "images scored"]
        body = [[name, *(cells(row).get(column, "–") for column in columns)] for name, row in table.rows.items()]
        yield _table(body, ["", *columns], OWN)
        yield "".join(f'<p class="muted">{escape(line)}</p>' for line in (*table.own_protocol, *table.protocol))
    if rows:
        yield _table(rows, ("", "± standard error, where it is known"))
    likelihood = "rows_train" in _measured(run, runs.EVALUATION)
    left = [] if likelihood else ["evaluate {} --log-likelihood"]
    left += [] if _measured(run, runs.MIXING) else ["mixing {}"]
    left += [] if run.image_shape is None or table is not None else ["evaluate {} --fid"]
    if left:
        folder = shlex.quote(str(run.folder))
        commands = [f"<code>{escape(f'grbm {command.format(folder)}')}</code>" for command in [*left, "report {}"]]
        yield f'<p class="muted">Not measured yet: {", ".join(commands[:-1])}; then {commands[-1]} puts it here.</p>'


def _measured(run: Run, name: str) -> dict[str, Any]:
    """What a command wrote beside the run, if it was of the weights that the run has now."""
    try:
        content = json.loads((run.folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and content.get("model") == runs.model_digest(run.model) else {}


def _images(run: Run) -> ScoreTable | None:
    table = read_table(run)
    return table if table is not None and table.settings.get("model") == runs.model_digest(run.model) else None


def _findings(run: Run, dataset: Dataset | None, seed: int) -> str:
    items = "".join(
        f'<li class="{level}"><span class="level">{level}</span><strong>{escape(about)}</strong>: {escape(text)}</li>'
        for level, about, text in diagnose(run, dataset, seed=seed)
    )
    return f'<ul class="findings">{items}</ul>'


def _settings(run: Run) -> str:
    rows = [(name, str(value)) for name, value in run.config.identity().items() if value is not None]
    return f"<details><summary>All {len(rows)} that decide the numbers</summary>{_table(rows, ('', ''))}</details>"


def _differences(several: Sequence[Run]) -> list[tuple[str, ...]]:
    """What was run, where it is not the same: experiments, data, settings, updates, time and machine."""
    rows = []
    for run in several:
        last = run.metrics[-1] if run.metrics else {"update": 0, "seconds": 0.0}
        row = {"what": describe(run.config), "data": str(run.config.data or "")} | run.config.identity()
        row |= {"updates done": f"{last['update']:,}", "time": duration(last["seconds"])}
        rows.append(row | {"machine": run.status.machine})
    always = ("updates done", "time")
    keys = [key for key in rows[0] if key in always or len({str(row.get(key)) for row in rows}) > 1]
    return [(key, *("–" if row.get(key) in (None, "") else str(row[key]) for row in rows)) for key in keys]


def _names(several: Sequence[Run]) -> list[str]:
    names = [run.folder.resolve().name for run in several]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in several]


def _name(run: Run) -> str:
    return run.config.preset or run.folder.resolve().name


def _figure(source: str, caption: str, alt: str, kind: str = "", style: str = "") -> str:
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    look = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "")
    return f'<figure><img src="{source}" alt="{escape(alt)}"{look}>{words}</figure>'


def _picture(array: np.ndarray) -> str:
    """An array (H, W, 3) in [0, 1] as the address of a picture that is its own content."""
    content = io.BytesIO()
    pixels = (array * 255).round().astype(np.uint8)
    if (pixels == pixels[..., :1]).all():
        Image.fromarray(pixels[..., 0]).save(content, "PNG", optimize=True)
        kind = "png"
    else:  # noise in colour does not shrink without loss
        Image.fromarray(pixels).save(content, "JPEG", quality=90, subsampling=0)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"


def _raster(figure: Figure) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _svg(figure: Figure) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(content.getvalue()).decode()
