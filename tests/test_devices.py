"""Which device "auto" is: a GPU only where there is enough to do for one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grbm import GRBM, GaussianBernoulliRBM
from grbm.core.devices import WORTH_A_GPU, pick_device
from grbm.core.distributed import ALONE
from grbm.fitting.recipe import SamplerConfig
from grbm.runs.preparing import prepare
from grbm.runs.presets import PRESETS
from grbm.runs.sampling import on_device, work


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
    """Weights x chains x steps x replicas; a table's exact moves have no kernels, however large it is."""
    digits, mnist = PRESETS["digits"].config, PRESETS["mnist-small"].config
    chains, steps = digits.objective.n_chains or digits.train.batch_size, digits.objective.n_steps
    assert work(digits, 64) == 64 * digits.model.n_hidden * chains * steps < WORTH_A_GPU
    assert work(mnist, 784) > WORTH_A_GPU
    tempered = replace(digits, sampler=SamplerConfig("parallel-tempering"))
    assert work(tempered, 64) == 14 * work(digits, 64)
    assert work(PRESETS["array"].config, 300_000) == 0
    assert prepare(digits, tmp_path, ALONE, None, resume=False).state.model.W.device.type == "cpu"


def test_runs_by_exact_moves_are_looked_at_on_the_cpu(monkeypatch):
    asked = []
    monkeypatch.setattr("grbm.runs.sampling.pick_device", lambda name: asked.append(name) or torch.device("cpu"))
    for preset in ("array", "digits"):
        on_device(SimpleNamespace(config=PRESETS[preset].config, model=GRBM(3, 4)))
    assert asked == ["cpu", "auto"]


@pytest.mark.parametrize(
    ("n_features", "n_components", "device"),
    [(100, 390, "cpu"), (100, 391, "cuda"), (152, "auto", "cpu"), (153, "auto", "cuda")],
)
def test_the_estimator_chooses_by_its_size(gpu, monkeypatch, n_features, n_components, device):
    """Features x hidden units x 64 chains x 8 replicas x 5 steps, of which 10⁸ are enough; "auto" has 256 units."""
    machine = GaussianBernoulliRBM(n_components)
    machine.n_features_in_, machine._coordinates_ = n_features, {}
    monkeypatch.setattr(machine, "_reference", lambda: None)
    assert machine._device().type == device
    assert machine.set_params(device="cpu")._device().type == "cpu"
    monkeypatch.setattr(machine, "_reference", lambda: "of whitened features")
    assert machine.set_params(device="auto")._device().type == "cpu"
