"""Bennett's acceptance ratio: the ratio of two partition functions from draws of both densities."""

import math

import torch
from torch import Tensor

CLOSE = 1e-5  # nats of a Newton step, which leaves at most half its square, as |f''| <= |f'|
MOST = 100  # guesses


def bennett(forth: Tensor, back: Tensor) -> tuple[float, float]:
    """log(Z_1/Z_0) from log weights of both ways, and its standard error (Bennett 1976; Shirts et al. 2003)."""
    found = crossing(forth, back, torch.ones_like(forth)[None], torch.ones_like(back)[None])
    sides = both_sides(forth, back, found + math.log(len(forth) / len(back)))
    variance = sum((float(f.square().mean() / f.mean().square()) - 1) / len(f) for f in sides)
    return float(found), math.sqrt(max(0.0, variance))


def crossing(forth: Tensor, back: Tensor, keep_forth: Tensor, keep_back: Tensor) -> Tensor:
    """log(Z_1/Z_0) from log weights forth (n,) and back (m,), which count by ``keep_forth`` (G, n) and ``keep_back``
    (G, m): (G,).

    L solves Σ_forth f(L − w + s) = Σ_back f(w − L − s) for f(x) = 1/(1 + e^x) and s = log n_forth/n_back; the
    difference of the two sums falls with L. Newton's method finds it, by halves where its steps do not shrink, from
    between the means of the weights; all but the first of several begin where that one has come to.
    """
    shift = (keep_forth.sum(1) / keep_back.sum(1)).log()
    both = torch.cat([forth, back])
    low, high = torch.full_like(shift, float(both.min()) - 50), torch.full_like(shift, float(both.max()) + 50)
    if len(shift) > 1:
        guess = crossing(forth, back, keep_forth[:1], keep_back[:1]).expand_as(shift)
    else:
        guess = 0.5 * (forth.logsumexp(0) - (-back).logsumexp(0) + math.log(len(back) / len(forth)))[None]
    last = high - low
    for _ in range(MOST):
        f, b = both_sides(forth, back, (guess + shift)[:, None])
        difference = (keep_forth * f).sum(1) - (keep_back * b).sum(1)
        low, high = torch.where(difference > 0, guess, low), torch.where(difference > 0, high, guess)
        step = difference / ((keep_forth * f * (1 - f)).sum(1) + (keep_back * b * (1 - b)).sum(1))
        inside = (step.abs() < 0.5 * last) & (guess + step > low) & (guess + step < high)
        is_short = step.abs() < CLOSE
        step = torch.where(inside | is_short, step, 0.5 * (low + high) - guess)
        guess, last = guess + step, step.abs()
        if (is_short | (high - low < CLOSE**2)).all():
            break
    return guess


def both_sides(forth: Tensor, back: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """f(at − w) forth and f(w − at) back."""
    return (forth - at).sigmoid(), (at - back).sigmoid()
