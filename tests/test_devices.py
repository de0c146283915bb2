"""Which device "auto" is: a GPU only where there is enough to do for one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grbm import GRBM, Base
from grbm.core.devices import WORTH_A_GPU, pick_device
from grbm.core.distributed import ALONE
from grbm.data import Elementwise
from grbm.data.frame import Frame
from grbm.fitting.density import Fitted
from grbm.fitting.recipe import Facts, SamplerConfig, resolve
from grbm.runs import Run, Status
from grbm.runs.preparing import open_data, prepare
from grbm.runs.presets import PRESETS
from grbm.runs.sampling import on_device


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
    assert digits.recipe.work(64) == 64 * digits.model.n_hidden * chains * steps < WORTH_A_GPU
    assert mnist.recipe.work(784) > WORTH_A_GPU
    tempered = replace(digits, sampler=SamplerConfig("parallel-tempering"))
    assert tempered.recipe.work(64) == 14 * digits.recipe.work(64)
    assert PRESETS["array"].config.recipe.work(300_000) == 0
    assert prepare(open_data(digits, ALONE), tmp_path, ALONE, None, resume=False).state.model.W.device.type == "cpu"


def test_runs_by_exact_moves_are_looked_at_on_the_cpu(monkeypatch):
    asked = []
    monkeypatch.setattr("grbm.runs.sampling.pick_device", lambda name: asked.append(name) or torch.device("cpu"))
    for preset in ("array", "digits"):
        frame = Frame(Elementwise.of(torch.zeros(3), torch.ones(3)), Base(torch.zeros(3), torch.ones(3)))
        fitted = Fitted(frame, GRBM(3, 4))
        on_device(Run(Path("run"), PRESETS[preset].config, fitted, None, Status("finished"), [], ""))
    assert asked == ["cpu", "auto"]


@pytest.mark.parametrize(
    ("n_features", "n_components", "device"),
    [(100, 390, "cpu"), (100, 391, "cuda"), (152, None, "cpu"), (153, None, "cuda")],
)
def test_the_estimator_chooses_by_its_size(gpu, n_features, n_components, device):
    """Features x hidden units x 64 chains x 8 replicas x 5 steps, of which 10⁸ are enough; 256 units by default."""
    asked, facts = {"standardise": "pixel", "model.n_hidden": n_components}, Facts(1000, n_features, True)
    assert pick_device("auto", resolve(asked, facts).work(n_features)).type == device
    assert pick_device("auto", resolve(asked | {"standardise": "whiten"}, facts).work(n_features)).type == "cpu"
