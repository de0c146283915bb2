"""The house: imports run one way, and the core needs torch, numpy and safetensors alone."""

import ast
import subprocess
import sys
from pathlib import Path

import grbm

SOURCE = Path(grbm.__file__).parent
LAYERS = [
    ["errors", "randomness", "schedules", "ops"],
    ["distributed", "files"],
    ["model"],
    ["moments", "samplers"],
    ["initialise", "objectives"],
    ["training"],
    ["checkpoint"],
    ["conditional"],
    ["__init__", "compat", "export", "data.mixtures", "data.rows", "data.images"],
    ["data.standardise", "data.arrays", "data.__init__"],
    ["data.folders"],
    ["config", "evaluate.exact", "evaluate.ais", "evaluate.mixtures", "evaluate.distance", "evaluate.__init__"],
    ["tabular", "estimator"],
    ["evaluate.likelihood", "evaluate.mixing", "evaluate.frechet", "evaluate.features", "evaluate.references"],
    ["paper"],
    ["presets", "runs", "data.loading", "options"],
    ["generate", "logs", "plots", "progress"],
    ["recorder"],
    ["experiment"],
    ["encode", "evaluate.report", "evaluate.doctor", "evaluate.images", "drawing"],
    ["campaign", "page"],
    ["figure1", "tables"],
    ["restore"],
    ["inspection"],
    ["applying"],
    ["cli"],
    ["__main__"],
]


def layer_of(module: str) -> int:
    for level, names in enumerate(LAYERS):
        if any(module == name or (module.startswith(f"{name}.") and name == "samplers") for name in names):
            return level
    raise AssertionError(f"{module} has no place in LAYERS")


def test_imports_run_one_way():
    for path in SOURCE.rglob("*.py"):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).replace("samplers.__init__", "samplers")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grbm"):
                target = node.module.removeprefix("grbm").removeprefix(".")
                if target in ("", "data", "evaluate"):
                    subs = [f"{target}.{a.name}".strip(".") for a in node.names]
                    targets = [s if (SOURCE / f"{s.replace('.', '/')}.py").exists() else target for s in subs]
                else:
                    targets = [target]
                for t in targets:
                    t = {"": "__init__", "data": "data.__init__", "evaluate": "evaluate.__init__"}.get(t, t)
                    assert layer_of(t) <= layer_of(module), f"{module} imports {t}"


def test_the_core_needs_torch_numpy_and_safetensors_alone():
    heavy = ["tyro", "rich", "matplotlib", "PIL", "sklearn", "scipy", "torchvision", "pandas"]
    code = f"""
import sys
for name in {heavy!r}:
    sys.modules[name] = None  # any import of it fails
import torch
before = torch.get_rng_state()
import grbm, grbm.samplers, grbm.objectives, grbm.training, grbm.evaluate.exact, grbm.compat
model = grbm.GRBM(3, 4)
list(grbm.fit(grbm.TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01)), torch.randn(20, 3),
              grbm.ModifiedCD(grbm.Gibbs(), 2), n_updates=2))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_file_is_too_long():
    for path in SOURCE.rglob("*.py"):
        limit = 510 if path.name == "estimator.py" else 400  # one class, and half of it is its users' documentation
        assert len(path.read_text().splitlines()) <= limit, path


def test_every_public_name_has_a_docstring():
    assert all(getattr(grbm, name).__doc__ for name in grbm.__all__)
