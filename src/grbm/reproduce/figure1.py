"""`grbm reproduce fig1`: five samplers, and the recommended recipe, on the two 2-D mixtures (Fig. 1)."""

import json
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from grbm import runs
from grbm.core import files
from grbm.core.devices import threads
from grbm.core.errors import UserError
from grbm.core.streams import aligned
from grbm.data.mixtures import MIXTURES
from grbm.evaluate.mixtures import density_score, sample_score
from grbm.fitting.recipe import SamplerConfig
from grbm.report import plots
from grbm.reproduce import campaign
from grbm.reproduce.targets import Figure1Options
from grbm.runs.config import LogConfig, RunConfig
from grbm.runs.paper import programmed
from grbm.runs.presets import PAPER_SAMPLERS, PRESETS, paper
from grbm.runs.sampling import generate

TITLES = {
    "gibbs": "Gibbs",
    "langevin": "Langevin",
    "langevin-adjusted": "Langevin, adjusted",
    "gibbs-langevin": "Gibbs-Langevin",
    "gibbs-langevin-adjusted": "Gibbs-Langevin, adjusted",
    "recommended": "recommended",
}
RULES = {"program": "as the program ran", "printed": "as printed", "ours": "ours"}
SOME = "table-of-some.json"  # the table, where not all samplers were asked for
PLATEAUS = "plateaus.png"
BUDGETS = {"short": (7000, 50), "long": (30_000, 100), "paper": (500_000, 100)}  # updates; CD steps of printed rows
BELOW_TABLE = """\
truth: mass and share .330 .330 .340, .989 within 3σ. KL(data || model) and mode mass by quadrature;
{:,} samples from noise; 1,000 training points;
as the program ran: α₀ = 10 mean(σ²), v at the temperature 100 of a batch, adjusted Gibbs-Langevin tested at
temperature 1, conditional means shown; as printed: temperature 1, α₀ = 0.5 (Langevin), 0.2 (Gibbs-Langevin)
per unit, log σ² at a tenth of the rate, states shown"""


class Panel(NamedTuple):
    """A column of the figure: a run on one of the two mixtures, by the program's rules, those in print, or ours."""

    mixture: str
    rule: str
    method: str
    config: RunConfig

    @property
    def name(self) -> str:
        return f"{self.mixture}-{self.rule}-{self.method}-{self.config.seed}"


def panels(budget: str, seed: int, n_updates: int | None = None) -> list[Panel]:
    """22 runs: the paper's recipe with five samplers, as its authors' program ran it and as it is printed, and ours.

    ``short`` cuts updates and halves the CD steps of the printed rows; without 100 steps the program's wide moves do
    not arrive.
    """
    updates, n_steps = BUDGETS[budget]
    updates = n_updates or updates
    todo = []
    for mixture in MIXTURES:
        recommended = PRESETS[mixture].config
        if n_updates is not None:
            recommended = replace(recommended, train=replace(recommended.train, n_updates=n_updates))
        data = replace(recommended.dataset, n_points=1000)  # the same points as the others, a tenth of its own
        todo.append(Panel(mixture, "ours", "recommended", replace(recommended, dataset=data, seed=seed)))
        for method, sampler in PAPER_SAMPLERS.items():
            todo.append(Panel(mixture, "program", method, _program(mixture, method, updates, seed)))
            config = paper(mixture, _in_the_plane(sampler), n_hidden=256, batch_size=100, n_updates=updates)
            slow = 1.0 if method == "gibbs" else 0.1  # else log σ² outruns W, and the variances collapse at once
            config = replace(
                config,
                train=replace(config.train, variance_rate=slow),
                objective=replace(config.objective, n_steps=n_steps),
                sampling=replace(config.sampling, n_steps=n_steps),
            )
            todo.append(Panel(mixture, "printed", method, replace(config, seed=seed, preset=f"fig1-{method}")))
    quiet = LogConfig(tensorboard=False)
    return [panel._replace(config=replace(panel.config, log=quiet)) for panel in todo]


def _program(mixture: str, method: str, n_updates: int, seed: int) -> RunConfig:
    """A run as the authors' program made it when the paper was written (`grbm.runs.paper`): α₀ = 10, batches of 100."""
    plain = PAPER_SAMPLERS[method]
    marginal = plain.name == "langevin"
    sampler = programmed(plain, "paper-time-program", step_size=10.0, batch_size=100)
    config = paper(mixture, sampler, n_hidden=256, batch_size=100, n_updates=n_updates)
    return replace(
        config,
        objective=replace(config.objective, probabilities=marginal, data_draws=marginal),
        train=replace(config.train, keep_last=True),
        sampling=replace(config.sampling, n_steps=99, mean=True),
        seed=seed,
        preset=f"fig1-program-{method}",
    )


def _in_the_plane(sampler: SamplerConfig) -> SamplerConfig:
    """Larger steps than on images, one per unit.

    The modes are five deviations from where chains start: with α₀ = 0.04 they do not reach them in 100 steps, and every
    Langevin run diverges within 1,000 updates. The paper's one step size for all units overshoots as soon as the
    variances differ.
    """
    if sampler.name == "gibbs":
        return sampler
    return replace(sampler, step_size=0.5 if sampler.name == "langevin" else 0.2, per_unit=True)


def target(options: Figure1Options, n_updates: int | None = None, n_samples: int = 10_000) -> campaign.Target:
    """Figure 1: ``figure1.png``, ``table.json``, and the table as text.

    The figure, of the first seed, is drawn where there are all samplers and rows. Of several seeds ``plateaus.png``
    shows how the largest variance went, by the first of `RULES` among them. Raises UserError for a folder that holds
    something else, and where there is no such panel.
    """
    folder, seeds = options.folder, range(options.seed, options.seed + options.seeds)
    only, rules = options.only or TITLES, options.rules or RULES
    every = [panel for seed in seeds for panel in panels(options.budget, seed, n_updates)]
    todo = [panel for panel in every if panel.method in only and panel.rule in rules]
    if not todo:
        raise UserError(f"No row of --rules {' '.join(rules)} has a sampler of --only {' '.join(only)}.")
    refuse_foreign(folder, every)
    planned = [campaign.Planned(panel.name, panel.config) for panel in todo]
    campaign.missing(planned, folder)  # refuses runs of other settings
    planned.sort(key=lambda run: "adjusted" not in run.name)  # the longest first: no worker waits at the end

    def draw() -> str:
        jobs = [(panel, folder / panel.name, n_samples) for panel in todo]
        if options.jobs == 1:
            with threads(1):
                rows = [_score(*job) for job in jobs]
        else:
            spawn = get_context("spawn")
            with ProcessPoolExecutor(options.jobs, spawn, torch.set_num_threads, (1,)) as pool:
                rows = list(pool.map(_score, *zip(*jobs, strict=True)))
        is_whole = len(todo) == len(every)
        files.write_text(folder / ("table.json" if is_whole else SOME), json.dumps(rows, indent=2) + "\n")
        text = _table(rows, n_samples)
        if len(seeds) > 1:
            text += f"\nFigure: {plots.save(_plateaus(todo, folder), folder / PLATEAUS, dpi=130)}"
        if is_whole:
            figure = _draw([panel for panel in todo if panel.config.seed == seeds[0]], folder)
            text += f"\nFigure: {plots.save(figure, folder / 'figure1.png', dpi=130)}"
        return text

    return campaign.Target("fig1", planned, folder, options.jobs, 1, draw)


def refuse_foreign(folder: Path, every: Sequence[Panel]) -> None:
    """Raise UserError for a ``folder`` that holds something else than ``every`` panel, of any seed, leaves."""
    made = {"figure1.png", "table.json", SOME, PLATEAUS}
    stems = {panel.name.rpartition("-")[0] for panel in every}
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    runs_there = [name.rpartition("-") for name in there if name not in made]
    if (folder.exists() and not folder.is_dir()) or any(s not in stems or not n.isdigit() for s, _, n in runs_there):
        raise UserError(f"{folder} holds something else than runs of Figure 1; choose another folder with --out.")


def _score(panel: Panel, folder: Path, n_samples: int) -> dict[str, Any]:
    run, mixture = runs.read(folder), MIXTURES[panel.mixture]
    row: dict[str, Any] = {"mixture": panel.mixture, "rule": panel.rule, "method": panel.method}
    row |= {"seed": panel.config.seed, "updates": panel.config.train.n_updates}
    whole = run.status.ended == "finished"
    row |= {"stopped": "" if whole else str(run.status), "stopped_at": None if whole else run.status.update}
    row["var"] = run.model.var.tolist()
    try:
        density = density_score(run.model, mixture)
        row |= {"kl": density.kl, "mode_mass": density.mode_mass}
    except ValueError as error:  # a density too sharp or wide for the grid has no score
        row |= {"kl": None, "mode_mass": None, "why": str(error)}
    drawn = sample_score(generate(run, n_samples), mixture)
    return row | {"within": drawn.within, "mode_share": drawn.mode_share}


def _table(rows: list[dict[str, Any]], n_samples: int) -> str:
    columns = "mixture", "rules", "sampler", "seed", "KL, nats", "mode mass (energy)", "within 3σ", "mode share", "σ²"
    lines: list[tuple[str, ...]] = [columns]

    def three(shares: Any) -> str:
        return "-" if shares is None else " ".join(f"{x:.3f}" for x in shares)

    for row in sorted(rows, key=lambda row: (list(MIXTURES).index(row["mixture"]), list(RULES).index(row["rule"]))):
        kl = "-" if row["kl"] is None else f"{row['kl']:.3f}"
        stopped = "" if row["stopped_at"] is None else f"  (stopped at update {row['stopped_at']})"
        named = row["mixture"], RULES[row["rule"]], TITLES[row["method"]], str(row["seed"]), kl
        scored = three(row["mode_mass"]), f"{row['within']:.3f}", three(row["mode_share"])
        lines.append((*named, *scored, " ".join(f"{x:.2g}" for x in row["var"]) + stopped))
    return "\n".join([*aligned(lines), BELOW_TABLE.format(n_samples)])


def _plateaus(todo: list[Panel], folder: Path) -> Figure:
    """The largest σ² over updates, by the first of `RULES`: a panel for a mixture and sampler, a line for a seed."""
    rule = min((panel.rule for panel in todo), key=list(RULES).index)
    todo = [panel for panel in todo if panel.rule == rule]
    methods = list(dict.fromkeys(panel.method for panel in todo))
    figure, every = plots.panels(2, len(methods), 3.2 * len(methods) + 1, 5.4)
    axes = dict(zip(((m, k) for m in MIXTURES for k in methods), every, strict=True))
    for panel in todo:
        metrics, panel_axes = runs.read_metrics(folder / panel.name), axes[panel.mixture, panel.method]
        largest = [math.exp(x) for x in plots.column(metrics, "log_var_max")]
        panel_axes.loglog([m["update"] for m in metrics], largest, lw=1.2, label=f"seed {panel.config.seed}")
    for (mixture, method), panel_axes in axes.items():
        words = f"{mixture}, {RULES[rule]}:\n{TITLES[method]}", "update", "largest σ²"
        plots.name_axes(panel_axes, *words, sizes=(9, 8, 8))
    every[0].legend(frameon=False, fontsize=7)
    return figure


def _draw(todo: list[Panel], folder: Path) -> Figure:
    """The paper's layout twice: a row of log-densities over a row of samples; one more column for our recipe."""
    methods = [*PAPER_SAMPLERS, "recommended"]
    figure = Figure(figsize=(2 * (len(methods) + 1), 16.8), layout="constrained")
    table = figure.subplots(8, len(methods) + 1)
    by_key = {(panel.mixture, panel.rule, panel.method): panel for panel in todo}
    for k, (name, mixture) in enumerate(MIXTURES.items()):
        axis = torch.linspace(-10, 10, 200, dtype=torch.float64)
        points = torch.cartesian_prod(axis, axis)
        truth = mixture.log_prob(points)
        for above, rule in ((4 * k, "program"), (4 * k + 2, "printed")):
            plots.density_panel(table[above, 0], points, (200, 200), truth, f"{name}: true density")
            data = by_key[name, "printed", "gibbs"].config.load_data().train[:]
            plots.sample_panel(table[above + 1, 0], data, mixture, "data")
            for column, method in enumerate(methods, start=1):
                panel = by_key.get((name, "ours" if method == "recommended" else rule, method))
                run = runs.read(folder / panel.name) if panel is not None else None
                if run is None or (rule, method) == ("printed", "recommended"):  # it stands above
                    table[above, column].set_axis_off()
                    table[above + 1, column].set_axis_off()
                    continue
                with torch.no_grad():
                    log_p = -run.model.free_energy(points.float())
                shown = TITLES[method] if method == "recommended" else f"{TITLES[method]}\n{RULES[rule]}"
                plots.density_panel(table[above, column], points, (200, 200), log_p, shown)
                if run.status.ended != "finished":
                    how = "diverged" if run.status.ended == "diverged" else "stopped"
                    text, middle = f"{how} at update {run.status.update:,}", table[above, column].transAxes
                    table[above, column].text(0.5, 0.7, text, color="white", ha="center", fontsize=7, transform=middle)
                what = "conditional means from noise" if run.config.sampling.mean else "samples from noise"
                plots.sample_panel(table[above + 1, column], generate(run, 1000), mixture, what)
    return figure
