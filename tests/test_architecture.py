"""The house: each room knows only those before it, nothing goes round in a circle, and the core stands alone."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
import zipfile
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

import grbm
from grbm.fitting.recipe import SAMPLERS, SamplerName

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path(grbm.__file__).parent
ROOMS = [
    "core",
    "model",
    "samplers",
    "learning",
    "__init__",
    "data",
    "evaluate",
    "interchange",
    "fitting",
    "runs",
    "report",
    "reproduce",
    "cli",
    "__main__",
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
            if (name, target) == ("grbm.__init__", "grbm.fitting.estimator"):
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


def test_samplers_have_one_list_of_names():
    assert get_args(SamplerName) == tuple(SAMPLERS)
    classes = [name.title().replace("-", "") for name in SAMPLERS]
    assert all(isinstance(getattr(grbm.samplers, name), type) for name in classes)


def test_only_public_names_are_imported_by_their_names_as_text():
    """What the tests above cannot see."""
    found = [path.name for path in SOURCE.rglob("*.py") if "import_module" in path.read_text(encoding="utf-8")]
    assert found == ["lazy.py"]


@pytest.mark.parametrize("package", ["grbm", "grbm.data", "grbm.runs"])
def test_names_that_are_imported_when_asked_for(package):
    """They are the public ones, each is there, and its modules are attributes too."""
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__) != []
    named = {}
    exec(f"from {package} import *", named)
    assert set(named) - {"__builtins__"} == set(module.__all__)
    for name, path in modules().items():
        if name.rpartition(".")[0] == package and not name.endswith("__") and path.stem not in module.__all__:
            assert getattr(module, name.rpartition(".")[2]) is importlib.import_module(name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_the_package_is_imported_from_an_archive(tmp_path):
    """Public names are read from its source, wherever that is."""
    with zipfile.ZipFile(tmp_path / "grbm.zip", "w") as archive:
        for path in modules().values():
            archive.write(path, path.relative_to(SOURCE.parent))
    code = "import grbm; print(grbm.__file__, grbm.Gibbs())"
    env = os.environ | {"PYTHONPATH": str(tmp_path / "grbm.zip")}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    assert said.startswith(str(tmp_path))
    assert "Gibbs()" in said
