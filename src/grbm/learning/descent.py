"""From the moments at data and under the chains, of all processes, to the gradient that the optimizer follows."""

import math

import torch
from torch import Tensor
from torch.optim import optimizer as everywhere

from grbm.core.distributed import ProcessGroup
from grbm.core.randomness import Blocks
from grbm.learning.guard import is_deferred
from grbm.learning.objectives import Contrastive, Negative, Objective
from grbm.learning.sgd import PlainSGD
from grbm.model import GRBM, Energy
from grbm.samplers import GlobalMoves, MoveSampler
from grbm.samplers.chains import Swaps, Walk
from grbm.samplers.engines import engine_for, engine_on, native_learning
from grbm.samplers.engines.definition import Jumping, LearningEngine
from grbm.samplers.engines.native import jumps_natively
from grbm.samplers.moments import Moments, MomentSum, Pooled, ascent, centre
from grbm.samplers.moves import moves_of


def pool(data: MomentSum, chains: Negative, group: ProcessGroup) -> Pooled:
    """Add up what all processes found, in one exchange."""
    assert chains.sums is not None
    shapes: dict[str, tuple[int, ...]] = {name: x.shape[1:] for name, x in data.sums._asdict().items()}
    shapes |= {"data_v": shapes["v"], "data_h": shapes["h"], "chains_v2": shapes["v"]}
    rates = {} if chains.accept_rate is None else {"accept_rate": chains.accept_rate}
    if chains.swaps is not None:
        rates["n_accepted"] = chains.swaps.n_accepted
    shapes |= {name: x.shape for name, x in rates.items()}
    is_whole = is_deferred(chains.v) and group.world_size == 1  # nothing travels: float32 will do, at half the memory
    buffer, sums = group.places(shapes, chains.v.device, chains.v.dtype if is_whole else torch.float64)
    if native_learning.serves(*data.sums, *chains.sums.sums):
        native_learning.pool(data, chains.sums, sums)
    else:
        at_data, at_chains = (x.total(buffer.dtype) for x in (data, chains.sums))
        for name, a, b in zip(Moments._fields, at_data, at_chains, strict=True):
            torch.sub(a * chains.sums.count, b, alpha=data.count, out=sums[name])
        for name, x in (("data_v", at_data.v), ("data_h", at_data.h), ("chains_v2", at_chains.v2)):
            sums[name].copy_(x)
    for name, x in rates.items():
        sums[name].copy_(x)
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


def phases_at_once(
    model: GRBM,
    energy: Energy,
    objective: Objective,
    v_data: Tensor,
    persistent: Tensor | None,
    rng: Blocks,
    group: ProcessGroup,
    *,
    centred: bool,
) -> tuple[Negative, Pooled, Tensor] | None:
    """Compute both phases and the gradient at once, where an engine can; otherwise None.

    The negative phase, what is pooled and the norm of the gradient, which is in the model, are those of `positive`,
    ``objective.negative``, `pool` and `set_gradients`: on a CPU bit for bit, on a GPU but for rounding, without sums.
    """
    sampler = objective.sampler
    if not isinstance(objective, Contrastive) or type(objective).negative is not Contrastive.negative:
        return None  # engines know no other negative phase
    if not (isinstance(sampler, MoveSampler) or type(sampler) is GlobalMoves):  # others may step otherwise
        return None
    plain = persistent is None or persistent.ndim == 2  # not replicas
    engine = None if native_learning.serves(energy.W, model.W) else engine_for(energy.W, rng)  # None: native code
    if (
        not plain
        or group.world_size > 1
        or has_own(model)
        or not (engine is None or isinstance(engine, LearningEngine))
    ):
        return None
    if isinstance(sampler, GlobalMoves) and (
        engine is not None or not jumps_natively(energy, moves_of(sampler.sampler, energy, sampler.n_moves))
    ):
        return None
    first = rng.draw
    rng.draw += 1  # that of the positive phase
    data, walk = Walk(v_data, 0, -1, objective.data_probabilities), objective.start(energy, v_data, persistent, rng)
    jumping: Jumping | None = None
    if isinstance(sampler, GlobalMoves):
        moves, jumping = sampler.moves_and_jumps(energy)
    else:
        moves = moves_of(sampler, energy, walk.n_steps)
    sums: MomentSum | None = None
    if engine is None:
        v, sums, pooled, grad_norm = native_learning.learn(
            model, energy, moves, jumping, data, walk, rng, first, centred=centred
        )
    else:
        v, pooled, grad_norm = engine.learn(model, energy, moves, data, walk, rng, first, centred=centred)
    group.heed_own()
    return Negative(sums, v if objective.persists else None, pooled.accept_rate, v), pooled, grad_norm


def has_own(model: GRBM) -> bool:
    """Whether it has parameters of its own, beside those of a GRBM."""
    return len(model._parameters) + len(model._modules) > 4


def set_gradients(model: GRBM, energy: Energy, pooled: Pooled, *, centred: bool) -> Tensor:
    """Hand the optimizer, which goes downhill, the gradient; returns its norm over all parameters together.

    On a CPU it may be written over the last one.
    """
    if not has_own(model) and native_learning.serves(energy.W, model.W):
        return native_learning.set_gradients(model, energy, pooled, centred=centred)
    assert pooled.difference is not None
    uphill = ascent(energy, Moments(*(x * pooled.scale for x in pooled.difference)))
    if centred:
        uphill = centre(energy, uphill, pooled.data_v.to(energy.W) / pooled.n_data, pooled.mean_h)
    for name, step in uphill.items():
        model.get_parameter(name).grad = -step
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def clip_factor(grad_norm: Tensor, clip_norm: float | None) -> float | Tensor:
    """Factor that brings the norm of the gradient to at most ``clip_norm``; on a GPU, which is not waited for, ()."""
    if clip_norm is None:
        return 1.0
    factor = clip_norm / (grad_norm + 1e-6)
    return factor.clamp(max=1.0) if is_deferred(grad_norm) else min(1.0, float(factor))


def shorten(model: GRBM, factor: float | Tensor) -> None:
    """Multiply the gradient by ``factor``."""
    for parameter in model.parameters():
        if (isinstance(factor, Tensor) or factor != 1) and parameter.grad is not None:
            parameter.grad.mul_(factor)


@torch.no_grad()
def descend(
    model: GRBM,
    optimizer: torch.optim.Optimizer,
    factor: float | Tensor,
    min_var: float,
    broken: Tensor | None = None,
) -> None:
    """Let the optimizer follow ``factor`` times the gradient, and keep the variances from falling below ``min_var``.

    Where ``broken`` () is true, on a GPU, the gradient counts as 0, whatever became of it.
    """
    least, followers = math.log(min_var), [(p, g["lr"]) for g in optimizer.param_groups for p in g["params"]]
    whole = [x for p, _ in followers for x in (p, p.grad) if x is not None]
    fit = len(whole) == 2 * len(followers) and {p for p, _ in followers} == set(model.parameters())
    fit = fit and is_plain(optimizer) and all(x.is_contiguous() for x in whole)
    floors = {model.log_var: least}
    if fit and broken is None and native_learning.serves(*whole):
        native_learning.descend([(p, float(rate), floors.get(p, -math.inf)) for p, rate in followers], float(factor))
        return
    if fit and all(map(is_deferred, whole)):
        following = [(p, number_for(p, rate), floors.get(p, -math.inf)) for p, rate in followers]
        engine_on(model.W.device).descend(following, number_for(model.W, factor), broken)
        return
    shorten(model, factor)
    if broken is not None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.masked_fill_(broken, 0.0)
    optimizer.step()
    model.log_var.clamp_(min=least)


def number_for(like: Tensor, number: float | Tensor) -> Tensor:
    """A number as a tensor () beside ``like``: a recorded update is the same with another number in it."""
    return number.to(like) if isinstance(number, Tensor) else like.new_full((), number)


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is x − lr · gradient, and nothing hangs on it."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or "step" in vars(optimizer)
    hooks = hooks or everywhere._global_optimizer_pre_hooks or everywhere._global_optimizer_post_hooks
    plain = {"momentum": 0, "weight_decay": 0, "maximize": False, "differentiable": False}
    return (
        type(optimizer) in (torch.optim.SGD, PlainSGD)
        and not hooks
        and all(g[name] == value for g in optimizer.param_groups for name, value in plain.items())
    )
