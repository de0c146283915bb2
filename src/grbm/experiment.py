"""`grbm train`: from a configuration to a run folder."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grbm import runs
from grbm.config import RunConfig
from grbm.data.loading import load, standardizer
from grbm.errors import DivergenceError
from grbm.initialise import anchored_
from grbm.model import GRBM, Base
from grbm.training import StepMetrics, TrainState, fit

Record = dict[str, Any]


def train(
    config: RunConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    on_start: Callable[[Tensor, GRBM], None] = lambda data, model: None,
    on_update: Callable[[int, Record | None], None] = lambda update, record: None,
    log_points: int = 200,
) -> runs.Run:
    """Train as ``config`` says and write everything but figures to ``folder``.

    ``metrics.jsonl`` gets about ``log_points`` lines, evenly spaced; ``on_update`` sees every update, with the record
    where one was written. A run that diverges keeps its last good weights and raises `DivergenceError`.
    """
    config.check()
    dataset = load(config)
    scale = standardizer(config, dataset)
    device = runs.pick_device(config.device)
    data = scale(dataset.train)
    base = Base.fit(data)
    batch_size = min(config.train.batch_size, len(data))
    objective = config.objective.build(config.sampler.build(base), batch_size)
    config.sampling.sampler.build(base)  # so that a wrong option is refused now and not after training

    model = GRBM(data.shape[1], config.model.n_hidden, seed=config.seed)
    if config.model.start == "anchored":
        var, length = config.model.anchor_var, config.model.anchor_length
        anchored_(model, data, var=var, length=length, seed=config.seed)
    model, data = model.to(device), data.to(device)
    state = TrainState(model, config.train.build(model), seed=config.seed)
    runs.create(folder, config, overwrite=overwrite)  # only now, when nothing in the configuration can fail any more
    runs.save_data(folder, scale, base)
    on_start(data, model)

    n_updates = config.train.n_updates
    every = max(1, n_updates // log_points)
    started, clipped, since = time.perf_counter(), 0, 0
    try:
        with (folder / runs.METRICS).open("w", encoding="utf-8") as log:
            for metrics in fit(
                state,
                data,
                objective,
                n_updates=n_updates,
                batch_size=batch_size,
                centred=config.train.centred,
                clip_norm=config.train.clip_norm,
                min_var=config.train.min_var,
                average_decay=config.train.average_decay,
            ):
                clipped += config.train.clip_norm is not None and float(metrics.grad_norm) > config.train.clip_norm
                since += 1
                record = None
                if state.update % every == 0 or state.update in (1, n_updates):
                    record = describe(state, metrics, data[:512])
                    record |= {"seconds": round(time.perf_counter() - started, 3), "clipped": clipped / since}
                    clipped = since = 0
                    log.write(json.dumps(record) + "\n")
                    log.flush()
                on_update(state.update, record)
    except (DivergenceError, KeyboardInterrupt) as error:
        diverged = isinstance(error, DivergenceError)
        message = str(error) if diverged else f"interrupted at update {state.update}"
        # an average has taken in the step that went wrong; the parameters have taken it back
        runs.save_model(folder, state.model, None if diverged else state.average)
        runs.save_status(folder, state.update, message)
        if not diverged:
            raise KeyboardInterrupt(f"{message}; the weights so far are in {folder / runs.WEIGHTS}") from error
        raise DivergenceError(f"{error} The last good weights are in {folder / runs.WEIGHTS}.") from error
    runs.save_model(folder, state.model, state.average)
    runs.save_status(folder, state.update)
    return runs.read(folder)


@torch.no_grad()
def describe(state: TrainState, metrics: StepMetrics, data: Tensor) -> Record:
    """One line of metrics.jsonl; energies are per sample, in nats."""
    energy = state.model.freeze()
    reconstruction = energy.visible_mean(energy.hidden_logits(data).sigmoid())
    log_var = state.model.log_var
    accept_prob = metrics.negative.accept_prob
    return {
        "update": state.update,
        "learning_rate": state.optimizer.param_groups[0]["lr"],
        "grad_norm": float(metrics.grad_norm),
        "reconstruction": float((data - reconstruction).square().mean()),
        "var_mean": float(log_var.exp().mean()),
        "log_var_mean": float(log_var.mean()),
        "log_var_min": float(log_var.min()),
        "log_var_max": float(log_var.max()),
        "free_energy_data": float(energy.free_energy(data).mean()),
        "free_energy_chains": float(energy.free_energy(metrics.negative.v).mean()),
        "accept_prob": None if accept_prob is None else float(accept_prob),
    }
