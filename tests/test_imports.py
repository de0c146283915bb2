"""Imports: the command line loads nothing heavy, the core stands alone, learning loads PyTorch and nothing beside it.

One process makes all the observations. The core is loaded anew before its part, where other packages cannot be had.
"""

import json
import subprocess
import sys

import pytest

COMMANDS = [
    *(["--help"], ["--version"], ["train"], ["train", "digits", "--help"], ["evaluate", "--help"]),
    *(["reproduce", "--help"], ["completion", "zsh"], ["trian"], ["train", "digit"], ["doctor", "nowhere"]),
    *(["train", "digits", "--updates", "-5"], ["train", "array"], ["train", "array", "--data", "nowhere.npy"]),
    *(["train", "digits", "--epochs", "3"], ["sample", "x", "--stpes", "3"], ["compare", "x"], ["list", "nowhere"]),
    ["train", "table1-gibbs", "--dynamics", "nothing"],
]

OBSERVE = """
import contextlib, io, json, sys

seen = {}

def loaded(*names):
    return [name for name in names if name in sys.modules]

# 1. The command line, until something has to be computed.
from grbm import cli
commands, folder = json.loads(sys.argv[1]), sys.argv[2]
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            cli.main(command)
        except SystemExit:
            pass
    seen[" ".join(command)] = loaded("torch", "numpy", "matplotlib", "sklearn")

# 2. Training on the command line: PyTorch's compiler takes seconds to load, and so does scikit-learn, whose digits
# these are.
with contextlib.redirect_stdout(io.StringIO()):
    quick = ["--train.n-updates", "2", "--no-figures"]
    assert cli.main(["train", "digits", *quick, "--out", folder]) == 0
seen["training"] = loaded("torch._dynamo", "sklearn", "scipy", "matplotlib")

# 3. The core, where every import of another package fails.
others = ("tyro", "rich", "matplotlib", "PIL", "sklearn", "scipy", "torchvision", "pandas", "tensorboard", "arviz")
kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in others}
for name in [*kept, *(name for name in sys.modules if name.split(".")[0] == "grbm")]:
    del sys.modules[name]
for name in others:
    sys.modules[name] = None
import torch
state = torch.get_rng_state()
import grbm, grbm.samplers, grbm.learning.objectives, grbm.learning.training, grbm.evaluate.exact
import grbm.interchange.conventions
import grbm.runs.training, grbm.runs.presets  # a bare machine can train
model = grbm.GRBM(3, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in grbm.fit(grbm.TrainState(model, optimizer), torch.zeros(20, 3), grbm.ModifiedCD(grbm.Gibbs(), 2),
                  grbm.FitOptions(n_updates=2)):
    pass
seen["global random state"] = torch.equal(state, torch.get_rng_state())
for name in others:
    del sys.modules[name]
sys.modules.update(kept)

json.dump(seen, sys.stdout)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Observations of a fresh process."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "config.json").write_text("{}")  # which makes it a run to the eye
    commands = [*COMMANDS, *([name, str(folder), "nowhere.csv"] for name in ("score", "impute"))]
    command = [sys.executable, "-c", OBSERVE, json.dumps(commands), str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_and_errors_of_the_command_line_load_nothing_heavy(seen):
    """They then answer in 0.4 s, where loading PyTorch alone takes 3."""
    assert {command: seen[command] for command in map(" ".join, COMMANDS)} == {" ".join(c): [] for c in COMMANDS}
    assert [found for command, found in seen.items() if "nowhere.csv" in command] == [[], []]


def test_the_core_needs_torch_numpy_and_safetensors_alone(seen):
    """The process would have ended otherwise; nor does the core touch PyTorch's global random state."""
    assert seen["global random state"]


def test_learning_loads_nothing_that_takes_longer_than_learning(seen):
    assert seen["training"] == []
