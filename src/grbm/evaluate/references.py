"""Reference points for image scores: what simpler models of the same training images would get in the same table."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from grbm.randomness import generator, seed_of


def gaussian(images: Tensor, n: int, seed: int = 0) -> Tensor:
    """Samples (n, N) of one Gaussian with the images' mean and covariance."""
    x = images.double()
    values, vectors = torch.linalg.eigh(torch.cov(x.T, correction=0))
    noise = torch.randn(n, x.shape[1], generator=generator(seed, "gaussian"), dtype=torch.float64)
    return (x.mean(0) + noise * values.clamp_min(0).sqrt() @ vectors.T).float()


def mixture(images: Tensor, n: int, seed: int = 0, *, n_components: int = 20, n_rows: int = 20_000) -> Tensor:
    """Samples (n, N) of a mixture of Gaussians with full covariances, fitted by EM to evenly spaced rows."""
    from sklearn.mixture import GaussianMixture

    rows = images[torch.linspace(0, len(images) - 1, min(n_rows, len(images))).long()].float().numpy()
    model = GaussianMixture(
        n_components, reg_covar=1e-4, max_iter=30, init_params="k-means++", random_state=seed_of(seed, "em") % 2**32
    )
    return torch.from_numpy(model.fit(rows).sample(n)[0]).float()


class _Autoencoder(nn.Module):
    """A variational autoencoder with one hidden layer of 400 on either side of 20 Gaussian codes."""

    def __init__(self, n_visible: int) -> None:
        super().__init__()
        self.up, self.code = nn.Linear(n_visible, 400), nn.Linear(400, 40)
        self.down, self.out = nn.Linear(20, 400), nn.Linear(400, n_visible)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.code(functional.relu(self.up(x))).chunk(2, -1)
        return mean, log_var

    def decode(self, z: Tensor) -> Tensor:
        logits: Tensor = self.out(functional.relu(self.down(z)))
        return logits


def autoencoder(images: Tensor, n: int, seed: int = 0, *, epochs: int = 20) -> Tensor:
    """Samples (n, N), means of the pixels, of a small variational autoencoder (Kingma & Welling 2014)."""
    model = _Autoencoder(images.shape[1])
    rng = generator(seed, "autoencoder")
    with torch.no_grad():
        for layer in (model.up, model.code, model.down, model.out):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=rng) * layer.in_features**-0.5)
            layer.bias.zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for rows in torch.split(torch.randperm(len(images), generator=generator(seed, "order", epoch)), 256):
            x = images[rows].float()
            mean, log_var = model.encode(x)
            z = mean + (0.5 * log_var).exp() * torch.randn(mean.shape, generator=rng)
            misfit = functional.binary_cross_entropy_with_logits(model.decode(z), x, reduction="sum")
            divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum()
            optimizer.zero_grad()
            torch.autograd.backward([(misfit + divergence) / len(x)])
            optimizer.step()
    with torch.no_grad():
        return model.decode(torch.randn(n, 20, generator=rng)).sigmoid()
