"""A masked autoregressive flow in plain PyTorch (Papamakarios, Pavlakou & Murray 2017; MADE: Germain et al. 2015)."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.learning import learn
from grbm.core.randomness import generator

ROWS = 256
CLIP = 10.0


class MaskedLinear(nn.Linear):
    """Weights that are 0 where an output must not see an input."""

    mask: Tensor

    def __init__(self, mask: Tensor, rng: torch.Generator, gain: float = 2.0) -> None:
        n_out, n_in = mask.shape
        super().__init__(n_in, n_out)
        self.register_buffer("mask", mask.float())
        with torch.no_grad():
            ways_in = mask.float().sum(1, keepdim=True).clamp_min(1)
            self.weight.copy_(torch.randn(n_out, n_in, generator=rng) * (gain / ways_in).sqrt())
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """Mean and log-deviation of each of N numbers given those before it: (n, N) -> (n, N), (n, N)."""

    def __init__(self, N: int, n_hidden: int, rng: torch.Generator) -> None:
        super().__init__()
        place, hidden = torch.arange(N), torch.arange(n_hidden) * (N - 1) // n_hidden  # the last place that each sees
        sees = hidden[:, None] >= place
        self.first = MaskedLinear(sees, rng)
        self.second = MaskedLinear(hidden[:, None] >= hidden, rng)
        seen_by = (place[:, None] > hidden).repeat(2, 1)
        self.last = MaskedLinear(seen_by, rng, gain=0.01)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.second(self.first(x).relu()).relu()
        mean, log_std = self.last(h).chunk(2, -1)
        return mean, 3 * (log_std / 3).tanh()


class AutoregressiveFlow(nn.Module):
    """Several of these, one after another, each in the reverse order of the one before; normal noise at the end."""

    def __init__(self, N: int, *, n_layers: int = 5, n_hidden: int = 512, seed: int = 0) -> None:
        super().__init__()
        rng = generator(seed, "flow")
        self.layers = nn.ModuleList(Made(N, n_hidden, rng) for _ in range(n_layers))

    def log_prob(self, x: Tensor) -> Tensor:
        """Nats per row (n, N) -> (n,)."""
        total = torch.zeros(len(x))
        for layer in self.layers:
            mean, log_std = layer(x)
            x = ((x - mean) * (-log_std).exp()).flip(1)
            total = total - log_std.sum(1)
        return total - 0.5 * x.square().sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)


def learn_flow(model: AutoregressiveFlow, train: Tensor, validation: Tensor, seconds: float, seed: int) -> int:
    """`learn` on the likelihood; the parameters that were best on validation rows are kept."""
    best: tuple[float, dict[str, Tensor]] = (-math.inf, copy.deepcopy(model.state_dict()))

    @torch.no_grad()
    def look() -> None:
        nonlocal best
        value = float(model.log_prob(validation).mean())
        if value > best[0]:
            best = value, copy.deepcopy(model.state_dict())

    n_steps = learn(
        model,
        lambda rows: -model.log_prob(rows).mean(),
        train,
        seconds,
        seed,
        rows_each=ROWS,
        clip_norm=CLIP,
        look=look,
    )
    model.load_state_dict(best[1])
    return n_steps
