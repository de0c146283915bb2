"""Chains that run: for learning (`run_chains`), and for whoever wants samples (`sample`)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from grbm.core.options import Precision
from grbm.core.randomness import Blocks, Rng, seed_of
from grbm.model import GRBM, Energy
from grbm.model.censoring import UNCENSORED
from grbm.model.contrasts import UNIT
from grbm.samplers.chains import Chains, Sampler, Walk, Walked, gather, walk
from grbm.samplers.engines import engine_for
from grbm.samplers.moves import MoveSampler, moves_of


def run_chains(
    energy: Energy,
    sampler: Sampler,
    v: Tensor,
    n_steps: int,
    rng: Rng,
    *,
    burn_in: int | None = None,
    probabilities: bool = False,
) -> Walked:
    """Start chains at v, walk ``n_steps`` steps, and gather what learning needs.

    Parameters
    ----------
    energy, sampler, v
        Where to walk, how, and from where ([R,] C, N).
    n_steps : int
        Steps; 0 gathers the start alone.
    rng : Rng
        With `Blocks` the numbers and sums belong to blocks of chains, and the fastest engine may serve; with a plain
        generator the definition in PyTorch does.
    burn_in : int, optional
        Sum the states after the first ``burn_in`` steps; −1 sums the start too, None nothing.
    probabilities : bool
        Sum p(h | v) in place of h.
    """
    walk = Walk(v, n_steps, burn_in, probabilities)
    if isinstance(sampler, MoveSampler):
        return engine_for(energy.W, rng).run(energy, moves_of(sampler, energy, n_steps), walk, rng)
    return sampler.at_once(energy, walk, rng) or step_by_step(energy, sampler, walk, rng)


def step_by_step(energy: Energy, sampler: Sampler, walk: Walk, rng: Rng) -> Walked:
    """The definition of `run_chains`, for every sampler, device and dtype."""
    chains, step = sampler.start(energy, walk.v, rng), sampler.bind(energy, walk.n_steps)
    return gather(energy, step, chains, walk, rng)


def noise(sampler: Sampler, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
    """Where the sampler's chains start from noise (C, N), drawn as its walks are."""
    if type(sampler).noise is Sampler.noise:
        return engine_for(energy.W, rng).draw("normal", (n_chains, energy.n_visible), energy.W, rng)
    return sampler.noise(energy, n_chains, rng)


@torch.no_grad()
def sample(
    model: GRBM | Energy,
    sampler: Sampler,
    *,
    n_steps: int = 100,
    n_chains: int | None = None,
    v0: Tensor | None = None,
    seed: int = 0,
    keep_every: int | None = None,
    keep_at: Sequence[int] | None = None,
    burn_in: int = 0,
    mean: bool = False,
    precision: Precision = "highest",
) -> Chains:
    """Run chains from noise, or from ``v0``, and return their last state.

    Parameters
    ----------
    model, sampler
        What to sample and how, e.g. ``sample(model, Gibbs(), n_chains=64)``. A model of several contrasts loses that of
        ``v0`` by a draw, and what is returned has contrasts of its own; of a censored model measurements are returned.
        An `Energy` stays at unit contrast, with latent values.
    n_steps : int
        Steps of every chain; 0 returns the start.
    n_chains : int, optional
        Number of chains from noise, v ~ N(0, I) unless the sampler has its own; not with ``v0``.
    v0 : Tensor, optional
        Starting visible units (C, N).
    seed : int
        Equal seeds give equal chains on the same device.
    keep_every : int, optional
        Return every ``keep_every``-th state after ``burn_in`` steps, without the start, stacked along a new first axis.
    keep_at : sequence of int, optional
        Return the states after these numbers of steps (0: the start), rising, likewise; not with ``keep_every``.
    burn_in : int
        Steps that are never kept.
    mean : bool
        Replace v by its conditional mean μ + W h, as the published program displays samples.
    precision : {"highest", "high", "fast"}
        Of a model's products; an `Energy` has its own.

    Returns
    -------
    Chains
        v (C, N), h (C, M), h_prob (C, M); with ``keep_every`` or ``keep_at`` (S, C, ·).

    Raises
    ------
    ValueError
        If not exactly one of ``n_chains`` and ``v0`` is given, or a shape or count is wrong.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    energy = model.freeze(precision) if isinstance(model, GRBM) else model
    rng = Blocks(seed_of(seed, "sample"), 1, device=energy.W.device)
    if not hasattr(sampler, "bind") or isinstance(sampler, type):
        raise TypeError(f"sampler must be an object such as grbm.Gibbs(), got {sampler!r}.")
    if (n_chains is None) == (v0 is None):
        raise ValueError("Give either n_chains (chains start from noise) or v0 (chains start there).")
    if n_chains is not None and n_chains < 1:
        raise ValueError(f"n_chains must be at least 1, got {n_chains}.")
    if v0 is not None and sampler.anneals:
        raise ValueError("An annealed path starts from its own noise: give n_chains, not v0.")
    if n_steps < 0 or not 0 <= burn_in <= n_steps:
        raise ValueError(f"Need 0 <= burn_in <= n_steps, got burn_in={burn_in} and n_steps={n_steps}.")
    if v0 is None:
        assert n_chains is not None
        v0 = noise(sampler, energy, n_chains, rng)
    elif not isinstance(v0, Tensor) or v0.ndim < 2 or v0.shape[-1] != energy.n_visible:
        got = f"shape {tuple(v0.shape)}" if isinstance(v0, Tensor) else type(v0).__name__
        raise ValueError(f"v0 must be a tensor (n_chains, {energy.n_visible}), got {got}.")
    contrasts, censoring = (model.contrasts, model.censoring) if isinstance(model, GRBM) else (UNIT, UNCENSORED)
    given = v0.to(energy.W)
    if contrasts.n > 1 and sampler.conditions:
        raise ValueError(
            "Conditional is not for a model of several contrasts, since that of a row is not known: see "
            "grbm.fitting.impute.impute_columns."
        )
    if censoring.n and sampler.conditions:
        raise ValueError(
            "Conditional is not for a censored model, whose measurements are intervals: sample model.freeze() by "
            "Conditional.of."
        )
    v0 = contrasts.removed(given, energy.free_energy, rng) if n_chains is None else given
    stops: Sequence[int] = range(burn_in + keep_every, n_steps + 1, keep_every) if keep_every else [n_steps]
    if keep_at is not None:
        stops = list(keep_at)
        if keep_every or not stops or stops != sorted(set(stops)) or not 0 <= stops[0] <= stops[-1] <= n_steps:
            raise ValueError(f"keep_at must rise from 0 or more to at most n_steps={n_steps}, got {stops}.")
    if not stops:
        raise ValueError(f"keep_every={keep_every} keeps nothing of {n_steps - burn_in} steps after burn-in.")
    kept = []
    states = _states_after(stops, energy, sampler, v0, n_steps, rng)
    for stop, chains in zip(stops, states, strict=True):
        v = energy.visible_mean(chains.h) if mean else chains.v
        if stop == 0 and v0 is not given and not mean:
            v = given
        else:
            v = contrasts.applied(v, Blocks(seed_of(seed, "contrasts", stop), 1, device=v.device))
        kept.append(chains._replace(v=censoring.recorded(v)))
    whole = keep_every or keep_at is not None
    return Chains(*(torch.stack(x) for x in list(zip(*kept, strict=True))[:3])) if whole else kept[0]


def _states_after(
    stops: Sequence[int], energy: Energy, sampler: Sampler, v: Tensor, n_steps: int, rng: Rng
) -> Iterator[Chains]:
    """The chains after each of these numbers of steps of a walk."""
    chains: Chains | None = None
    moves = moves_of(sampler, energy, n_steps) if isinstance(sampler, MoveSampler) else None
    for done, stop in pairwise([0, *stops]):
        stretch = Walk(v if chains is None else chains.v, stop - done, given=chains)
        if moves is None:
            whole = sampler.at_once(energy, stretch, rng)
        else:  # an engine runs them in stretches as fast as the whole
            whole = engine_for(energy.W, rng).run(energy, moves.part(done, stop), stretch, rng)
        if whole is None:
            break
        chains = whole.chains
        yield chains
    else:
        return
    chains = sampler.start(energy, v, rng)
    if 0 in stops:
        yield chains
    for t, chains, _ in walk(energy, sampler, chains, n_steps, rng):
        if t + 1 in stops:
            yield chains
