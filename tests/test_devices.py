"""Which device "auto" is: a GPU only where there is enough to do for one."""

import pytest
import torch

from grbm import GaussianBernoulliRBM
from grbm.devices import WORTH_A_GPU, pick_device
from grbm.distributed import ALONE
from grbm.runs.preparing import prepare, work
from grbm.runs.presets import PRESETS


@pytest.fixture
def gpu(monkeypatch):
    """As if there were one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_auto_is_a_gpu_where_there_is_one(gpu, monkeypatch):
    assert pick_device("auto").type == "cuda"
    assert pick_device("auto", WORTH_A_GPU).type == "cuda"
    assert pick_device("auto", WORTH_A_GPU - 1).type == "cpu"
    assert pick_device("cpu", 1e12).type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"


def test_small_presets_stay_on_the_cpu(gpu, tmp_path):
    """Weights x chains x steps: digits have 64 x 256 x 256 x 5, MNIST a hundred times as much."""
    digits, mnist = PRESETS["digits"].config, PRESETS["mnist-small"].config
    chains, steps = digits.objective.n_chains or digits.train.batch_size, digits.objective.n_steps
    assert work(digits, 64) == 64 * digits.model.n_hidden * chains * steps < WORTH_A_GPU
    assert work(mnist, 784) > WORTH_A_GPU
    assert prepare(digits, tmp_path, ALONE, None, resume=False).state.model.W.device.type == "cpu"


@pytest.mark.parametrize(("n_features", "n_components", "device"), [(4, "auto", "cpu"), (784, 4000, "cuda")])
def test_the_estimator_chooses_by_its_size(gpu, n_features, n_components, device):
    machine = GaussianBernoulliRBM(n_components)
    machine.n_features_in_ = n_features
    assert machine._device().type == device
    assert machine.set_params(device="cpu")._device().type == "cpu"
