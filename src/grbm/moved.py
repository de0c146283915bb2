"""Modules under their names of version 0.1, which lead to where they are now with a warning, until version 0.3."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "grbm.checkpoint": "grbm.runs.checkpoint",
    "grbm.compat": "grbm.interchange.conventions",
    "grbm.config": "grbm.runs.config",
    "grbm.experiment": "grbm.runs.training",
    "grbm.export": "grbm.interchange.programs",
    "grbm.presets": "grbm.runs.presets",
}


class Forwarding(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the new module where the old one is asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the old names alone."""
        if name not in MOVED:
            return None
        warnings.warn(f"{name} is {MOVED[name]} now.", DeprecationWarning, stacklevel=2)
        return importlib.machinery.ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        """The new module takes the place of the empty one that was made for the old name."""
        sys.modules[module.__name__] = importlib.import_module(MOVED[module.__name__])


def forward_old_names() -> None:
    """Let imports of old names succeed; they are looked for after all that is really there."""
    if not any(isinstance(finder, Forwarding) for finder in sys.meta_path):
        sys.meta_path.append(Forwarding())
