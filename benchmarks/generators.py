"""Other generators beside our recipe, at equal processor seconds of one thread and by the same scores.

    uv run python -m benchmarks.generators --data-dir DIR --seconds 120 [--dataset fashion-mnist] [--fid-weights NPZ]

The paper sets its GRBMs beside a VAE, a two-stage VAE, a PixelCNN++ and a Wasserstein GAN (Table 1), whose numbers are
of other programs on other machines. Here each is a small network of the published kind in plain PyTorch: two
convolutions of stride 2 on either side (Kingma & Welling 2014; Dai & Wipf 2019; Gulrajani et al. 2017), or masked ones
(van den Oord et al. 2016; Salimans et al. 2017). All learn for the same seconds of the processor's time, ours for about
as many by what its first updates take; then they draw images that are scored as `grbm evaluate --fid` scores a run's.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.learning import learn
from benchmarks.speedrun import judge_of
from grbm import fit, sample
from grbm.core import files
from grbm.core.distributed import ALONE
from grbm.core.randomness import generator
from grbm.data.images import load_idx
from grbm.data.tables import spread
from grbm.evaluate.features import inception
from grbm.report.image_scores import compare
from grbm.report.words import with_error
from grbm.runs.preparing import prepare
from grbm.runs.presets import PRESETS
from grbm.samplers.engines import compiled

CODES, ROWS = 32, 128
FIRST = 0.75  # share of the seconds of a two-stage VAE that its first stage has


def initialised(module: nn.Module, rng: torch.Generator) -> nn.Module:
    """He's weights from ``rng`` in every layer, and biases of 0: nothing from PyTorch's global generator is left."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                if isinstance(layer, Masked):
                    ways_in = float(layer.mask.sum()) * layer.weight.shape[1]
                elif isinstance(layer, nn.ConvTranspose2d):  # of stride 2: a quarter of its kernel reaches a pixel
                    ways_in = layer.weight[:, 0].numel() / 4
                else:
                    ways_in = layer.weight[0].numel()
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng) * math.sqrt(2 / ways_in))
                assert layer.bias is not None
                layer.bias.zero_()
    return module


def down(n_out: int, n_channels: int = 32) -> nn.Module:
    """From images (n, 784) to numbers (n, n_out)."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, n_channels, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(n_channels, 2 * n_channels, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(98 * n_channels, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, n_out),
    )


def up(n_in: int, n_channels: int = 32) -> nn.Module:
    """From codes (n, n_in) to logits of pixels (n, 784)."""
    return nn.Sequential(
        nn.Linear(n_in, 256),
        nn.ReLU(),
        nn.Linear(256, 98 * n_channels),
        nn.ReLU(),
        nn.Unflatten(1, (2 * n_channels, 7, 7)),
        nn.ConvTranspose2d(2 * n_channels, n_channels, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(n_channels, 1, 4, 2, 1),
        nn.Flatten(),
    )


def dense(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(n_in, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, n_out),
    )  # fmt: skip


class VAE(nn.Module):
    """q(z | x) Gaussian, p(x | z) Bernoulli over pixels, or Gaussian of one learned width γ."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, rng: torch.Generator, *, gaussian: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = initialised(encoder, rng), initialised(decoder, rng)
        self.log_gamma = nn.Parameter(torch.zeros(())) if gaussian else None

    def loss(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """The negative evidence lower bound of rows (n, N) in nats per row, from one draw of z each."""
        mean, log_var = self.encode(x)
        y = self.decoder(mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=rng))
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum()
        if self.log_gamma is None:
            misfit = functional.binary_cross_entropy_with_logits(y, x, reduction="sum")
        else:
            misfit = 0.5 * (x - y).square().sum() * (-2 * self.log_gamma).exp()
            misfit = misfit + x.numel() * (self.log_gamma + 0.5 * math.log(2 * math.pi))
        return (misfit + divergence) / len(x)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, -1)
        return mean, log_var.clamp(-12, 8)


def vae(x: Tensor, n: int, seconds: float, seed: int) -> Tensor:
    """Means of pixels drawn by a convolutional VAE."""
    rng = generator(seed, "vae")
    model = VAE(down(2 * CODES), up(CODES), rng, gaussian=False)
    learn(model, lambda rows: model.loss(rows, rng), x, seconds, seed)
    with torch.no_grad():
        return model.decoder(torch.randn(n, CODES, generator=rng)).sigmoid()


def two_stage(x: Tensor, n: int, seconds: float, seed: int) -> Tensor:
    """The same with a learned width, and a second VAE of the codes that the first one gives to images.

    In so few steps Adam does not bring the widths to where they are best; moving twenty times as fast they made worse
    images of digits (docs/lab/paper.md).
    """
    rng = generator(seed, "two stages")
    first = VAE(down(2 * CODES), nn.Sequential(up(CODES), nn.Sigmoid()), rng, gaussian=True)
    began = time.process_time()
    learn(first, lambda rows: first.loss(rows, rng), x, FIRST * seconds, seed)
    with torch.no_grad():
        codes = [torch.cat(first.encode(rows), 1) for rows in x.split(1000)]
    second = VAE(dense(CODES, 2 * CODES), dense(CODES, CODES), rng, gaussian=True)

    def loss(rows: Tensor) -> Tensor:
        mean, log_var = rows.chunk(2, -1)
        return second.loss(mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=rng), rng)

    learn(second, loss, torch.cat(codes), max(1e-9, seconds - (time.process_time() - began)), seed)
    assert second.log_gamma is not None
    with torch.no_grad():
        z = second.decoder(torch.randn(n, CODES, generator=rng))
        z = z + second.log_gamma.exp() * torch.randn(z.shape, generator=rng)
        return first.decoder(z)


def wasserstein(x: Tensor, n: int, seconds: float, seed: int, *, n_critic: int = 5, penalty: float = 10.0) -> Tensor:
    """A Wasserstein GAN whose critic's slope is held at 1 between real and drawn images."""
    rng = generator(seed, "gan")
    maker, critic = initialised(nn.Sequential(up(CODES), nn.Sigmoid()), rng), initialised(down(1), rng)
    optimizers = [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.9)) for part in (maker, critic)]
    began, step = time.process_time(), 0
    while step <= n_critic or time.process_time() - began < seconds:
        real = x[torch.randint(len(x), (ROWS,), generator=rng)]
        learns_maker = step % (n_critic + 1) == n_critic
        with torch.set_grad_enabled(learns_maker):
            drawn = maker(torch.randn(ROWS, CODES, generator=rng))
        if learns_maker:
            loss = -critic(drawn).mean()
        else:
            loss = critic(drawn).mean() - critic(real).mean() + penalty * slope(critic, real, drawn, rng)
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizers[0 if learns_maker else 1].step()
        step += 1
    with torch.no_grad():
        return maker(torch.randn(n, CODES, generator=rng))


def slope(critic: nn.Module, real: Tensor, drawn: Tensor, rng: torch.Generator) -> Tensor:
    """The mean of (‖∂critic/∂x‖ − 1)² at points on the way from real images (n, N) to drawn ones."""
    share = torch.rand(len(real), 1, generator=rng)
    between = (share * real + (1 - share) * drawn).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


class Masked(nn.Conv2d):
    """A convolution that sees what comes before a pixel, row by row, and itself where ``itself``."""

    mask: Tensor

    def __init__(self, n_in: int, n_out: int, size: int, *, itself: bool) -> None:
        super().__init__(n_in, n_out, size, padding=size // 2)
        mask = torch.zeros(size * size)
        mask[: size * size // 2 + itself] = 1
        self.register_buffer("mask", mask.view(size, size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)

    def at(self, seen: Tensor) -> Tensor:
        """The output (n, n_out) at the middle of the last row of ``seen`` (n, n_in, size // 2 + 1, size)."""
        weight = (self.weight * self.mask)[:, :, : seen.shape[2]]
        return functional.linear(seen.flatten(1), weight.flatten(1), self.bias)


class PixelCNN(nn.Module):
    """A pixel's 256 levels given those before it: masked residual blocks, and a mixture of discretised logistics."""

    def __init__(self, rng: torch.Generator, *, n_channels: int = 24, n_blocks: int = 6, n_logistics: int = 5) -> None:
        super().__init__()
        self.first = Masked(1, 2 * n_channels, 7, itself=False)
        self.blocks = nn.ModuleList(
            nn.ModuleList([
                nn.Conv2d(2 * n_channels, n_channels, 1),
                Masked(n_channels, n_channels, 3, itself=True),
                nn.Conv2d(n_channels, 2 * n_channels, 1),
            ])
            for _ in range(n_blocks)
        )  # fmt: skip
        self.last = nn.Conv2d(2 * n_channels, 3 * n_logistics, 1)
        initialised(self, rng)
        with torch.no_grad():  # blocks begin as the identity, and all pixels with the same logistics
            for block in self.blocks:
                block[2].weight.zero_()  # type: ignore[index]
            self.last.weight.mul_(0.1)
            self.last.bias[n_logistics:].copy_(torch.linspace(-1, 1, 2 * n_logistics + 1)[1::2].repeat(2))
            self.last.bias[-n_logistics:] = -math.log(n_logistics)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of weights, means and log scales (n, 3, n_logistics, H, W) from pixels (n, 1, H, W) in [-1, 1]."""
        h = self.first(x)
        for narrow, spread_out, widen in self.blocks:  # type: ignore[misc]
            h = h + widen(spread_out(narrow(h.relu()).relu()).relu())
        return self.last(h.relu()).unflatten(1, (3, -1))

    def loss(self, rows: Tensor) -> Tensor:
        """Nats per image (n, 784) of levels 0, 1/255, .., 1."""
        x = 2 * rows.view(-1, 1, 28, 28) - 1
        return -log_prob_of_levels(x, self(x)).sum() / len(rows)

    @torch.no_grad()
    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """Images (n, 784), pixel by pixel; of every masked layer's input what was computed before is kept."""
        x = torch.zeros(n, 1, 28 + 3, 28 + 6)  # with a margin of zeros above and on both sides
        kept = [torch.zeros(n, block[1].in_channels, 28 + 1, 28 + 2) for block in self.blocks]  # type: ignore[index]
        for i, j in ((i, j) for i in range(28) for j in range(28)):
            h = self.first.at(x[:, :, i : i + 4, j : j + 7])[:, :, None, None]
            for (narrow, spread_out, widen), past in zip(self.blocks, kept, strict=True):  # type: ignore[misc]
                past[:, :, i + 1, j + 1] = narrow(h.relu()).relu()[:, :, 0, 0]
                h = h + widen(spread_out.at(past[:, :, i : i + 2, j : j + 3]).relu()[:, :, None, None])
            logits, mean, log_scale = self.last(h.relu()).unflatten(1, (3, -1))[..., 0, 0].unbind(1)
            which = torch.multinomial(logits.softmax(1), 1, generator=rng)
            u = torch.rand(n, 1, generator=rng).clamp(1e-5, 1 - 1e-5)
            drawn = mean.gather(1, which) + log_scale.gather(1, which).clamp(min=-7).exp() * u.logit()
            x[:, :, i + 3, j + 3] = (drawn.clamp(-1, 1) * 127.5 + 127.5).round() / 127.5 - 1
        return (x[:, :, 3:, 3:-3].flatten(1) + 1) / 2


def log_prob_of_levels(x: Tensor, parameters: Tensor) -> Tensor:
    """log p (n, 1, H, W) of levels in [-1, 1], 2/255 apart: what the logistics have between their neighbours.

    Salimans et al. 2017, PixelCNN++: the first level has all below it and the last all above it.
    """
    logits, mean, log_scale = parameters.unbind(1)
    narrowness = (-log_scale.clamp(min=-7)).exp()
    above, below = ((x - mean + edge) * narrowness for edge in (1 / 255, -1 / 255))
    infinity = torch.full_like(above, 1e4)
    above, below = torch.where(x > 0.999, infinity, above), torch.where(x < -0.999, -infinity, below)
    # log(σ(a) − σ(b)) = log σ(a) + log σ(−b) + log(1 − e^(b − a))
    inside = functional.logsigmoid(above) + functional.logsigmoid(-below) + (-(below - above).expm1()).log()
    return (logits.log_softmax(1) + inside).logsumexp(1, keepdim=True)


def pixelcnn(x: Tensor, n: int, seconds: float, seed: int) -> Tensor:
    """Images drawn pixel by pixel."""
    rng = generator(seed, "pixels")
    model = PixelCNN(rng)
    levels = (x * 255).round() / 255
    n_steps = learn(model, model.loss, levels, seconds, seed, rows_each=32)
    print(f"  pixelcnn: {n_steps} updates", flush=True)
    return model.draw(n, rng)


def ours(x: Tensor, n: int, seconds: float, seed: int, *, dataset: str, data_dir: Path, folder: Path) -> Tensor:
    """The preset of that data set, small or medium, with as many updates as the seconds allow."""
    small = "mnist-small" if dataset == "mnist" else "fashion-small"
    config = PRESETS[small if seconds < 600 else small.replace("small", "medium")].config
    config = replace(config, seed=seed, data_dir=data_dir)
    compiled.library()  # compiled before the clock runs

    def trained(n_updates: int, part: str) -> tuple[Callable[[], Tensor], float]:
        made = replace(config, train=replace(config.train, n_updates=n_updates))
        run = prepare(made, folder / part, ALONE, "cpu", resume=False)
        began = time.process_time()
        for _ in fit(run.state, run.data, run.objective, made.train, precision=made.precision):
            pass
        taken, how = time.process_time() - began, config.sampling

        def draw() -> Tensor:
            model, sampler = run.state.average or run.state.model, how.sampler.build(run.frame)
            v = sample(model, sampler, n_chains=n, n_steps=how.n_steps, mean=how.mean, seed=1).v
            return run.frame.transform.inverse(v)

        return draw, taken

    n_updates = max(1, int(seconds / trained(60, "measured")[1] * 60))
    draw, taken = trained(n_updates, "whole")
    print(f"  ours: {n_updates} updates of {config.model.n_hidden} units in {taken:.0f} s", flush=True)
    return draw()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist"), default="mnist")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--fid-weights", type=Path, default=None)
    parser.add_argument("--only", nargs="+", choices=("ours", "vae", "two-stage", "gan", "pixelcnn"), default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/generators"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = load_idx(options.dataset, options.data_dir, train=True)[0]
    judges = [judge_of(options.data_dir, options.dataset)[0]]
    network = (
        None
        if options.fid_weights is None
        else inception(options.fid_weights, options.dataset, torch.device("cpu"), print)
    )
    judges += [network] if network is not None else []
    x, n = images.float(), options.samples
    shape = (-1, 1, 28, 28)
    truth = {judge.name: judge.extract(x[spread(len(x), n)].view(shape)) for judge in judges}
    where = options.out / f"{options.dataset}-{options.seconds:g}-{options.seed}"
    where.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[..., Tensor]] = {
        "ours": lambda *a: ours(*a, dataset=options.dataset, data_dir=options.data_dir, folder=where),
        "vae": vae,
        "two-stage": two_stage,
        "gan": wasserstein,
        "pixelcnn": pixelcnn,
    }
    for name in options.only or makers:
        path = where / f"{name}-{n}-{'-'.join(judge.name for judge in judges)}.json"
        if not path.is_file():
            drawn = makers[name](x, n, options.seconds, options.seed).float().clamp(0, 1).view(shape)
            row: dict[str, float] = {}
            for judge in judges:
                row |= compare(judge, truth[judge.name], judge.extract(drawn), options.seed)
            files.write_text(path, json.dumps(row) + "\n")
        row = json.loads(path.read_text())
        shown = [
            f"{key} {with_error(row[key], row[f'{key} ±'])}" for key in row if f"{key} ±" in row and "x1000" not in key
        ]
        shown += [f"{key} {row[key]:.3f}" for key in ("precision", "recall") if key in row]
        print(f"{options.dataset}, {options.seconds:g} s: {name:<10} {', '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
