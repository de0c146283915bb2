"""Names of a package, imported when they are asked for: so a command can explain itself before PyTorch is loaded."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(
    package: str, origin: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its name.
    origin : dict
        Public names by the module that has them.
    modules : sequence of str
        Modules of the package that are its attributes too, though not among its public names.
    """
    found = {name: module for module, names in origin.items() for name in names}

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(found[name]), name)
        setattr(sys.modules[package], name, value)  # asked for once
        return value

    return get, lambda: sorted(found)
