"""Samples of a run, in the units of its data."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.config import SamplingConfig
from grbm.model import Base
from grbm.runs import Run
from grbm.samplers import Chains, sample
from grbm.samplers.annealing import Weights


class Generated(NamedTuple):
    v: Tensor  # (n, N) in the data's units
    log_z: float | None  # of the model in its own units, where the sampler estimates it


def generate(run: Run, n_samples: int, *, sampling: SamplingConfig | None = None, seed: int = 1) -> Generated:
    """Draw ``n_samples`` from noise as ``sampling`` (by default the run's own) says."""
    sampling = sampling or run.config.sampling
    chains = _sample(run, sampling, n_samples, seed, keep_every=None)
    log_z = float(chains.state.log_z) if isinstance(chains.state, Weights) else None
    return Generated(run.standardizer.inverse(chains.v.cpu()), log_z)


def trajectory(
    run: Run, n_chains: int, *, sampling: SamplingConfig | None = None, seed: int = 1, n_states: int = 11
) -> tuple[Tensor, list[int]]:
    """The way from noise, evenly spaced: states (S, C, N) in the data's units and their steps."""
    sampling = sampling or run.config.sampling
    every = max(1, sampling.n_steps // n_states)
    kept = _sample(run, sampling, n_chains, seed, keep_every=every)
    return run.standardizer.inverse(kept.v.cpu()), [every * (k + 1) for k in range(len(kept.v))]


@torch.no_grad()
def _sample(run: Run, sampling: SamplingConfig, n: int, seed: int, keep_every: int | None) -> Chains:
    base = Base(*(x.to(run.model.W) for x in run.base))
    return sample(
        run.model,
        sampling.sampler.build(base),
        n_steps=sampling.n_steps,
        n_chains=n,
        seed=seed,
        keep_every=keep_every,
        mean=sampling.mean,
    )
