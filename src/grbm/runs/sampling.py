"""Samples of a run, in the units of its data."""

from dataclasses import replace

import torch
from torch import Tensor

from grbm.core.devices import pick_device, require_memory
from grbm.core.errors import UserError
from grbm.fitting.density import Fitted
from grbm.fitting.recipe import SamplerConfig
from grbm.model import GRBM
from grbm.runs.config import SamplingConfig
from grbm.runs.folder import Run, read_trajectory
from grbm.samplers import Chains, Sampler, TrajectoryTempering


def generate(
    run: Run, n_samples: int, *, sampling: SamplingConfig | None = None, sampler: Sampler | None = None, seed: int = 1
) -> Tensor:
    """``n_samples`` from noise (n, N) in the data's units, drawn as ``sampling`` (by default the run's own) says.

    Give the `tuned_sampler` of the same ``sampling`` where it is at hand: tuning takes time.
    """
    return run.fitted.columns(_sample(run, sampling or run.config.sampling, n_samples, seed, sampler).v)


def trajectory(
    run: Run, n_chains: int, *, n_states: int, sampler: Sampler | None = None, seed: int = 1
) -> tuple[Tensor, list[int]]:
    """The way from noise: states (S, C, N) in the data's units and their steps, closer together at the start.

    The first state is the noise itself; the last ones are those that `generate` returns for the same seed and
    number of chains.
    """
    sampling = run.config.sampling
    noise = _sample(run, replace(sampling, n_steps=0, mean=False), n_chains, seed, sampler)
    steps = sorted({round(sampling.n_steps ** (k / (n_states - 2))) for k in range(n_states - 1)})
    kept = _sample(run, sampling, n_chains, seed, sampler, keep_at=steps)
    states, steps = torch.cat([noise.v[None], kept.v]), [0, *steps]
    return run.fitted.columns(states), steps


def on_device(run: Run) -> Fitted:
    """A copy of the density on a GPU if there is one for its moves: the run itself stays on the CPU."""
    has_kernels = run.config.recipe.work(run.model.n_visible) > 0
    return run.fitted.to(pick_device("auto" if has_kernels else "cpu"))


@torch.no_grad()
def tuned_sampler(run: Run, sampler: SamplerConfig, model: GRBM) -> Sampler:
    """The sampler that ``sampler`` names for the run's model, with its ladder, or the models saved along training."""
    built = sampler.build(run.frame)
    if isinstance(built, TrajectoryTempering):
        kept = read_trajectory(run.folder)
        if not kept:
            raise UserError(
                f"{run.folder} has no models kept along training, which the sampler trajectory-tempering needs: "
                f"grbm train ... --checkpoint.trajectory 0.4"
            )
        built = replace(built, models=tuple(early.to(model.W.device).freeze() for early, _ in kept))
    return built.tuned(model.freeze())


@torch.no_grad()
def _sample(
    run: Run, sampling: SamplingConfig, n: int, seed: int, sampler: Sampler | None, keep_at: list[int] | None = None
) -> Chains:
    here = on_device(run)
    model = here.model
    size = 12.0 * n * (model.n_visible + model.n_hidden)
    require_memory(size, f"Drawing {n:,} samples at once", "draw fewer", model.W.device)
    return here.walk(
        sampler or tuned_sampler(run, sampling.sampler, model),
        n,
        n_steps=sampling.n_steps,
        seed=seed,
        keep_at=keep_at,
        mean=sampling.mean,
        precision=run.config.precision,
    )
