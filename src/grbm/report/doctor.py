"""`grbm doctor`: what a run's record, weights and chains say about its health, in plain words."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grbm.core.typed import is_kind
from grbm.data.loading import Dataset
from grbm.data.tables import spread
from grbm.evaluate.baselines import Comparison
from grbm.evaluate.distance import energy_distance
from grbm.report import plots
from grbm.report.scores import compared, comparisons, log_z
from grbm.report.sheets import WEAK
from grbm.report.words import measured, with_error
from grbm.runs import CHECKPOINTS, EVALUATION, MIXING, Run, checkpoint
from grbm.runs.recording import BROAD, broadest
from grbm.runs.sampling import generate, on_device, tuned_sampler
from grbm.samplers import sample

Level = Literal["fine", "note", "wrong"]
FEWEST_ROWS, COMPARED = 50, 1000  # rows and samples that are compared
WIDEST_TABLE = 200  # columns
QUICK_STEPS, QUICK_CHAINS = 300, 200  # of annealing
BEYOND = 0.02  # Share of draws beyond the numbers of a column, and 3 over the number of rows, that is no finding.
ROUNDING = 1e-6  # Share of a column's range that is not beyond.
SHOWN = 4  # Columns in a sentence.
ENOUGH_JUMPS = 0.005  # Share of accepted jumps from which on they help chains to mix.
MORE = 0.1  # nats of a mixture above a full-covariance Gaussian, from which data have more than a covariance


class Finding(NamedTuple):
    """One thing looked at: how it stands, and what to change where it is not fine."""

    level: Level
    about: str
    text: str


@torch.no_grad()
def diagnose(run: Run, dataset: Dataset | None, *, n_chains: int = 256, seed: int = 1) -> list[Finding]:
    """Everything that can be said of ``run``; without its data, what needs none."""
    if not all(p.isfinite().all() for p in run.model.parameters()):
        return [Finding("wrong", "weights", "They hold NaN or infinite numbers; use --weights best, or train again.")]
    findings = [*_training(run), *_gradients(run), *_acceptance(run), *_swaps(run)]
    if dataset is None:
        absent = Finding("note", "data", "Not at hand, so units and chains were not looked at: add --data.")
        return [*findings, *_variances(run, None), absent]
    rows = run.fitted.units(dataset.some("train", 2000))
    findings += [*_variances(run, rows), *_hidden(run, rows), *_held_out(run, dataset, rows)]
    findings += [*_chains(run, rows, n_chains, seed), *_mixing(run)]
    return [*findings, *_samples(run, dataset, seed), *_ranges(run, dataset, seed), *_likelihood(run, dataset, seed)]


def _late(run: Run, name: str) -> list[float]:
    """The last quarter of a column of the record."""
    values = [float(x) for x, _ in plots.logged(run.metrics, name)]
    return values[-max(1, len(values) // 4) :]


def _training(run: Run) -> Iterator[Finding]:
    n_updates = run.config.train.n_updates
    last = max(run.status.update, run.metrics[-1]["update"] if run.metrics else 0)
    match run.status.ended:
        case "finished":
            early = f"Stopped early at update {last:,} of {n_updates:,}: the validation score no longer rose."
            yield Finding("fine", "training", f"Finished all {n_updates:,} updates." if last >= n_updates else early)
        case "diverged":
            yield Finding("wrong", "divergence", str(run.status))
        case _:
            go_on = f"to go on: grbm resume {run.folder}"
            yield Finding("note", "training", f"At update {last:,} of {n_updates:,}; {go_on}.")
    looks, distances = plots.logged(run.metrics, "nats_validation"), plots.logged(run.metrics, "energy_distance")
    if looks and run.config.train.keep_best and run.status.ended == "finished":
        nats, where = max(looks)  # the kept weights, not the last chains, are judged
        text = f"Best validation log-likelihood: {nats:.4g} nats per row, at update {where:,}"
        yield Finding("fine", "progress", f"{text}; the run keeps these weights." if run.model.W.any() else f"{text}.")
    elif len(distances) >= 20:
        window = max(5, len(distances) // 10)
        # an unbiased estimate: near 0 it is negative as often as not
        means = [max(0.0, fmean([d for d, _ in distances[k : k + window]])) for k in range(len(distances) - window + 1)]
        best = min(range(len(means)), key=means.__getitem__)
        last_ones = [d for d, _ in distances[-window:]]
        noise = math.sqrt(fmean([(d - fmean(last_ones)) ** 2 for d in last_ones]) / window)
        far = max(0.01 * math.sqrt(run.model.n_visible), 5 * noise)
        if means[-1] > 2 * means[best] and means[-1] - means[best] > far:
            where = distances[best + window // 2][1]
            kept = checkpoint.best(run.folder / CHECKPOINTS)
            near = kept is not None and abs(checkpoint.read_record(kept)["update"] - where) <= last / 10
            remedy = "Use --weights best, stop" if near else "No checkpoint of then was kept: stop"
            text = f"The chains were nearest to the data around update {where:,} (energy distance {means[best]:.3g}) "
            text += f"and ended at {means[-1]:.3g}. {remedy} sooner (--train.n-updates), or lower the learning rate."
            yield Finding("wrong", "later is worse", text)
        else:
            end = at_end([d for d, _ in distances])
            text = (
                f"Energy distance of chains to data {distances[0][0]:.3g} at first, {end:.3g} at the end (the mean of "
            )
            text += "the last tenth of training)."
            yield Finding("fine", "progress", text)


def at_end(distances: Sequence[float]) -> float:
    """Energy distance at the end of training: the mean of the last tenth of estimates, or of five, and 0 at least."""
    return max(0.0, fmean(distances[-max(5, len(distances) // 10) :]))


def _variances(run: Run, rows: Tensor | None) -> Iterator[Finding]:
    """σ² should be what is left of the data around their reconstructions, which tells a floor from a collapse."""
    var, floor = run.model.var.detach(), run.config.train.min_var
    left = var if rows is None else (rows - run.model.reconstruction(rows)).square().mean(0)
    at_floor, collapsed = var <= floor * 1.0001, var < left / 20
    span = f"σ² between {float(var.min()):.3g} and {float(var.max()):.3g} (standardised units)"

    def share(units: Tensor) -> str:
        return f"{float(units.sum()) * (1 / len(var)):.0%}"

    if collapsed.any():
        text = f"{share(collapsed)} of the visible units have a σ² below a twentieth of the mean square error of their "
        text += f"reconstructions; {span}. Lower --train.variance-rate, or raise --train.min-var."
        yield Finding("wrong", "variances", text)
    elif at_floor.any():
        finer = at_floor & (left < 0.9 * floor)
        if rows is not None:
            finer &= rows.var(0) > 2 * floor
        text = f"{share(at_floor)} of the visible units are at the floor {floor:.3g}; {span}; "
        if finer.any():
            text += f"{share(finer)} have smaller reconstruction errors than this floor. For a better likelihood lower "
            yield Finding("note", "variances", f"{text}--train.min-var.")
        else:
            yield Finding("fine", "variances", f"{text}they hardly vary in the data, or fit it.")
    elif broadest(var, run.frame.base.var)[1] > BROAD:
        text = (
            f"{span}: some unit is much broader than its data, which the model does not describe. Lower --lr, or use "
        )
        yield Finding("wrong", "variances", f"{text}more --model.n-hidden.")
    else:
        yield Finding("fine", "variances", f"{span}, none at the floor {floor:.3g}.")


def _gradients(run: Run) -> Iterator[Finding]:
    clipped, clip = _late(run, "clipped"), run.config.train.clip_norm
    if not clipped:
        return
    share = fmean(clipped)
    all_clipped = f"In the last quarter all gradients were clipped to a norm of {clip:g}" if clip is not None else ""
    if clip is None:
        yield Finding("fine", "gradients", "They are not clipped (--train.clip-norm None).")
    elif share <= 0.99 or run.status.ended != "finished":
        yield Finding(
            "fine", "gradients", f"{share:.0%} of them clipped to a norm of {clip:g} in the last quarter of training."
        )
    elif run.config.train.spectral_norm is not None:
        text = "W takes spectral steps, whose length is --train.spectral-norm times --train.learning-rate. In the last "
        text += f"quarter all other gradients were clipped to a norm of {clip:g}, as is usual beside such steps."
        yield Finding("fine", "gradients", text)
    else:
        text = f"{all_clipped}, so the learning rate alone set the length of a step. That is how the paper trains; if "
        text += "progress was slow, raise --train.clip-norm or --train.learning-rate."
        yield Finding("note", "gradients", text)


def _acceptance(run: Run) -> Iterator[Finding]:
    accepted = _late(run, "accept_prob")
    if not accepted:
        return
    rate = fmean(accepted)
    if run.config.sampler.name == "global-moves":
        text = f"Chains accept {rate:.1%} of their jumps from cluster to cluster"
        if rate < ENOUGH_JUMPS:
            yield Finding("note", "acceptance", f"{text}: too few to help.")
        else:
            yield Finding("fine", "acceptance", f"{text}; {ENOUGH_JUMPS:.1%} are enough.")
    elif rate < 0.01:
        text = f"{rate:.2%} of the proposals are accepted: the chains stand still. Lower --sampler.step-size, or give "
        yield Finding("wrong", "acceptance", f"{text}each unit its own with --sampler.per-unit True.")
    elif rate > 0.999:
        text = f"{rate:.2%} of the proposals are accepted: the steps are too small to go anywhere. Raise "
        yield Finding("wrong", "acceptance", f"{text}--sampler.step-size.")
    else:
        yield Finding("fine", "acceptance", f"{rate:.0%} of the proposals are accepted.")


def _swaps(run: Run) -> Iterator[Finding]:
    least, replicas = _late(run, "swap_rate_min"), _late(run, "replicas")
    if not least:
        return
    rate, count = fmean(least), int(replicas[-1])
    if rate < 0.05:
        text = f"Two neighbours among the {count} replicas swap only {rate:.1%} of the time, so little passes from "
        text += "base to model. Use more --sampler.n-replicas; trajectory-tempering, which keeps 64 models at most, "
        text += "may need a lower --sampler.save-below."
        yield Finding("note" if rate > 0.005 else "wrong", "swaps", text)
    else:
        yield Finding("fine", "swaps", f"Neighbours among the {count} replicas swap {rate:.0%} of the time or more.")


def _hidden(run: Run, rows: Tensor) -> Iterator[Finding]:
    if not bool(run.model.W.any()):
        text = (
            "A full-covariance Gaussian described the validation rows as well as any model, and was kept. Its W is 0, "
        )
        text += "so that codes carry no information. The last model learned is --weights raw."
        yield Finding("note", "hidden units", text)
        return
    on = run.model(rows).mean(0)
    off, always = float((on < 0.01).double().mean()), float((on > 0.99).double().mean())
    if off + always > 0.1:
        text = f"{off:.0%} are off and {always:.0%} on for 99 % of the data, and say nothing of a row. Lower "
        text += f"--train.learning-rate, {'' if run.config.train.centred else 'train with --train.centred, '}or use "
        yield Finding("wrong" if off + always > 0.9 else "note", "hidden units", f"{text}fewer --model.n-hidden.")
    else:
        norms = run.model.W.norm(dim=0)
        n_weak = int((norms < WEAK * norms.max()).sum())
        used = f"{off:.0%} off and {always:.0%} on for 99 % of the data; mean probability {float(on.mean()):.2f}."
        used += f" {n_weak:,} of {len(norms):,} have weights below a tenth of the largest norm." if n_weak else ""
        yield Finding("fine", "hidden units", used)


def _held_out(run: Run, dataset: Dataset, rows: Tensor) -> Iterator[Finding]:
    if len(dataset.test) < 20:
        return
    held = dataset.test[:2000] if dataset.weights is None else dataset.some("test", 2000)
    if dataset.weights is not None and min(len(rows), len(held)) < 20:
        return
    seen, unseen = (run.model.free_energy(x).double() for x in (rows, run.fitted.units(held)))
    gap, spread = float(unseen.mean() - seen.mean()), float(seen.std())
    error = float((seen.var() / len(seen) + unseen.var() / len(unseen)).sqrt())
    if not gap <= max(0.5 * spread, 3 * error):  # also where it is NaN
        text = f"Held-out data lie {gap:.3g} nats above the training data in free energy (spread {spread:.3g}). Use "
        yield Finding("wrong", "overfitting", f"{text}fewer --model.n-hidden or --train.n-updates, or more data.")
    else:
        side = "above" if gap >= 0 else "below"
        text = f"Held-out data lie {abs(gap):.3g} ± {error:.2g} nats {side} the training data in free energy."
        yield Finding("fine", "held-out data", text)


def _chains(run: Run, rows: Tensor, n_chains: int, seed: int) -> Iterator[Finding]:
    """Chains from noise and from data, as the run draws samples: are they where the data are, and do they meet?"""
    model, steps = on_device(run).model, run.config.sampling.n_steps
    sampler = tuned_sampler(run, run.config.sampling.sampler, model)
    noise = sample(model, sampler, n_steps=steps, n_chains=n_chains, seed=seed).v.cpu()
    data = rows[spread(len(rows), n_chains)]
    if not noise.isfinite().all():
        text = f"{steps} steps from noise end in NaN or infinite numbers. Lower --sampling.sampler.step-size."
        yield Finding("wrong", "chains", text)
        return
    met = None
    if not sampler.anneals:
        other = sample(model, sampler, n_steps=steps, v0=data.to(model.W), seed=seed + 1).v.cpu()
        distance, p = _differ(noise, other, seed)
        met = not (p < 0.01 and distance > 0.01)
    energies = {name: run.model.free_energy(x).double() for name, x in (("data", data), ("noise", noise))}
    gap, width = float(energies["noise"].mean() - energies["data"].mean()), float(energies["data"].std())
    where = f"After {steps} steps from noise the chains lie {gap:+.3g} nats from the data in free energy"
    if not abs(gap) <= 2 * width:  # also where it is NaN
        if gap < 0:
            remedy = "they sit where the model is deeper than at the data: lower --train.learning-rate, or train with "
            remedy += "more chains or tempering (--sampler.name parallel-tempering)"
        elif met:
            remedy = "and so do chains from the data: it is where the model puts its mass, and more steps change "
            remedy += "nothing; train with more --train.n-updates or a lower --train.learning-rate"
        else:
            pcd = "" if run.config.objective.name == "pcd" else " or with --objective.name pcd"
            remedy = "they have not come down to where the data are: more --sampling.n-steps, or train with more "
            remedy += f"--objective.n-steps{pcd} or --train.n-updates"
        text = f"{where}, more than twice the data's own standard deviation of {width:.3g}; {remedy}."
        yield Finding("wrong", "energy gap", text)
    else:
        text = f"{where}, within twice the data's own standard deviation of {width:.3g}."
        yield Finding("fine", "energy gap", text)
    if met is None:
        text = "Annealed chains start from their base alone, so two starts cannot be compared."
        yield Finding("note", "two starts", text)
    elif not met:
        text = f"After {steps} steps chains from noise and chains from the data still differ (energy distance "
        text += f"{distance:.1%} of their width): they have not forgotten their start. Draw with more "
        text += "--sampling.n-steps, or temper (--sampling.sampler.name parallel-tempering or annealed)."
        yield Finding("wrong", "two starts", text)
    else:
        text = f"differ by {distance:.1%} of their width, too little to matter (1 % would)"
        text = text if p < 0.01 else f"cannot be told apart (p = {p:.2f}; below 0.01 they could)"
        yield Finding("fine", "two starts", f"After {steps} steps chains from noise and from the data {text}.")


def _samples(run: Run, dataset: Dataset, seed: int) -> Iterator[Finding]:
    """Samples against rows that were held out, by energy distance in deviations of the data: of pixels a common one."""
    part: Literal["train", "test"] = "test" if len(dataset.test) >= FEWEST_ROWS else "train"
    kept = run.transform.kept  # constant and dependent columns are not modelled
    real = dataset.some(part, COMPARED)[:, kept]
    drawn = generate(run, COMPARED, seed=seed, sampling=replace(run.config.sampling, mean=False))[:, kept]
    if not drawn.isfinite().all():
        return  # said of the chains
    width = real.std(0, correction=0)
    if run.image_shape is not None:
        width = width.square().mean().sqrt()  # pixels that are nearly always black do not weigh as others do
    width = torch.where(width > 0, width, 1.0)
    distance, p = _differ(drawn / width, real / width, seed)
    what = "held-out data" if part == "test" else "the data"
    text = f"{len(drawn):,} samples and {len(real):,} rows of {what}"
    if p > 0.01:
        text += f" cannot be told apart by energy distance (p = {p:.2f}; below 0.01 they could)."
        yield Finding("fine", "samples", text)
        return
    text += f" differ by {distance:.1%} of their width"
    if run.image_shape is not None or distance < 0.01:
        yield Finding("fine" if distance < 0.01 else "note", "samples", f"{text}.")
        return
    tempered = run.config.objective.name == "pcd" and run.config.sampler.name in ("global-moves", "parallel-tempering")
    remedy = "more --train.n-updates, more --model.n-hidden" if tempered else "tempering or global moves"
    remedy += ", or a lower --lr"
    remedy += "" if run.config.dataset.name != "array" else "; or train with the default settings"
    text += f": the model does not put its mass where the data are. Try {remedy}."
    yield Finding("wrong" if distance > 0.02 else "note", "samples", text)


def _ranges(run: Run, dataset: Dataset, seed: int) -> Iterator[Finding]:
    """Draws of the columns of a table against the numbers that occur in them."""
    rows = dataset.some("train", 10_000).double()
    if run.image_shape is not None or run.config.dataset.name != "array" or len(rows) < FEWEST_ROWS:
        return
    drawn, room = generate(run, COMPARED, seed=seed), ROUNDING * (rows.amax(0) - rows.amin(0))
    low, high, allowed = rows.amin(0), rows.amax(0), BEYOND + 3 / len(rows)
    ends = ("below its lowest", low, drawn < low - room), ("above its highest", high, drawn > high + room)
    parts, names = [], run.columns or tuple(f"column {k}" for k in range(rows.shape[1]))
    for k in (~run.frame.bounds.is_bounded.expand(rows.shape[1])).nonzero()[:, 0].tolist():
        for side, end, beyond in ends:
            if (share := float(beyond[:, k].double().mean())) > allowed:
                parts.append((share, f"{names[k]} in {share:.0%} {side} number, {float(end[k]):.4g}"))
    if not parts:
        yield Finding(
            "fine", "ranges", f"At either end of each column at most {allowed:.0%} of the draws lie beyond the data."
        )
        return
    listed = "; ".join(text for _, text in sorted(parts, reverse=True)[:SHOWN])
    more = f", and {len(parts) - SHOWN} others" if len(parts) > SHOWN else ""
    text = f"Draws lie beyond the numbers of the data: {listed}{more}. If such numbers cannot be, train with "
    yield Finding("note", "ranges", f"{text}--dataset.bounds, or --dataset.censor where many rows hold the number.")


def _likelihood(run: Run, dataset: Dataset, seed: int) -> Iterator[Finding]:
    """Held-out nats beside a full-covariance Gaussian and a mixture: has the model learned more than a covariance?"""
    if run.image_shape is not None or run.transform.n_columns > WIDEST_TABLE:
        return
    scores = measured(run, EVALUATION)
    comparison = compared(scores) if is_kind(float, scores.get("log_z_error")) else []
    error = scores.get("log_z_error", 0.0)
    converged = scores.get("log_z_converged", True)  # exact where nothing is said of it
    if not comparison:
        known = log_z(run, dataset, n_steps=QUICK_STEPS, n_chains=QUICK_CHAINS, seed=seed)
        comparison, error, converged = comparisons(run, dataset, known, seed=seed), known.error, known.converged
    found = {c.name: c for c in comparison}
    if "full-covariance Gaussian" not in found:
        return
    one, best = found["full-covariance Gaussian"], found.get("mixture of Gaussians")
    text = f"Held-out rows are {_compared(one)} a full-covariance Gaussian"
    text += "" if best is None else f", and {_compared(best)} a mixture by BIC"
    more = 0.0 if best is None or best.verdict != "worse" else best.mean - one.mean
    remedy = "train with more --train.n-updates or --model.n-hidden, or a lower --lr"
    if run.config.dataset.standardise != "whiten":
        remedy += "; or try --dataset.standardise whiten"
    is_sure = bool(converged) and error < 0.3  # exact, or to a tenth of a nat or so
    if not is_sure and one.verdict != "worse":
        yield Finding("note", "likelihood", f"{text}; but log Z is known to {error:.2g} nats only.")
    elif one.verdict == "worse":
        yield Finding(
            "wrong", "likelihood", f"{text}: a full-covariance Gaussian describes them better. To learn more, {remedy}."
        )
    elif more > MORE and one.difference < 0.25 * more:
        text += f": hardly more than a full-covariance Gaussian, though the data have more to learn. Instead, {remedy}."
        yield Finding("wrong", "likelihood", text)
    elif best is not None and best.verdict == "worse":
        text += ": the mixture describes them better. For densities and anomalies use it (sklearn.mixture)."
        if run.config.dataset.name == "array" and not run.frame.grid.n:
            text += " But if columns repeat values, the mixture gains by narrow peaks on them; --dataset.coarse auto "
            text += "compares both without peaks."
        yield Finding("note", "likelihood", text)
    else:
        yield Finding("fine", "likelihood", f"{text}.")


def _compared(found: Comparison) -> str:
    side = "above" if found.difference >= 0 else "below"
    return f"{with_error(abs(found.difference), found.difference_error)} nats {side}"


def _mixing(run: Run) -> Iterator[Finding]:
    """Verdict of `grbm mixing` on longer chains, if it was asked."""
    found = measured(run, MIXING)
    kinds = {"mixed": bool, "sampler": str, "verdict": str}
    if all(is_kind(kind, found.get(name)) for name, kind in kinds.items()):
        # a note at most: long chains that stay apart say how to sample, not how well the model was learned
        yield Finding("fine" if found["mixed"] else "note", f"mixing of {found['sampler']}", found["verdict"])


def _differ(x: Tensor, y: Tensor, seed: int, n_permutations: int = 199) -> tuple[float, float]:
    """Energy distance over the mean distance within, and the share of relabelings that give as much."""
    both = torch.cat([x, y]).double()
    distances = torch.cdist(both, both)
    label = torch.cat([torch.ones(len(x)), -torch.ones(len(y))]).double()
    rng = torch.Generator().manual_seed(seed)
    labels = torch.stack([label, *(label[torch.randperm(len(label), generator=rng)] for _ in range(n_permutations))])
    first = (labels > 0).double() / len(x)
    weights = first - (labels < 0).double() / len(y)
    statistics = -((weights @ distances) * weights).sum(1)
    p = float((statistics >= statistics[0]).double().mean())
    scale = float(distances.sum() / (len(both) * (len(both) - 1)))
    return float(energy_distance(x, y)) / (scale or 1.0), p
