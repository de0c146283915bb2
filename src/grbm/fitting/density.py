"""`Fitted`: a trained model with its frame. Scores, samples, imputation and codes in the units of the data."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from grbm.core.options import Precision
from grbm.core.randomness import Blocks, generator, seed_of
from grbm.data.frame import Frame
from grbm.data.tables import Table, spread
from grbm.data.transforms import Elementwise
from grbm.data.weighting import mean_and_error
from grbm.evaluate import ais, censored, exact
from grbm.evaluate.lines import along
from grbm.evaluate.watching import log_z_of
from grbm.fitting.impute import impute_censored, impute_columns
from grbm.fitting.observed import observed_log_prob
from grbm.model import GRBM
from grbm.model.censoring import UNCENSORED, Interval
from grbm.model.reference import Reference
from grbm.samplers import Annealed, Chains, Gibbs, Sampler, sample
from grbm.samplers.conditional import Filled, Filling, Imputed, fill

DRAWS = 20  # Draws of the reference for each chain that AIS would have.
PARTING = 50  # Gibbs steps after resampling, in which copied chains part.
CHUNK = 8192  # Rows scored at a time.
LARGEST_SUM = 50_000_000  # Numbers that a mean over enumerated rows takes, beyond the fewest rows.
MOST_ANNEALED = 200  # Maximum number of annealed rows, evenly spaced, that a mean is taken of.
MOST_GAPPY = 500  # Maximum number of draws that rows with the same gaps are compared with.
OBSERVED_DRAWS = 512  # Draws for the log-density of the known values of a row with gaps.
CODE_DRAWS = 32  # Draws of a whitened row with gaps for its codes.
SCALED_DRAWS = 100  # Draws of each row whose mean and deviation are those of columns that are learned on another scale.
NUMBERS_DRAWN = 20_000_000  # Numbers of draws held for quantiles.
DRAWN_AT_ONCE = 256  # Draws of a row with gaps at a time.
FEWEST_ANNEALED = 256  # Fewest annealed chains: of fewer, importance weights are too uncertain.


class LogPartition(NamedTuple):
    """log Z in nats."""

    value: float
    error: float  # standard error; 0 where exact
    method: Literal["exact", "quadrature", "reference", "AIS"]
    verdict: str  # whether it can be trusted, in words
    converged: bool  # the same as a fact; True where exact
    found: ais.LogZ | None = None  # what was estimated


class Surprises(NamedTuple):
    """Conditional mean and deviation of each number given the others of its row: (n, N) each, float64."""

    away: Tensor  # number less conditional mean, in deviations: NaN where it is missing, ±inf beyond bounds
    mean: Tensor
    std: Tensor


class Score(NamedTuple):
    """A mean over rows, and its standard error: that of the rows and that of log Z together."""

    mean: float
    error: float
    n_rows: int
    n_without: int = 0  # rows left out: they have no density, since they break what held for all rows learned from
    n_unsure: int = 0  # rows whose estimate rests on few annealed chains, and may be nats too low


@dataclass(frozen=True, eq=False)
class Fitted:
    """A learned density: scores and samples in the units of the data.

    Parameters
    ----------
    frame : Frame
        Coordinates of the model.
    model : GRBM
        Of rows as the frame's transform gives them; computations run on its device.
    """

    frame: Frame
    model: GRBM

    def to(self, where: torch.device | torch.dtype) -> "Fitted":
        """A copy on another device, or of another dtype; itself where it is that already."""
        if where in (self.model.W.device, self.model.W.dtype):
            return self
        return replace(self, model=copy.deepcopy(self.model).to(where))

    def units(self, x: Tensor) -> Tensor:
        """Rows x (n, N) as the machine sees them (n, K), in its dtype, on its device."""
        return self.frame.transform.exactly(self.frame.inward(x.cpu())).to(self.model.W)

    @property
    def inner(self) -> "Fitted":
        """The density of rows as learning sees them (`Frame.inner`)."""
        return replace(self, frame=self.frame.inner)

    def columns(self, z: Tensor) -> Tensor:
        """Rows z (n, K) of the machine as rows of the data (n, N), float64, on the CPU."""
        return self.frame.columns(z.detach().cpu())

    @torch.no_grad()
    def log_partition(
        self,
        *,
        n_steps: int = 1000,
        n_chains: int = 500,
        seen: Tensor | None = None,
        seed: int = 1,
    ) -> LogPartition:
        """log Z of the machine.

        In the plane by quadrature, and up to 36 hidden units summed. Else bridged from the frame's reference
        (`grbm.evaluate.bridging`), with 20 draws of it for each of ``n_chains`` and a tenth of ``n_steps`` states of
        chains that jump by such draws; or, without one, by AIS from both ends with ``n_steps`` temperatures, beside
        chains from rows ``seen`` (n, K), which tell of a mode that others miss (`grbm.evaluate.ais`).
        """
        if (grid := exact.plane(self.model)) is not None:
            return LogPartition(grid.log_z, 0.0, "quadrature", "Exact.", converged=True)
        if exact.is_enumerable(self.model):
            return LogPartition(exact.log_z(self.model), 0.0, "exact", "Exact.", converged=True)
        jumps = self.frame.jumps()
        if jumps is not None:
            n_draws, n_states = DRAWS * n_chains, max(1, n_steps // 10)
            found = log_z_of(self.model, jumps, n_states=n_states, n_draws=n_draws, seed=seed)
        else:
            found = ais.log_z(self.model, seen, n_steps=n_steps, n_chains=n_chains, seed=seed)
        method: Literal["reference", "AIS"] = "AIS" if jumps is None else "reference"
        return LogPartition(found.log_z, found.error, method, f"{found.finding}.", found.converged, found)

    @torch.no_grad()
    def log_prob(self, x: Tensor, log_z: float) -> Tensor:
        """log p of rows x (n, N) in nats, in the units of the data: (n,) float64.

        The machine knows z, so log p(x) = −F(z) − log Z + log |dz/dx|: without the last term, two standardisations of
        the same data could not be compared. It is a density of the columns that the frame has kept; −inf where others
        contradict what held for all rows that were learned from, and beyond bounds.

        Of censored columns a value at a limit has a probability in place of a density. Above 12 hidden units that is
        estimated (`grbm.evaluate.censored`), from below on average.
        """
        return self.estimate(x, log_z).log_p

    @torch.no_grad()
    def estimate(self, x: Tensor, log_z: float) -> censored.Estimate:
        """`log_prob` of rows x (n, N), with standard errors and effective numbers of chains where it is estimated.

        For rows with gaps (NaN) it is the log-density of the known values, by importance sampling or annealed chains.
        Of coarse columns it is that of a mean over cells (`grbm.data.grid`).
        """
        x = x.cpu()
        frame = self.frame
        broken = frame.breaks(x).any(1)
        x = torch.where(frame.bounds.breaks(x), frame.bounds.moved_inside(x), x)  # the others stay as they are
        places = list(frame.grid.points(x))
        n_draws = max(1, OBSERVED_DRAWS // len(places))  # which are averaged too
        found = censored.averaged([self._estimate(place, log_z, n_draws, seed) for seed, place in enumerate(places)])
        return found._replace(log_p=found.log_p.masked_fill(broken, -torch.inf))

    def _estimate(self, x: Tensor, log_z: float, n_draws: int, seed: int) -> censored.Estimate:
        """The same, at rows x (n, N) themselves, of which those with gaps have so many draws by ``seed``."""
        gappy = x.isnan().any(1)
        found = censored.Estimate(*torch.zeros(3, len(x), dtype=torch.float64))
        for here in (~gappy, gappy):
            if not here.any():
                continue
            if self.is_mixed and here is gappy:
                how = self.model, self.frame.transform, self._reference
                known = self.frame.inward(x[here])
                part = observed_log_prob(*how, known, log_z, n_draws=n_draws, seed=seed)
            else:
                part = self._log_prob(self.frame.intervals(x[here]), log_z)
            for whole, some in zip(found, part, strict=True):
                whole[here] = some
        return found._replace(log_p=found.log_p + self.frame.log_slope(x))

    @property
    def is_mixed(self) -> bool:
        """Whether units depend on several columns, or rows on a contrast."""
        return self.frame.is_whitened or self.model.contrasts.n > 1

    @property
    def _reference(self) -> Reference:
        """Reference mixture of the frame; without one, a Gaussian with the variances of the base."""
        if (jumps := self.frame.jumps()) is not None:
            return jumps.reference
        base = self.frame.base
        return Reference(torch.ones(1), base.mean[None], base.var.sqrt().diag()[None])

    def _log_prob(self, within: Interval, log_z: float, seed: int = 0) -> censored.Estimate:
        """log p of rows that are intervals of units (n, K), a density of columns where they are known."""
        found = censored.IntervalRows(self.model, within, self.frame.base, seed=seed).log_prob(log_z)
        return found._replace(log_p=found.log_p + self.frame.log_det(within))

    def log_likelihood(
        self,
        rows: Table,
        log_z: float,
        log_z_error: float = 0.0,
        *,
        weights: Tensor | None = None,
        levels: int | None = None,
        seed: int = 0,
    ) -> Score:
        """Mean log-density of ``rows`` (n, N), in nats per sample; of those that have one.

        Parameters
        ----------
        rows : Tensor or StoredTable
            In their own units; tables may be larger than memory. Of rows with gaps (NaN) the known values count.
        log_z, log_z_error : float
            As `log_partition` gives them.
        weights : Tensor, optional
            (n,) float64, by which rows count; all alike by default.
        levels : int, optional
            For numbers k/(levels − 1), k = 0..levels − 1, such as pixels: dequantise. A density can be arbitrarily high
            at single points, so each k becomes k + u, u uniform in [0, 1), and what is returned is the density of k +
            u. Its mean is at most the log-probability of the integers themselves (Theis, van den Oord & Bethge 2016),
            in nats; `bits_per_dimension` turns it round. Of censored columns it is that probability itself.
        seed : int
            Of u.
        """
        frame, is_censored = self.frame, self.frame.censoring is not UNCENSORED
        width = 0.0 if levels is None else 1 / (levels - 1)
        unit = 0.0 if levels is None or is_censored else int(frame.transform.kept.sum()) * math.log(levels - 1)
        numbers = spread(len(rows), self._most_scored if is_censored else len(rows))
        rng, found, scored = generator(seed, "dequantisation"), [], []
        for some in torch.split(numbers, CHUNK):
            x = rows[some].double()
            is_whole = ~frame.breaks(x).any(1)
            x = x[is_whole]
            scored.append(some[is_whole])
            if levels is not None and not is_censored:
                x = x + (torch.rand(x.shape, generator=rng, dtype=torch.float64) - 0.5) / (levels - 1)
            if frame.grid.n or frame.bounds.n or x.isnan().any():
                found.append(self.estimate(x, log_z))
            else:
                found.append(self._log_prob(frame.intervals(x, width if is_censored else 0.0), log_z, seed))
        log_p, n_effective = (torch.cat([getattr(part, name) for part in found]) for name in ("log_p", "n_effective"))
        log_p, n = log_p - unit, len(log_p)
        if n == 0:
            return Score(-math.inf, 0.0, 0, len(numbers))
        mean, error = mean_and_error(log_p, None if weights is None else weights[torch.cat(scored)])
        n_unsure = int((n_effective < censored.FEWEST).sum())
        return Score(mean, math.hypot(error, log_z_error), n, len(numbers) - n, n_unsure)

    @torch.no_grad()
    def p_values(self, x: Tensor, *, n_draws: int = 2000, seed: int = 1) -> Tensor:
        """Share of the model's own draws that are no likelier than each row x (n, N): (n,), float64.

        It is uniform in [0, 1] for rows that the model describes, and near 0 for rows unlike them; 1/(n_draws + 1) at
        the least. log Z cancels, and so do units. Rows that break what held for all rows learned from have the least.
        A row with gaps (NaN) is compared with at most 500 draws, by its known values.
        """
        log_p, found = self.log_prob(x, 0.0), torch.empty(len(x), dtype=torch.float64)
        for rows, drawn in self.own_scores(x, n_draws=n_draws, seed=seed):
            at_most = torch.searchsorted(drawn, log_p[rows], right=True)
            found[rows] = (1 + at_most).double() / (len(drawn) + 1)
        return found

    @torch.no_grad()
    def own_scores(self, x: Tensor, *, n_draws: int = 2000, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """For rows of x (n, N) with the same gaps: their numbers, and log p + log Z of the known values of own draws.

        These are in rising order: ``n_draws``, or fewer where scores take long, of annealed rows or rows with gaps.
        """
        drawn = self.sample(self.n_compared(n_draws), seed=seed)
        patterns, which = torch.unique(x.isnan(), dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
        for k, gaps in enumerate(patterns):
            alike = drawn[: self.n_compared(n_draws, gaps=True)].masked_fill(gaps, torch.nan) if gaps.any() else drawn
            yield (which == k).nonzero()[:, 0], self.log_prob(alike, 0.0).sort().values

    def n_compared(self, n_draws: int = 2000, *, gaps: bool = False) -> int:
        """Number of draws that a row is compared with by `p_values`, with ``gaps`` or without."""
        if self.frame.censoring is not UNCENSORED and self.model.n_hidden > censored.ENUMERATED:
            n_draws = min(n_draws, MOST_ANNEALED)
        return min(n_draws, MOST_GAPPY) if gaps else n_draws

    @torch.no_grad()
    def surprises(self, x: Tensor, filling: Filling = Filling()) -> Surprises:
        """Compare each number of rows x (n, N) with its distribution given the others of its row.

        Numbers beyond bounds say nothing of others. A number that follows from the others has no deviation, and is
        far from them wherever it differs by more than its digits.

        Means and deviations are those of `impute`, so mostly exact for rows without gaps.
        """
        N, digits, x = x.shape[1], 1e-9 if x.dtype == torch.float64 else 1e-6, x.double()
        beyond, parts = self.frame.bounds.breaks(x), []
        for k, rows in enumerate(torch.split(x.masked_fill(beyond, torch.nan), max(1, CHUNK // N))):
            each = rows[:, None].repeat(1, N, 1)  # (n, N, N), in each copy of a row another number is missing
            each.diagonal(dim1=1, dim2=2).fill_(torch.nan)
            how = filling._replace(seed=seed_of(filling.seed, "surprises", k))
            found = self.impute(each.flatten(0, 1), filling=how)
            parts.append(torch.stack([part.view_as(each).diagonal(dim1=1, dim2=2) for part in found]))
        mean, std = torch.cat(parts, 1)
        apart = x - mean
        away = apart / std.clamp_min(digits * mean.abs().clamp_min(1e-290))
        return Surprises(torch.where(beyond, torch.inf * apart.sign(), away), mean, std)

    @property
    def _most_scored(self) -> int:
        """Maximum number of censored rows that a mean is taken of: more where few states are enumerated."""
        if self.model.n_hidden > censored.ENUMERATED:
            return MOST_ANNEALED
        return max(MOST_ANNEALED, LARGEST_SUM // (self.model.n_visible << self.model.n_hidden))

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Hidden probabilities p(h = 1 | x) of rows x (n, N): (n, M), on the CPU.

        Of censored columns they are means over the latent values beyond the limits: by enumeration of few hidden units,
        else over annealed chains. Of rows with gaps (NaN) they are means over the missing values.
        """
        gappy = x.isnan().any(1)
        if not gappy.any() or not self.is_mixed:
            return self._annealed_once(x).hidden()
        codes = torch.empty(len(x), self.model.n_hidden, dtype=self.model.W.dtype)
        codes[~gappy] = self._annealed_once(x[~gappy]).hidden()
        draws = self.sample_given(x[gappy], Filling(n_chains=CODE_DRAWS))
        each = self._annealed_once(draws.flatten(0, 1)).hidden()
        codes[gappy] = each.view(-1, CODE_DRAWS, self.model.n_hidden).mean(1)
        return codes

    @torch.no_grad()
    def latent(self, x: Tensor, seed: int = 0) -> Tensor:
        """Latent values (n, K) of rows x (n, N), in units: drawn where x is at a limit, else x itself."""
        return self._annealed_once(x, seed).latent()

    def _annealed_once(self, x: Tensor, seed: int = 0) -> censored.IntervalRows:
        """Rows x (n, N) with chains enough for codes and draws."""
        within = self.frame.intervals(x.cpu())
        return censored.IntervalRows(self.model, within, self.frame.base, n_chains=8, seed=seed)

    @torch.no_grad()
    def sample(self, n: int, *, n_steps: int = 500, seed: int = 1) -> Tensor:
        """Draws (n, N) in the units of the data: chains of ``n_steps`` Gibbs steps, or as many moves with as many.

        Chains of whitened data start at annealed hidden units and jump by draws of what describes the data. Others are
        annealed from the frame's base, and their importance weights give far clusters their shares.
        """
        if (jumps := self.frame.jumps()) is not None:
            return self.columns(self.walk(jumps, n, n_steps=-(-n_steps // jumps.n_moves), seed=seed).v)
        path = Annealed(self.frame.base)
        is_censored = self.frame.censoring is not UNCENSORED
        source = self.model.freeze() if is_censored else self.model  # chains go on from latent values
        drawn = sample(source, path, n_chains=max(n, FEWEST_ANNEALED), n_steps=n_steps, seed=seed)
        some = torch.randperm(len(drawn.v), generator=generator(seed, "some"))[:n]
        v0 = drawn.v[some.to(drawn.v.device)]
        return self.columns(sample(source, Gibbs(), v0=v0, n_steps=PARTING, seed=seed).v)

    @torch.no_grad()
    def walk(
        self,
        sampler: Sampler,
        n: int,
        *,
        n_steps: int,
        seed: int = 1,
        mean: bool = False,
        keep_at: Sequence[int] | None = None,
        precision: Precision = "highest",
    ) -> Chains:
        """``n`` chains of ``sampler`` from noise, as `grbm.sample` runs them, in the machine's units.

        Where the sampler can begin anew (`Sampler.anew`), as `GlobalMoves` does at annealed hidden units, they do.
        """
        energy = self.model.freeze(precision)
        v0 = sampler.anew(energy, n, Blocks(seed_of(seed, "annealed"), 1, device=energy.W.device))
        how: dict[str, Any] = {"n_steps": n_steps, "seed": seed, "mean": mean, "keep_at": keep_at}
        if v0 is None:
            return sample(self.model, sampler, n_chains=n, precision=precision, **how)
        chains = sample(energy, sampler, v0=v0, **how)  # at unit contrast
        v = self.model.at_any_contrast(chains.v, generator(seed, "contrasts", device=v0.device))
        return chains._replace(v=v)

    @torch.no_grad()
    def impute(self, x: Tensor, noise_std: Any = 0.0, filling: Filling = Filling()) -> Imputed:
        """Means and deviations of what rows x (n, N) are without gaps (NaN), and without noise; float64.

        They are exact (`grbm.evaluate.lines`) where a row lacks one number, without noise, limits or bounds there, and
        no column follows from others. Else they are over chains.

        Parameters
        ----------
        x : Tensor
        noise_std : number or array
            Deviation of normal noise, one or one for each column. What is known without it is given back as it is.
        filling : Filling
            Chains for each row; replicas go with units that are columns. Of columns with bounds the mean and the
            deviation are those of 100 draws, or of as many as chains.

        Raises
        ------
        ValueError
            For replicas where units are no columns, or rows have several contrasts; for known values beyond bounds, and
            noise in columns with bounds.
        """
        return self._filled(x, noise_std, filling).imputed

    @torch.no_grad()
    def sample_given(self, x: Tensor, filling: Filling = Filling()) -> Tensor:
        """Draw the missing values (NaN) of rows x (n, N) given the known ones: (n, filling.n_chains, N), float64.

        Each draw is the last state of a chain.
        """
        parts = []
        for first in range(0, filling.n_chains, DRAWN_AT_ONCE):
            n, seed = min(DRAWN_AT_ONCE, filling.n_chains - first), seed_of(filling.seed, "given", first)
            parts.append(self._filled(x, 0.0, filling._replace(n_chains=n, seed=seed, keep_draws=True)).draws)
        return torch.cat(parts, 1)

    @torch.no_grad()
    def quantiles(self, x: Tensor, shares: Sequence[float], filling: Filling = Filling(n_chains=200)) -> Tensor:
        """Quantiles of the missing values (NaN) of rows x (n, N) given the known ones: (len(shares), n, N), float64.

        They are of ``filling.n_chains`` draws of each row. What is known is its own quantile.
        """
        found = x.double().cpu().expand(len(shares), *x.shape).clone()
        at = torch.tensor(shares, dtype=torch.float64)
        gappy = x.isnan().any(1).nonzero()[:, 0]
        n_together = max(1, NUMBERS_DRAWN // (filling.n_chains * x.shape[1]))
        for first, some in enumerate(torch.split(gappy, n_together) if len(gappy) else ()):
            how = filling._replace(seed=seed_of(filling.seed, "quantiles", first))
            found[:, some] = self.sample_given(x[some], how).quantile(at, dim=1)
        return found

    def _filled(self, x: Tensor, noise_std: Any, filling: Filling) -> Filled:
        frame, given = self.frame, x.double().cpu()
        noise_var = torch.as_tensor(noise_std, dtype=torch.float64).square()
        if not (noise_var < torch.inf).all():
            raise ValueError(f"noise_std must be finite numbers, got {noise_std}.")
        grid = frame.grid
        x = frame.as_learned(given, seed_of(filling.seed, "cells"))
        if not frame.is_scaled.any():
            found = self.inner._filled_as_learned(x, noise_var, filling)
        else:
            noise_var = noise_var.expand(given.shape)
            if (noise_var > 0)[:, frame.is_scaled].any():
                raise ValueError("noise goes with columns without bounds, and not with coarse ones of a common number.")
            found = self._averaged_outward(x, noise_var, filling)
        known = ~given.isnan() & (noise_var == 0)
        draws = torch.where(known[:, None], given[:, None], grid.rounded(found.draws))
        mean = torch.where(known, given, grid.rounded(found.mean))
        return Filled(mean, torch.where(known, 0.0, found.std), draws)

    def _averaged_outward(self, x: Tensor, noise_var: Tensor, filling: Filling) -> Filled:
        """The same of rows x (n, N) as learning sees them, in columns on another scale by averages over draws.

        Draws are held of some rows at a time, unless they are asked for; rows that are known wholly need none.
        """
        mean, std, draws = x.clone(), torch.zeros_like(x), filling.new_draws(x)
        n_chains = filling.n_chains if filling.keep_draws else max(SCALED_DRAWS, filling.n_chains)
        unsure = (x.isnan() | (noise_var > 0)).any(1).nonzero()[:, 0]
        for first, some in enumerate(torch.split(unsure, max(1, NUMBERS_DRAWN // (n_chains * x.shape[1])))):
            seed = seed_of(filling.seed, "bounds", first)
            how = filling._replace(n_chains=n_chains, keep_draws=True, seed=seed)
            found = self.inner._filled_as_learned(x[some], noise_var[some], how)
            outward, is_scaled = self.frame.outward(found.draws), self.frame.is_scaled
            mean[some] = torch.where(is_scaled, outward.mean(1), found.mean)
            std[some] = torch.where(is_scaled, outward.std(1, correction=0), found.std)
            if filling.keep_draws:
                draws[some] = outward
        return Filled(mean, std, draws)

    def _filled_as_learned(self, x: Tensor, noise_var: Tensor, filling: Filling) -> Filled:
        """The same of rows x (n, N) as learning sees them: by quadrature of what lacks one number, else by chains."""
        if filling.n_replicas and self.is_mixed:
            raise ValueError("n_replicas goes with rows that are neither whitened nor of several contrasts.")
        frame = self.frame
        can_be_exact = frame.censoring is UNCENSORED and not frame.collinear and not filling.keep_draws
        lacks_one = (x.isnan().sum(1) == 1) & ~x[:, ~frame.transform.kept].isnan().any(1)
        if not can_be_exact or (noise_var > 0).any() or not lacks_one.any():
            return self._filled_by_chains(x, noise_var, filling)
        found = Filled(x.clone(), torch.zeros_like(x), filling.new_draws(x))
        for k in x[lacks_one].isnan().any(0).nonzero()[:, 0]:
            rows = lacks_one & x[:, k].isnan()
            found.mean[rows, k], found.std[rows, k] = self._along_column(x[rows], int(k))
        others = (x.isnan().any(1) & ~lacks_one).nonzero()[:, 0]
        if len(others):
            part = self._filled_by_chains(x[others], noise_var, filling)
            found.mean[others], found.std[others] = part.mean, part.std
        return found

    def _along_column(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Exact mean and deviation of column k of rows x (n, N), which lack it alone: (n,) each."""
        transform, mean = self.frame.transform, self.frame.transform.mean[k]
        projection = transform.projection
        direction = torch.eye(transform.n_units).double()[k] if projection is None else projection[k]
        at_mean = transform.exactly(x.index_fill(1, torch.tensor([k]), float(mean)))
        line = along(self.model, at_mean, direction)
        return mean + transform.scale[k] * line.mean, transform.scale[k] * line.var.sqrt()

    def _filled_by_chains(self, x: Tensor, noise_var: Tensor, filling: Filling) -> Filled:
        """The same, of any rows."""
        transform, base = self.frame.transform, self.frame.base
        if self.frame.censoring is not UNCENSORED:
            if (noise_var > 0).any():
                raise ValueError("noise goes with columns that are not censored.")
            return impute_censored(self.model, self.frame, x, filling)
        if isinstance(transform, Elementwise) and not self.is_mixed:
            noise = (noise_var.sqrt() / transform.scale)[..., transform.columns].square().to(self.model.W)
            found = fill(self.model, self.units(x), noise, filling, base)
            std = transform.columns_of(found.std.cpu()) * transform.scale
            draws = self.columns(found.draws.flatten(0, 1)).view(*found.draws.shape[:2], x.shape[1])
            return Filled(transform.inverse(found.mean.cpu()), std, draws)
        return impute_columns(self.model, transform, self._reference, x, noise_var, filling)


def bits_per_dimension(score: Score, n_visible: int) -> Score:
    """−log₂ p per visible unit, from nats per sample of dequantised rows."""
    unit = n_visible * math.log(2)
    return Score(-score.mean / unit, score.error / unit, score.n_rows)
