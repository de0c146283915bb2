"""Pages that need nothing but a browser: what a run is and how good, and several runs side by side."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

import torch

from grbm import runs
from grbm.core.errors import UserError
from grbm.core.files import write_text
from grbm.core.streams import plain
from grbm.core.typed import is_kind
from grbm.data.images import tile
from grbm.data.loading import Dataset
from grbm.data.tables import spread
from grbm.report import html, plots, sheets, table_plots
from grbm.report.doctor import Finding, at_end, diagnose
from grbm.report.figures import nearest_sheet, plane, table_samples
from grbm.report.image_scores import OWN, ScoreTable, cells, read_table
from grbm.report.scores import compared, quick
from grbm.report.words import duration, ending, measured, with_error
from grbm.runs import Run
from grbm.runs.paper import describe
from grbm.runs.sampling import generate, on_device, trajectory, tuned_sampler
from grbm.samplers import Sampler

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


def report(
    run: Run, *, seed: int = 1, dataset: Dataset | None = None, warn: Callable[[str], None] = lambda text: None
) -> Path:
    """Write report.html into the run's folder, from its files; returns its path.

    ``warn`` is told where its data are not there, which leaves out what needs them. Samples and the way to them are
    drawn anew. Scores are those that ``grbm evaluate`` and ``grbm mixing`` wrote; those that take seconds are computed.
    """
    dataset = dataset or data_of(run, warn)
    if dataset is not None:
        quick(run, dataset, seed=seed)
    findings = diagnose(run, dataset, seed=seed)
    body = [
        _head(run, dataset),
        html.section("Verdict", _verdict(findings), _next(run)),
        html.section("Samples", f'<div class="grid">{"".join(samples(run, dataset, seed))}</div>'),
        html.section("What was learned", *_learned(run, dataset, seed)),
        html.section("Scores", *_scored(run)),
        html.section("All checks of the doctor", _items(findings)),
        html.section("The run", _facts(run, dataset), _settings(run)),
    ]
    path = run.folder / runs.REPORT
    write_text(path, html.page(_name(run), body))
    return path


def data_of(run: Run, warn: Callable[[str], None]) -> Dataset | None:
    """The run's data, if they are where they were; else ``warn`` is told why not."""
    try:
        return run.load_data()
    except UserError as error:
        warn(f"The page is drawn without the data of the run: {error}")
        return None


def _head(run: Run, dataset: Dataset | None) -> str:
    """Title, what was learned in a sentence, and how training ended unless it finished."""
    rows = "" if dataset is None else f" on {len(dataset.train):,} rows"
    learned = f"{run.model.n_hidden:,} hidden units, trained{rows} of {run.transform.n_columns:,} "
    learned += "pixels" if run.image_shape is not None else "columns"
    learned += f" in {duration(run.metrics[-1]['seconds'])}." if run.metrics else "."
    about = f'<p class="muted">{escape(describe(run.config))}</p>' if describe(run.config) else ""
    status = "" if run.status.ended == "finished" else f"<p><strong>{escape(ending(run))}</strong></p>"
    return f"<h1>{escape(_name(run))}</h1>\n<p>{escape(learned)}</p>{about}{status}"


def _facts(run: Run, dataset: Dataset | None) -> str:
    """Data, model, training, time and command as a list."""
    config, seconds = run.config, (run.metrics[-1]["seconds"] if run.metrics else 0.0)
    shape = "" if run.image_shape is None else f" ({' x '.join(str(n) for n in run.image_shape)})"
    rows = "" if dataset is None else f"{len(dataset.train):,} rows of "
    held = "" if dataset is None or not len(dataset.test) else f"; {len(dataset.test):,} held out"
    train, objective = config.train, config.objective
    done = max(run.status.update, run.metrics[-1]["update"] if run.metrics else 0)
    n_rounds = done - train.first_round
    rounds = f"; the last {n_rounds} were rounds of quasi-Newton steps" if n_rounds > 0 else ""
    spectral = "" if train.spectral_norm is None else f", spectral norm {train.spectral_norm:g}"
    facts = {
        "Preset": config.preset or "–",
        "Data": f"{plain((config.data or Path(config.dataset.name)).name)}: {rows}{_units(run)}{shape}{held}",
        "Model": f"{run.model.n_hidden:,} hidden units, {sum(p.numel() for p in run.model.parameters()):,} parameters",
        "Training": f"{done:,} of {train.n_updates:,} updates of {train.batch_size:,} rows; {objective.name}, "
        f"{objective.n_steps} steps of {config.sampler.name}; {train.optimizer}, rate {train.learning_rate:g}{spectral}"
        f"{rounds}",
        "Time": "; ".join(filter(None, (duration(seconds), run.status.machine))),
        "Seed": str(config.seed),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    if config.command:
        lines += f"<dt>Command</dt><dd><code>{escape(config.command)}</code></dd>"
    return f"<dl>{lines}</dl>"


def _units(run: Run) -> str:
    """How many visible units there are, and columns where data are whitened."""
    n, contrasts, seen = f"{run.model.n_visible:,} visible units", run.model.contrasts, ""
    if run.model.censoring.n:
        n += f", {run.model.censoring.n:,} of them censored"
    if contrasts.n > 1:
        low, high = (float(s.exp()) for s in (contrasts.log_scales.min(), contrasts.log_scales.max()))
        seen = f" at {contrasts.n} contrasts from {low:.2g} to {high:.2g}"
        seen += "" if contrasts.units is None else f" of {int(contrasts.units.sum()):,} of them"
    n_columns, n_units = run.transform.n_columns, run.transform.n_units
    if run.frame.is_whitened:
        n = f"{n_columns:,} columns, whitened to {n}"
    elif n_units < n_columns:
        n += f" ({n_columns:,} columns, {n_columns - n_units:,} constant)"
    return n + seen


def samples(run: Run, dataset: Dataset | None, seed: int, *, real: bool = True) -> Iterator[str]:
    """A sheet of samples, training images beside it if ``real``, and the way from noise to some samples."""
    sampling, shape, size = run.config.sampling, run.image_shape, run.model.n_visible + 2 * run.model.n_hidden
    sampler = tuned_sampler(run, sampling.sampler, on_device(run).model)
    what = "conditional means of the last states" if sampling.mean else "last states"
    how = f"{sampling.n_steps} steps from noise (sampler {sampling.sampler.name}); {what}"
    # few enough that a page of large pictures can be mailed, and that all states fit into memory
    n_chains = (64 if run.model.n_visible <= 1024 else 8) if shape else max(100, min(1000, 1_000_000 // size))
    if shape is None and not run.transform.n_columns == run.model.n_visible == 2:
        yield from _table_figures(run, dataset, sampler, seed, how)
        return
    states, steps = trajectory(run, n_chains, n_states=N_FRAMES, sampler=sampler, seed=seed)
    if not states.isfinite().all():
        yield f"<p><strong>{sampling.n_steps} steps from noise end in NaN or infinite numbers.</strong></p>"
        return
    if shape is not None:
        drawn = generate(run, 100, sampler=sampler, seed=seed)
        sheet = tile(drawn, shape, 10)
        yield html.figure(html.picture(sheet), f"{how}.", "100 samples", "pixels")
        frames = [html.picture(tile(state, shape, min(8, n_chains // 2))) for state in states]
        caption = f"{n_chains:,} chains from noise to step {steps[-1]:,}: press Play."
        if dataset is not None and real:
            sheet = tile(dataset.train[spread(len(dataset.train), 100)], shape, 10)
            yield html.figure(html.picture(sheet), "Training images.", "100 training images", "pixels")
            if drawn.isfinite().all():
                sheet, text = nearest_sheet(drawn, dataset, shape)
                yield html.figure(html.picture(sheet), text, "samples beside the nearest training images", "pixels")
    else:
        data = None if dataset is None else dataset.some("train", 1000)
        seen = states[-1] if data is None else torch.cat([states[-1], data.to(states)])
        limits = plots.limits_of(seen, 0.1)
        frames = [html.pixels(drawn) for drawn in plots.clouds(states, data, limits)]
        beside = "" if data is None else f", beside {len(data):,} rows of data"
        caption = f"{n_chains:,} chains{beside}. {how}."
    pictures = "".join(
        f'<img src="{frame}" data-step="{step}" alt="the chains at step {step}"'
        f"{' class=pixels' if shape else ' class=chart'}{'' if k == len(frames) - 1 else ' hidden'}>"
        for k, (frame, step) in enumerate(zip(frames, steps, strict=True))
    )
    last = len(frames) - 1
    yield (
        f'<figure class="player">{pictures}<div class="controls"><button type="button">Play</button>'
        f'<input type="range" min="0" max="{last}" value="{last}" aria-label="step of the chains">'
        f"<output>step {steps[-1]}</output></div><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _table_figures(run: Run, dataset: Dataset | None, sampler: Sampler, seed: int, how: str) -> Iterator[str]:
    """Marginals and correlations of data and samples, for tables that are no images."""
    if dataset is None:
        yield "<p>The data are not at hand, so there is nothing to lay samples beside.</p>"
        return
    real, drawn, names = table_samples(run, dataset, sampler, seed)
    caption = f"{len(real):,} rows of data, {len(drawn):,} samples: {how}."
    yield html.figure(html.svg(table_plots.marginals(real, drawn, names)), caption, "marginals", "chart wide")
    if len(names) > 1:
        picture = html.raster(table_plots.correlations(real, drawn, names))
        yield html.figure(picture, "", "correlations of data and samples", "card wide")


def _learned(run: Run, dataset: Dataset | None, seed: int) -> Iterator[str]:
    panels = []
    if run.image_shape is not None:
        sheet = sheets.filter_sheet(run.model.W, run.image_shape, 100)
        caption = f"Weights of {sheets.which_filters(run.model.W)}. Each is divided by its largest weight; "
        caption += "0 is mid-grey." if run.image_shape[0] > 1 else "red is positive, blue negative, white 0."
        panels.append(html.figure(html.picture(sheet), caption, "filters", "pixels"))
    elif dataset is not None and run.transform.n_columns == run.model.n_visible == 2:
        picture = html.raster(plane(run, dataset, seed=seed))
        yield html.figure(picture, "", "data, learned density and samples", "card wide")
    panels += [curve({"": run}, *which) for which in plots.CURVES]
    if plots.logged(run.metrics, "nats_validation"):
        title = "log-likelihood of validation rows, nats per row"
        drawn = plots.validation(run.metrics, title, run.config.train.first_round)
        panels.insert(0, html.figure(html.svg(drawn), "", title, "chart"))
    for parts, title, limits in plots.PAIRS if run.metrics else ():
        lines = {label: [m | {"": m.get(name)} for m in run.metrics] for label, name in parts.items()}
        drawn = plots.curve(lines, "", title, first_round=run.config.train.first_round)
        if limits is not None:
            drawn.axes[0].set_ylim(*limits)
        panels.append(html.figure(html.svg(drawn), "", title, "chart"))
    panels = [panel for panel in panels if panel]
    if run.image_shape is not None and len(panels) > 2:  # Filters are as high as two curves.
        panels[1:3] = [f"<div>{''.join(panels[1:3])}</div>"]
    yield f'<div class="grid">{"".join(panels[: len(panels) // 2 * 2])}</div>'  # Of an odd number the last is left out.


def curve(several: dict[str, Run], name: str, title: str, log: bool) -> str:
    """One number over the updates of runs, as a figure; nothing where none has logged."""
    metrics = {label: run.metrics for label, run in several.items() if run.metrics}
    if not metrics:
        return ""
    first_rounds = {run.config.train.first_round for run in several.values()}
    first = first_rounds.pop() if len(first_rounds) == 1 else None
    return html.figure(html.svg(plots.curve(metrics, name, title, log, first)), "", title, "chart")


def scores(run: Run, *, images: bool = True) -> Iterator[tuple[str, str]]:
    """Scores from ``grbm evaluate`` and ``grbm mixing`` for the run's present weights, with their errors.

    ``images``: also distances of images.
    """
    found = measured(run, runs.EVALUATION)
    verdict, converged = str(found.get("log_z_verdict", "")), found.get("log_z_converged")
    doubted = "" if not verdict or converged else " (log Z not converged)" if converged is False else " (see verdict)"
    for name, label in SCORES.items():
        if is_kind(float, found.get(name)):
            error = found.get(f"{name}_error")
            doubt = doubted if name in OF_LOG_Z else ""
            shown = with_error(found[name], error) if error and is_kind(float, error) else f"{found[name]:.3f}"
            method = (
                f" ({found['log_z_method']})" if name == "log_z" and is_kind(str, found.get("log_z_method")) else ""
            )
            yield label, shown + method + doubt
    if verdict:
        yield "log Z, verdict", verdict
    if images and (table := _images(run)) is not None:
        yield from cells(table.rows[OWN]).items()
        n = table.settings.get("n")
        yield "images scored", f"{n:,}" if is_kind(int, n) else "–"
    mixed = measured(run, runs.MIXING)
    for name, label in MIXED.items():
        if is_kind(float, mixed.get(name)):
            yield f"{label} ({mixed.get('sampler', '')})", f"{mixed[name]:.3g}"


def _scored(run: Run) -> Iterator[str]:
    table = _images(run)
    if table is not None:
        head, *body = table.table()
        yield html.table(body, head, OWN)
        yield "".join(f'<p class="muted">{escape(line)}</p>' for line in (*table.own_protocol, *table.protocol))
    if rows := list(scores(run, images=False)):
        yield html.table(rows, ("", "± standard error, where it is known"))
    yield from _beside(run)
    likelihood = any(name.startswith("log_likelihood_") for name in measured(run, runs.EVALUATION))
    left = [] if likelihood else ["evaluate {} --log-likelihood"]
    left += [] if measured(run, runs.MIXING) else ["mixing {}"]
    left += [] if run.image_shape is None or table is not None else ["evaluate {} --fid"]
    if left:
        folder = shlex.quote(str(run.folder))
        commands = [f"<code>{escape(f'grbm {command.format(folder)}')}</code>" for command in [*left, "report {}"]]
        yield f'<p class="muted">Not measured yet: {", ".join(commands[:-1])}; then {commands[-1]} puts it here.</p>'


def _beside(run: Run) -> Iterator[str]:
    """Simpler models on the same held-out rows, where `grbm evaluate` has scored them."""
    body = []
    for row in compared(measured(run, runs.EVALUATION)):
        difference = with_error(row.difference, row.difference_error)
        body.append([row.name, with_error(row.mean, row.error), difference, row.verdict])
    if body:
        yield html.table(body, ("simpler model", "held out, nats", "this model is above it by", "so it is"))


def _images(run: Run) -> ScoreTable | None:
    table = read_table(run)
    return table if table is not None and table.settings.get("model") == runs.model_digest(run.model) else None


def _verdict(findings: Sequence[Finding]) -> str:
    """Whether anything is wrong, and what; else how good the model is against simpler ones, and its samples."""
    wrong = [finding for finding in findings if finding.level == "wrong"]
    good = [finding for finding in findings if finding.about in ("likelihood", "samples", "training")]
    text = "Nothing is wrong." if all(x.level == "fine" for x in good) else "Nothing is wrong, but read the note."
    text = f"{len(wrong)} of {len(findings)} checks found something wrong." if wrong else text
    return f"<p><strong>{text}</strong></p>{_items(wrong or good[::-1])}"


def _next(run: Run) -> str:
    """Commands that people run next."""
    folder = shlex.quote(str(run.folder))
    commands = [f"grbm sample {folder} --n 1000"]
    if run.image_shape is not None:
        commands.append(f"grbm mixing {folder}" if _images(run) else f"grbm evaluate {folder} --fid")
    elif run.config.dataset.name == "array":
        data = shlex.quote(str(run.config.data or "FILE"))
        commands = [f"grbm score {folder} {data}", f"{commands[0]} --out new.csv"]
    else:
        commands.append(f"grbm {'mixing' if measured(run, runs.EVALUATION) else 'evaluate'} {folder}")
    return f'<p class="muted">Next: {", ".join(f"<code>{escape(command)}</code>" for command in commands)}</p>'


def _items(findings: Sequence[Finding]) -> str:
    items = "".join(
        f'<li class="{level}"><span class="level">{level}</span><strong>{escape(about)}</strong>: {escape(text)}</li>'
        for level, about, text in findings
    )
    return f'<ul class="findings">{items}</ul>'


def _settings(run: Run) -> str:
    rows = [(name, str(value)) for name, value in run.config.identity().items() if value is not None]
    summary = f"All {len(rows)} settings (some have no effect on these data)"
    return f"<details><summary>{summary}</summary>{html.table(rows, ('', ''))}</details>"


def _name(run: Run) -> str:
    return plain(run.folder.resolve().name)


def compare(
    several: Sequence[Run], path: Path, *, seed: int = 1, warn: Callable[[str], None] = lambda text: None
) -> list[tuple[str, ...]]:
    """Write runs side by side to ``path``; returns the table of settings that differ and scores, with its head.

    ``warn`` is told where data of a run are not there.
    """
    names = [_name(run) for run in several]
    if len(set(names)) < len(names):
        names = [plain(str(run.folder)) for run in several]
    data = [data_of(run, warn) for run in several]
    wrong = [
        [finding.about for finding in diagnose(run, own, seed=seed) if finding.level == "wrong"]
        for run, own in zip(several, data, strict=True)
    ]
    verdicts = [f"wrong: {', '.join(each)}" if each else "nothing is wrong" for each in wrong]
    table: list[tuple[str, ...]] = [("", *names), *_differences(several), ("the doctor", *verdicts)]
    distances = [[x for m in run.metrics if (x := m.get("energy_distance")) is not None] for run in several]
    table.append(("energy distance of chains to data", *(f"{at_end(x):.3g}" if x else "–" for x in distances)))
    found = [dict(scores(run)) for run in several]
    for label in dict.fromkeys(label for own in found for label in own):
        table.append((label, *(own.get(label, "–") for own in found)))
    curves = [curve(dict(zip(names, several, strict=True)), *which) for which in plots.CURVES]
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
    """Differences between runs: experiments, data, settings, updates, time and machine."""
    rows = []
    for run in several:
        last = run.metrics[-1] if run.metrics else {"update": 0, "seconds": 0.0}
        row = {"what": describe(run.config), "data": str(run.config.data or "")} | run.config.identity()
        done = {"updates done": f"{last['update']:,}", "time": duration(last["seconds"])}
        rows.append(row | done | {"machine": run.status.machine})
    always = ("updates done", "time")
    keys = [key for key in rows[0] if key in always or len({str(row.get(key)) for row in rows}) > 1]
    return [(key, *("–" if row.get(key) in (None, "") else plain(str(row[key])) for row in rows)) for key in keys]
