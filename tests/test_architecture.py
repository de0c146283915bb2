"""The house: each room knows only those before it, nothing goes round in a circle, and the core stands alone."""

import ast
import importlib
import inspect
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

import grbm
from grbm.runs.config import SAMPLERS, SamplerName

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path(grbm.__file__).parent
ROOMS = [
    *(
        "lazy",
        "errors",
        "typed",
        "options",
        "randomness",
        "schedules",
        "files",
        "devices",
        "memory",
        "distributed",
        "rows",
    ),
    *("energy", "contrasts"),
    *(
        "model",
        "moments",
        "reference",
        "bennett",
        "samplers",
        "initialise",
        "objectives",
        "natural",
        "quasi_newton",
        "guard",
        "sgd",
        "descent",
        "spectral",
        "training",
        "conditional",
        "moved",
        "__init__",
    ),
    *(
        "data",
        "evaluate",
        "recipe",
        "interchange",
        "measured",
        "coordinates",
        "table_checks",
        "fitted",
        "estimator",
        "runs",
        "report",
        "reproduce",
        "cli",
        "__main__",
    ),
]


def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package by its own, "grbm" itself as "grbm.__init__"."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ["grbm", *path.relative_to(SOURCE).with_suffix("").parts]
        if parts[-1] == "__init__" and len(parts) > 2:
            parts.pop()
        found[".".join(parts)] = path
    return found


def imports(source: str, module: str, is_package: bool, known: set[str]) -> set[str]:
    """What a module imports of the package: anywhere in it, under TYPE_CHECKING and relatively too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.removesuffix(".__init__").split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{origin}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] != "grbm":
                continue
            while target not in known and "." in target:  # a name in a module
                target = target.rpartition(".")[0]
            found.add("grbm.__init__" if target == "grbm" else target)
    return found - {module}


def graph() -> dict[str, set[str]]:
    known = modules()
    return {
        name: imports(path.read_text(encoding="utf-8"), name, path.name == "__init__.py", set(known))
        for name, path in known.items()
    }


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_every_room_knows_only_those_before_it():
    assert {room_of(name) for name in graph()} == set(ROOMS)
    for name, targets in graph().items():
        for target in targets:
            here, there = ROOMS.index(room_of(name)), ROOMS.index(room_of(target))
            if (name, target) == ("grbm.__init__", "grbm.estimator"):
                continue  # a public name, imported when it is asked for
            assert there <= here, f"{name} imports {target}, which comes after it"


def test_nothing_goes_round_in_a_circle():
    try:
        order = list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")
    assert len(order) == len(modules())


def test_imports_of_every_kind_are_seen():
    """Or the two tests above would hold whatever is imported."""
    known = {"grbm.__init__", "grbm.model", "grbm.samplers", "grbm.samplers.chains", "grbm.samplers.moves"}
    here, package = "grbm.samplers.moves", "grbm.samplers"
    for source, module, expected in (
        ("import grbm.model", here, "grbm.model"),
        ("from grbm import model", here, "grbm.model"),
        ("from grbm import GRBM", here, "grbm.__init__"),
        ("from grbm.samplers import Chains", here, "grbm.samplers"),
        ("from grbm.samplers import chains", here, "grbm.samplers.chains"),
        ("from . import chains", here, "grbm.samplers.chains"),
        ("from .chains import Chains", here, "grbm.samplers.chains"),
        ("from ..model import Energy", here, "grbm.model"),
        ("from .chains import Chains", package, "grbm.samplers.chains"),
        ("if TYPE_CHECKING:\n    from grbm.model import Energy", here, "grbm.model"),
        ("def f():\n    from grbm.samplers.chains import Chains", here, "grbm.samplers.chains"),
    ):
        assert imports(source, module, module == package, known) == {expected}, source
    assert imports("import torch\nfrom torch import nn", here, False, known) == set()


def test_the_core_needs_torch_numpy_and_safetensors_alone():
    heavy = ["tyro", "rich", "matplotlib", "PIL", "sklearn", "scipy", "torchvision", "pandas"]
    code = f"""
import sys
for name in {heavy!r}:
    sys.modules[name] = None  # any import of it fails
import torch
before = torch.get_rng_state()
import grbm, grbm.samplers, grbm.objectives, grbm.training, grbm.evaluate.exact, grbm.interchange.conventions
import grbm.runs.training, grbm.runs.presets  # a bare machine can train
model = grbm.GRBM(3, 4)
list(grbm.fit(grbm.TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01)), torch.randn(20, 3),
              grbm.ModifiedCD(grbm.Gibbs(), 2), grbm.FitOptions(n_updates=2)))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_learning_loads_nothing_that_takes_longer_than_learning(tmp_path):
    """The import of PyTorch's compiler takes seconds, and so does that of scikit-learn, whose digits these are."""
    code = """
import sys
from grbm import cli
assert cli.main(["train", "digits", "--train.n-updates", "2", "--no-figures", "--out", sys.argv[1]]) == 0
print({"torch", "torch._dynamo", "sklearn", "scipy", "matplotlib"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "{'torch'}"


def test_no_file_is_too_long():
    for path in SOURCE.rglob("*.py"):
        limit = 510 if path.name == "estimator.py" else 400  # one class, and half of it is its users' documentation
        assert len(path.read_text().splitlines()) <= limit, path


def test_an_update_is_a_story():
    """The code of `train_step`, without its docstring, is some twenty statements long."""
    (function,) = ast.parse(inspect.getsource(grbm.train_step)).body
    assert isinstance(function, ast.FunctionDef)
    written = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    assert len(written) - 2 <= 24  # without the function itself and its docstring
    assert function.end_lineno - function.body[1].lineno <= 30


def test_everything_public_has_a_docstring_of_its_own():
    """What stands in the source: a dataclass without one writes its signature there, and would count."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) or path.name == "__init__.py", path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: {node.name}"
    for name in grbm.__all__:
        member = getattr(grbm, name)
        for attribute, value in vars(member).items() if isinstance(member, type) else ():
            if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(member, attribute)), f"{name}.{attribute}"


def test_names_of_version_0_1_still_lead_there():
    """In whatever way they are imported."""
    code = """
import warnings
warnings.simplefilter("error", DeprecationWarning)
import grbm
for line in ("from grbm import compat", "import grbm.compat", "from grbm.config import RunConfig"):
    try:
        exec(line)
    except DeprecationWarning as warning:
        assert " now." in str(warning), warning
    else:
        raise SystemExit(f"{line} does not warn")
warnings.simplefilter("ignore")
from grbm.compat import load_published
from grbm import compat, checkpoint
from grbm.interchange import conventions
assert compat is conventions and conventions.__spec__.name == "grbm.interchange.conventions"
assert checkpoint.__name__ == "grbm.runs.checkpoint"
from grbm.config import RunConfig
assert RunConfig is grbm.runs.RunConfig
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError):
        grbm.nothing_of_the_kind  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("grbm.nothing_of_the_kind")


def test_samplers_have_one_list_of_names():
    assert get_args(SamplerName) == tuple(SAMPLERS)


def test_only_old_names_and_the_estimator_are_imported_by_their_names_as_text():
    """What the tests above cannot see."""
    found = [path.name for path in SOURCE.rglob("*.py") if "import_module" in path.read_text(encoding="utf-8")]
    assert sorted(found) == ["lazy.py", "moved.py"]


@pytest.mark.parametrize("package", ["grbm", "grbm.data", "grbm.runs"])
def test_names_that_are_imported_when_asked_for(package):
    """They are the public ones, each is there, and type checkers see the same ones in the same modules."""
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(seen) == set(module.__all__)
    for name, origin in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(origin), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018
