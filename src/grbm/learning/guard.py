"""The guard against divergence: it looks at every gradient, and keeps the last parameters that had a sensible one."""

import torch
from torch import Tensor, nn

from grbm.core.errors import Divergence, DivergenceError, Remedy
from grbm.model import Energy
from grbm.samplers import Sampler

LOOK_EVERY = 25  # updates after which a GPU is waited for, to see whether the numbers are still sensible
EXPLODED = 1e6  # root-mean-square gradient per parameter beyond which nothing sensible is being learned


def is_deferred(x: Tensor) -> bool:
    """Whether looking at a number such as those of ``x`` would make the host wait for the device."""
    return x.is_cuda


def looks(update: int, like: Tensor) -> bool:
    """Whether numbers are looked at in this update: in every one, but on a GPU only now and then."""
    return not is_deferred(like) or update % LOOK_EVERY == 0


class Guard:
    """A guard keeps what training falls back on."""

    def __init__(self, last_good: dict[str, Tensor] | None = None) -> None:
        self.last_good = last_good  # parameters, the last whose gradient was known to be sensible
        self.broken: Tensor | None = None  # on a GPU: whether some gradient since was not, which stops learning

    def check(
        self, model: nn.Module, energy: Energy, sampler: Sampler, update: int, grad_norm: Tensor, chains_v2: Tensor
    ) -> None:
        """Look at the gradient in ``model`` before it is followed, of the norm ``grad_norm``.

        The ``sampler`` ran chains under ``energy``, with mean squares ``chains_v2`` by visible unit (N,). Raises
        DivergenceError: after a gradient that is not sensible the parameters are back at the last good ones; a Langevin
        step that is too long for some unit is found before it is made. On a GPU it comes within `LOOK_EVERY` updates,
        until which `broken` keeps such a gradient from being followed.
        """
        limit = EXPLODED * sum(p.numel() for p in model.parameters()) ** 0.5
        if is_deferred(energy.W):
            broken = ~(grad_norm < limit)  # also where it is NaN
            self.broken = broken if self.broken is None else self.broken.logical_or_(broken)
        if looks(update, energy.W):
            divergence = overshoot(update, energy, sampler)
            if divergence is None and (not float(grad_norm) < limit or self.broken):
                divergence = _explosion(update, energy, sampler, chains_v2, model)
            if divergence is not None:
                self._fall_back(model, divergence)
            self.last_good = kept(model, energy)

    def settle(self, model: nn.Module, update: int) -> None:
        """Wait for the device, and raise DivergenceError if an update since `last_good` was broken."""
        if self.broken is not None and self.broken:
            since = max(0, update - 1) // LOOK_EVERY * LOOK_EVERY
            self._fall_back(model, Divergence("gradient", update, ("learning_rate", "min_var"), since=since))

    def _fall_back(self, model: nn.Module, divergence: Divergence) -> None:
        if divergence.cause == "gradient":
            model.load_state_dict(self.last_good or model.state_dict())
        self.broken = None
        raise DivergenceError(divergence)


def kept(model: nn.Module, energy: Energy) -> dict[str, Tensor]:
    """Copies of the parameters, of which ``energy`` has most."""
    frozen = {"W": energy.W, "b": energy.b, "mu": energy.mu}
    return {n: frozen[n] if n in frozen else p.clone() for n, p in model.state_dict().items()}


def overshoot(update: int, energy: Energy, sampler: Sampler) -> Divergence | None:
    """Above α/(Tσ²) = 2 a Langevin proposal overshoots: unadjusted chains explode, adjusted ones reject everything."""
    ratios = sampler.overshoot(energy)
    if ratios is None or not float(ratios.max()) > 2:
        return None
    ratio, unit = ratios.max(0)
    where = int(unit), float(energy.var[unit])
    return Divergence("step size", update, ("per_unit", "step_size", "min_var"), *where, overshoot=float(ratio))


def _explosion(update: int, energy: Energy, sampler: Sampler, chains_v2: Tensor, model: nn.Module) -> Divergence:
    """Name the visible unit that left the sensible world first, or whose gradient is the steepest, and what to do."""
    log_var = energy.var.log()
    W, mu, slope = (p.grad for p in (model.get_parameter(name) for name in ("W", "mu", "log_var")))
    assert W is not None
    assert mu is not None
    assert slope is not None
    bad = ~torch.isfinite(log_var + chains_v2 + slope)
    steep = (W.square().sum(1) + mu.square() + slope.square()).nan_to_num(torch.inf)
    unit = int((log_var.abs().nan_to_num(torch.inf) + 1e6 * bad if bad.any() else steep).argmax())
    remedies: tuple[Remedy, ...] = ("learning_rate",)
    if sampler.has_step_size:
        remedies = (*remedies, "step_size")
    if log_var[unit] < 0:
        remedies = ("min_var", *remedies)
    return Divergence("gradient", update, remedies, unit, float(energy.var[unit]), float(chains_v2[unit]))
