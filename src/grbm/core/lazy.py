"""Names of a package, imported when they are asked for: so a command can explain itself before PyTorch is loaded."""

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the functions ``__getattr__`` and ``__dir__`` of a package, and set its ``__all__``.

    The public names of the package are those that its source imports under ``if TYPE_CHECKING``: type checkers read
    the same list. Its modules are attributes too, though not public names.
    """
    module = sys.modules[package]
    (block,) = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    origin = {alias.name: str(node.module) for node in imports for alias in node.names}
    public = vars(module)["__all__"] = sorted(origin)

    def get(name: str) -> Any:
        if name in origin:
            value = getattr(importlib.import_module(origin[name]), name)
            setattr(module, name, value)  # asked for once
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: public
