"""The algorithm on one page gives the library's gradient: what is printed, and what runs fast, are the same."""

import importlib.util
from pathlib import Path

import pytest
import torch

from grbm import GRBM, GibbsLangevin, ModifiedCD, gradient
from grbm.core.randomness import Blocks
from grbm.learning.objectives import positive
from tests.helpers import assert_standard, exact_chains, random_model

PAGE = Path(__file__).resolve().parent.parent / "examples" / "algorithm.py"
spec = importlib.util.spec_from_file_location("algorithm", PAGE)
assert spec is not None
assert spec.loader is not None
algorithm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(algorithm)


def test_the_page_is_short_and_needs_the_model_alone():
    source = PAGE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 100
    assert [line for line in source.splitlines() if "grbm" in line and "import" in line] == ["from grbm import GRBM"]


def test_the_page_gives_the_librarys_gradient():
    """The mean of 16 gradients of 1,000 chains each, by either: all 22 components within the bound of as many scores.

    Six steps of four are far too few to forget the noise, so start, schedule and number of steps all matter.
    """
    model = random_model(3, 4, 1)
    data = exact_chains(model, 1000, seed=0)[0]
    energy, objective = model.freeze(), ModifiedCD(GibbsLangevin(0.3, n_inner=4), n_steps=6)
    printed, fast = [], []
    for seed in range(16):
        rng = torch.Generator().manual_seed(seed)
        page = algorithm.modified_cd(model, data, n_steps=6, n_inner=4, step_size=0.3, rng=rng)
        blocks = Blocks(seed, 1)
        at_data = positive(energy, data, blocks, probabilities=False)
        library = gradient(energy, at_data.mean(), objective.negative(energy, data, None, blocks).moments)
        for found, one in ((printed, page), (fast, library)):
            found.append(torch.cat([one[name].flatten() for name in ("W", "b", "mu", "log_var")]))
    a, b = torch.stack(printed), torch.stack(fast)
    z = (a.mean(0) - b.mean(0)) / ((a.var(0) + b.var(0)) / 16).sqrt()
    assert z.shape == (22,)
    assert_standard(z)
    assert (a.mean(0).abs() / (a.std(0) / 4)).max() > 20  # gradients that differ from 0 visibly


def test_the_page_learns():
    """On two clusters: every parameter moves, and the two visible units, which rise together, come to do so."""
    rows = torch.cat(
        [torch.randn(200, 2, generator=torch.Generator().manual_seed(k)) + s for k, s in ((0, -2), (1, 2))]
    )
    model, before = GRBM(2, 6), GRBM(2, 6)
    algorithm.train(model, rows, n_updates=20, learning_rate=0.1)
    for p, q in zip(model.parameters(), before.parameters(), strict=True):
        assert not torch.equal(p, q)
    assert (model.W[0] * model.W[1]).sum() > (before.W[0] * before.W[1]).sum() + 0.1


@pytest.mark.filterwarnings("ignore")  # of Lightning about workers and its own use of PyTorch
def test_a_model_trains_in_lightning():
    pytest.importorskip("lightning", reason="the example needs PyTorch Lightning")
    path = PAGE.with_name("lightning_module.py")
    spec = importlib.util.spec_from_file_location("lightning_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    trained = module.main(epochs=2)
    assert not torch.equal(trained.model.W, module.PCDModule(trained.chains).model.W)
    assert trained.chains.isfinite().all()
