"""Reference points for image scores: what simpler models of the same training images would get in the same table."""

import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

from grbm.core.randomness import generator, seed_of

LARGEST, COMPONENTS = 1024, 256  # a full covariance of 3,072 columns would take hours


def gaussian(images: Tensor, n: int, seed: int = 0) -> Tensor:
    """Samples (n, N) of a full-covariance Gaussian with the images' mean and covariance."""
    x = images.double()
    values, vectors = torch.linalg.eigh(torch.cov(x.T, correction=0))
    noise = torch.randn(n, x.shape[1], generator=generator(seed, "gaussian"), dtype=torch.float64)
    return (x.mean(0) + noise * values.clamp_min(0).sqrt() @ vectors.T).float()


def mixture(images: Tensor, n: int, seed: int = 0, *, n_components: int = 20, n_rows: int = 20_000) -> Tensor:
    """Samples (n, N) of a mixture of Gaussians with full covariances, fitted by 30 steps of EM to evenly spaced rows.

    Of more than `LARGEST` columns it is fitted to the first principal components, and the others have a Gaussian.
    """
    rows = images[torch.linspace(0, len(images) - 1, min(n_rows, len(images))).long()].float()
    if images.shape[1] <= LARGEST:
        return _mixture(rows, n, seed, n_components)
    mean, (values, vectors) = rows.mean(0), torch.linalg.eigh(torch.cov(rows.T, correction=0).double())
    order = values.argsort(descending=True)
    values, vectors = values[order].clamp_min(0).float(), vectors[:, order].float()
    first = _mixture((rows - mean) @ vectors[:, :COMPONENTS], n, seed, n_components)
    noise = torch.randn(n, len(values) - COMPONENTS, generator=generator(seed, "rest"))
    return mean + torch.cat([first, noise * values[COMPONENTS:].sqrt()], 1) @ vectors.T


def _mixture(rows: Tensor, n: int, seed: int, n_components: int) -> Tensor:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(
        n_components, reg_covar=1e-4, max_iter=30, init_params="k-means++", random_state=seed_of(seed, "em") % 2**32
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so many steps are the protocol
        warnings.simplefilter("ignore", RuntimeWarning)  # covariances in float32 are not symmetric to NumPy's taste
        return torch.from_numpy(model.fit(rows.numpy()).sample(n)[0]).float()


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
        return self.out(functional.relu(self.down(z)))


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
