"""From the moments at data and under the chains, of all processes, to the gradient that the optimizer follows."""

import torch
from torch import Tensor

from grbm.distributed import ProcessGroup
from grbm.model import GRBM, Energy
from grbm.moments import Moments, MomentSum, Pooled, ascent, centre
from grbm.objectives import Negative
from grbm.samplers.chains import Swaps
from grbm.samplers.engines import native_learning


def pool(data: MomentSum, chains: Negative, group: ProcessGroup) -> Pooled:
    """Add up what all processes found, in one exchange."""
    N, M = data.sums.vh.shape[1:]
    shapes: dict[str, tuple[int, ...]] = {"v": (N,), "v2": (N,), "h": (M,), "vh": (N, M)}
    shapes |= {"data_v": (N,), "data_h": (M,), "chains_v2": (N,)}
    if chains.accept_rate is not None:
        shapes["accept_rate"] = tuple(chains.accept_rate.shape)
    if chains.swaps is not None:
        shapes["n_accepted"] = tuple(chains.swaps.n_accepted.shape)
    buffer, sums = group.places(shapes, chains.v.device)
    if native_learning.serves(*data.sums, *chains.sums.sums):
        native_learning.pool(data, chains.sums, sums)
    else:
        at_data, at_chains = data.total(), chains.sums.total()
        for name, a, b in zip(Moments._fields, at_data, at_chains, strict=True):
            torch.sub(a * chains.sums.count, b, alpha=data.count, out=sums[name])
        for name, x in (("data_v", at_data.v), ("data_h", at_data.h), ("chains_v2", at_chains.v2)):
            sums[name].copy_(x)
    if chains.accept_rate is not None:
        sums["accept_rate"].copy_(chains.accept_rate)
    if chains.swaps is not None:
        sums["n_accepted"].copy_(chains.swaps.n_accepted)
    group.exchange(buffer)
    size, like = group.world_size, chains.v
    n_data, n_chains = data.count * size, chains.sums.count * size
    return Pooled(
        difference=Moments(*(sums[name] for name in Moments._fields)),
        scale=size / (n_data * n_chains),
        data_v=sums["data_v"],
        data_h=sums["data_h"],
        n_data=n_data,
        mean_v2=sums["chains_v2"].to(like) / n_chains,
        mean_h=sums["data_h"].to(like) / n_data,
        accept_rate=(sums["accept_rate"] / size).to(like) if "accept_rate" in sums else None,
        swap_rate=None if chains.swaps is None else Swaps(sums["n_accepted"], chains.swaps.n_proposed * size).rate(),
    )


def set_gradients(model: GRBM, energy: Energy, pooled: Pooled, *, centred: bool) -> Tensor:
    """Hand the optimizer, which goes downhill, the gradient; returns its norm over all parameters together.

    On a CPU it may be written over the last one.
    """
    own = {name for name, _ in model.named_parameters()} - {"W", "b", "mu", "log_var"}
    if not own and native_learning.serves(energy.W, model.W):
        return native_learning.set_gradients(model, energy, pooled, centred=centred)
    uphill = ascent(energy, Moments(*(x * pooled.scale for x in pooled.difference)))
    if centred:
        uphill = centre(energy, uphill, pooled.data_v.to(energy.W) / pooled.n_data, pooled.mean_h)
    for name, step in uphill.items():
        model.get_parameter(name).grad = -step
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
