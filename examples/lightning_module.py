"""A GRBM in PyTorch Lightning: persistent contrastive divergence on 8 x 8 digits. Needs: pip install lightning."""

import lightning
import torch
from sklearn.datasets import load_digits

import grbm


class PCDModule(lightning.LightningModule):
    """The gradient of the log-likelihood is that of the free energy at the chains minus that at the data."""

    def __init__(self, data: torch.Tensor, n_hidden: int = 64) -> None:
        super().__init__()
        self.model = grbm.anchored_(grbm.GRBM(data.shape[1], n_hidden), data)
        self.register_buffer(
            "chains", data[:256].clone()
        )  # in checkpoints, so that a resumed training goes on with them

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Move the chains by five Gibbs steps; the loss is near 0, and only its gradient means something."""
        chains = grbm.sample(self.model, grbm.Gibbs(), v0=self.chains, n_steps=5, seed=self.global_step).v
        self.chains.copy_(chains)
        data, chains = self.model.free_energy(batch[0]).mean(), self.model.free_energy(self.chains).mean()
        return data - chains

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """Log the mean square error of reconstructions; for a likelihood see `grbm.evaluate.ais.log_z`."""
        error = (batch[0] - self.model.reconstruction(batch[0])).square().mean()
        self.log("reconstruction", error, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Clipping of gradients is the trainer's."""
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main(epochs: int = 30) -> PCDModule:
    """Train, and print the held-out log-likelihood in nats."""
    data = torch.tensor(load_digits().data, dtype=torch.float32)
    data = (data - data.mean()) / data.std()
    train, test = data[:1500], data[1500:]
    loaders = [
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 100, shuffle=x is train) for x in (train, test)
    ]
    module = PCDModule(train)
    trainer = lightning.Trainer(max_epochs=epochs, gradient_clip_val=10.0, logger=False, enable_checkpointing=False)
    trainer.fit(module, *loaders)
    from grbm.evaluate import ais

    found = ais.log_z(module.model, train)
    print(f"{module.model.log_prob(test, found.log_z).mean():.1f} nats a digit. {found.verdict}")
    return module


if __name__ == "__main__":
    main()
