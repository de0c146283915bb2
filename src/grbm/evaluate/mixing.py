"""Have the chains mixed? Chains from the data and from noise, recorded, and what ArviZ says of them.

Rank-normalised split R-hat, bulk and tail effective sample size are those of Vehtari et al. 2021, as ArviZ computes
them. Starting half of the chains at data and half at noise makes R-hat see what chains of one kind cannot: a mode that
noise never finds, or one that the data do not have.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grbm.core.devices import require_memory
from grbm.core.randomness import Blocks, seed_of
from grbm.model import GRBM, Energy
from grbm.samplers import Sampler

WORST_RHAT = 1.05  # 1.01 is advised for one quantity; here it is the worst of all visible units
FEWEST = {"n_chains": 4, "n_draws": 4, "every": 1, "burn_in": 0}  # what `record` takes
LEAST_ESS = 400.0  # below this R-hat itself is uncertain (Vehtari et al. 2021)


class Trace(NamedTuple):
    """Recorded chains. The first axes are (chains, draws), as in ArviZ."""

    v: Tensor  # (C, S, N)
    free_energy: Tensor  # (C, S), nats
    accept_prob: Tensor | None  # (C, S), mean over the steps of a draw
    swap_prob: Tensor | None  # (C, S, R − 1), likewise
    every: int  # steps from one draw to the next
    n_from_data: int  # the first so many chains started at data, the others at noise
    exact: bool  # whether the sampler leaves the model's distribution alone


class Mixing(NamedTuple):
    """Diagnostics of a trace."""

    rhat: Tensor  # (N,) of each visible unit
    ess_bulk: Tensor  # (N,)
    ess_tail: Tensor  # (N,)
    rhat_free_energy: float
    ess_free_energy: float  # bulk
    autocorrelation: Tensor  # (2, S) of the free energy and of the slowest visible unit, at lags of 0, 1, ... draws
    slowest: int  # the visible unit of which the draws are worth least
    steps_per_independent: float  # integrated autocorrelation time of the slowest unit, or of the free energy if slower
    accept_rate: float | None
    swap_rate: Tensor | None  # (R − 1,)
    apart: tuple[float, float] | None  # nats of free energy between chains from noise and from data, and the error
    exact: bool  # whether the sampler leaves the model's distribution alone

    @property
    def problem(self) -> Literal["not one population", "few draws"] | None:
        """Objection to the chains, if there is one."""
        if not self.worst_rhat <= WORST_RHAT:
            return "not one population"
        return None if self.least_ess >= LEAST_ESS else "few draws"

    @property
    def mixed(self) -> bool:
        """Whether all chains tell of one population, and enough of it."""
        return self.problem is None

    @property
    def worst_rhat(self) -> float:
        """The largest R-hat of all visible units and the free energy; infinite where one is NaN."""
        return float(torch.tensor([*self.rhat.tolist(), self.rhat_free_energy]).nan_to_num(nan=torch.inf).max())

    @property
    def least_ess(self) -> float:
        """The smallest effective sample size of all units and the free energy; 0 where one is NaN."""
        sizes = [*self.ess_bulk.tolist(), *self.ess_tail.tolist(), self.ess_free_energy]
        return float(torch.tensor(sizes).nan_to_num(nan=0.0).min())

    @property
    def verdict(self) -> str:
        """Judgement in words."""
        if self.problem == "not one population":
            worst, unit = self.rhat.nan_to_num(nan=torch.inf).max(0)
            text = f"Not mixed: visible unit {int(unit)} has R-hat {float(worst):.3f}, the free energy "
            text += f"{self.rhat_free_energy:.3f}."
            if self.apart is not None:
                gap, error = self.apart
                text += f" Chains from data and from noise are {abs(gap):.3g} ± {error:.1g} nats of free energy apart."
            text += " Run longer, or use tempering (parallel-tempering, or trajectory-tempering)."
        elif self.problem == "few draws":
            text = f"No sign of bad mixing, but the draws are worth only {self.least_ess:.0f} independent ones (R-hat "
            text += f"at most {self.worst_rhat:.3f}); {LEAST_ESS:.0f} are wanted: more draws or chains."
        else:
            text = f"Mixed: R-hat at most {self.worst_rhat:.3f}, and the draws are worth at least {self.least_ess:.0f} "
            text += f"independent ones; an independent sample takes about {self.steps_per_independent:.0f} steps."
        if not self.exact:
            text += " The sampler is biased by its step size, so where its chains mix is not quite the model's density."
        return text

    def lines(self) -> Iterator[tuple[str, str]]:
        """Names and numbers to print."""
        yield "R-hat, worst unit", f"{float(self.rhat.max()):.3f} (median {float(self.rhat.median()):.3f})"
        yield "R-hat, free energy", f"{self.rhat_free_energy:.3f}"
        for name, ess in (("bulk", self.ess_bulk), ("tail", self.ess_tail)):
            yield f"effective size, {name}", f"{float(ess.min()):.0f} (median {float(ess.median()):.0f})"
        yield "effective size, free energy", f"{self.ess_free_energy:.0f}"
        at_least = "" if self.mixed else "not known; at a guess "
        yield "steps per independent draw", f"{at_least}{self.steps_per_independent:.0f}"
        if self.accept_rate is not None:
            yield "acceptance rate", f"{self.accept_rate:.3f}"
        if self.swap_rate is not None:
            rates = f"{float(self.swap_rate.min()):.3f} to {float(self.swap_rate.max()):.3f}"
            yield "swap rate of neighbours", f"{rates} ({len(self.swap_rate) + 1} replicas)"

    def scores(self) -> dict[str, Any]:
        """Numbers by name, for a file; None where they are not finite, which JSON has no word for."""
        numbers = {
            "rhat_max": float(self.rhat.max()),
            "rhat_free_energy": self.rhat_free_energy,
            "ess_bulk_min": float(self.ess_bulk.min()),
            "ess_tail_min": float(self.ess_tail.min()),
            "ess_free_energy": self.ess_free_energy,
            "steps_per_independent": self.steps_per_independent,
            "accept_prob": self.accept_rate,
        }
        rates = None if self.swap_rate is None else self.swap_rate.tolist()
        finite = {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}
        return finite | {"swap_rate": rates, "mixed": self.mixed, "verdict": self.verdict}


@torch.no_grad()
def record(
    model: GRBM | Energy,
    sampler: Sampler,
    data: Tensor,
    *,
    n_chains: int = 8,
    n_draws: int = 1000,
    every: int = 2,
    burn_in: int = 1000,
    seed: int = 0,
) -> Trace:
    """Run chains and keep every ``every``-th state after ``burn_in`` steps.

    A draw is a walk of ``every`` steps, as it is in learning: step sizes that fall along a walk do so anew each time.

    Parameters
    ----------
    model, sampler
        What to sample, and how; an annealed path is no chain and is refused.
    data : Tensor
        (n, N) as the model sees it; half of the chains start at rows of it. May be empty: then all start at noise.
    n_chains, n_draws, every, burn_in : int
        At least 4 chains, so that R-hat means something.

    Raises
    ------
    ValueError
        For an annealed sampler, too few chains or draws, or chains that diverge.
    """
    if sampler.anneals:
        raise ValueError("An annealed path is no chain; choose another sampler, such as parallel-tempering.")
    for name, number in (("n_chains", n_chains), ("n_draws", n_draws), ("every", every), ("burn_in", burn_in)):
        if number < FEWEST[name]:
            raise ValueError(f"{name} must be at least {FEWEST[name]}, got {number}.")
    energy = model.freeze() if isinstance(model, GRBM) else model
    require_memory(
        4.0 * n_chains * (3 * (energy.n_visible + energy.n_hidden) + n_draws * energy.n_visible),
        f"Keeping {n_draws:,} draws of {n_chains:,} chains",
        "keep fewer",
    )
    rng = Blocks(seed_of(seed, "mixing"), 1, device=energy.W.device)
    start = sampler.noise(energy, n_chains, rng)
    n_from_data = n_chains // 2 if len(data) else 0
    if n_from_data:
        rows = torch.arange(n_from_data, device=data.device) * len(data) // n_from_data
        some = data[rows].to(energy.W)
        start[..., :n_from_data, :] = model.at_unit_contrast(some, rng) if isinstance(model, GRBM) else some
    v, free_energies, infos = [], [], []
    chains, step = sampler.start(energy, start, rng), sampler.bind(energy, every)
    for t in range(-burn_in, n_draws * every):
        chains, info = step(chains, t % every, rng)
        if t < 0:
            continue
        infos.append(info)
        if (t + 1) % every == 0:
            v.append(chains.v)
            free_energies.append(energy.free_energy(chains.v))

    def per_draw(steps: tuple[Tensor | None, ...]) -> Tensor | None:
        """Steps (S · every, ..., C) averaged to draws, chains first; None where there is nothing to average."""
        found = [x for x in steps if x is not None]
        if len(found) < len(steps):
            return None
        return torch.stack(found).reshape(n_draws, every, *found[0].shape).mean(1).movedim(-1, 0).cpu()

    recorded = torch.stack(v, 1).cpu(), torch.stack(free_energies, 1).cpu()
    if not recorded[0].isfinite().all():
        raise ValueError(
            "The chains diverged to infinite numbers; use a smaller step size, or a Metropolis test (adjust_from=0)."
        )
    accept_prob, swap_prob = map(per_draw, zip(*infos, strict=True))
    return Trace(*recorded, accept_prob, swap_prob, every, n_from_data, sampler.exact)


def to_inference_data(trace: Trace) -> Any:
    """The trace as an ``arviz.InferenceData``: group ``posterior`` holds v and free_energy, ``sample_stats`` the rest.

    ``lp`` is −F(v), the log-density up to log Z. Save it with its ``to_netcdf``.
    """
    stats = {"lp": -trace.free_energy, "acceptance_rate": trace.accept_prob, "swap_rate": trace.swap_prob}
    about = {"inference_library": "grbm", "steps_per_draw": trace.every, "chains_from_data": trace.n_from_data}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few draws, which the verdict tells
        return _arviz().from_dict(
            posterior={"v": trace.v.numpy(), "free_energy": trace.free_energy.numpy()},
            sample_stats={name: x.numpy() for name, x in stats.items() if x is not None},
            dims={"v": ["visible"], "swap_rate": ["pair"]},
            posterior_attrs=about,
        )


def diagnose(trace: Trace) -> Mixing:
    """R-hat, effective sample sizes, autocorrelation and rates, with a verdict in plain words."""
    arviz = _arviz()
    posterior = to_inference_data(trace).posterior
    rhat = arviz.rhat(posterior, method="rank")
    bulk, tail = (arviz.ess(posterior, method=method) for method in ("bulk", "tail"))
    means = arviz.ess(posterior, method="mean")
    n_chains, n_draws, _ = trace.v.shape
    unit = int(np.argmin(means.v.values))
    least = min(float(means.v.min()), float(means.free_energy))
    return Mixing(
        rhat=torch.from_numpy(rhat.v.values),
        ess_bulk=torch.from_numpy(bulk.v.values),
        ess_tail=torch.from_numpy(tail.v.values),
        rhat_free_energy=float(rhat.free_energy),
        ess_free_energy=float(bulk.free_energy),
        autocorrelation=torch.stack([_autocorrelation(x) for x in (trace.free_energy, trace.v[..., unit])]),
        slowest=unit,
        steps_per_independent=n_chains * n_draws * trace.every / least,
        accept_rate=None if trace.accept_prob is None else float(trace.accept_prob.mean()),
        swap_rate=None if trace.swap_prob is None else trace.swap_prob.double().mean((0, 1)),
        apart=_apart(trace),
        exact=trace.exact,
    )


def _apart(trace: Trace) -> tuple[float, float] | None:
    """The gap in free energy between chains from data and from noise, if it is 3 standard errors over chains."""
    k, means = trace.n_from_data, trace.free_energy.double().mean(1)
    if not 1 < k < len(means) - 1:
        return None
    error = float((means[:k].var() / k + means[k:].var() / (len(means) - k)).sqrt())
    gap = float(means[:k].mean() - means[k:].mean())
    return None if abs(gap) < 3 * error else (gap, error)


def _autocorrelation(chains: Tensor) -> Tensor:
    """The autocorrelation of chains (C, S) about their common mean, at lags 0..S−1, averaged over chains; ρ(0) = 1."""
    n_draws = chains.shape[1]
    centred = (chains.double() - chains.double().mean()).numpy()
    spectrum = np.abs(np.fft.rfft(centred, 2 * n_draws)) ** 2
    covariance = np.fft.irfft(spectrum)[:, :n_draws].mean(0) / n_draws
    return torch.from_numpy(covariance / max(float(covariance[0]), 1e-300))


def _arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it announces its next version at import
        import arviz
    return arviz
