"""The public interface: parameters and their defaults, presets and experiments, as a list for a person to review.

uv run python -m tests.signatures      # write the list anew, after the interface was changed on purpose
"""

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path

import grbm
from grbm.runs import config
from grbm.runs.paper import EXPERIMENTS
from grbm.runs.presets import PAPER_SAMPLERS, PRESETS

LIST = Path(__file__).with_suffix(".txt")


def signatures() -> Iterator[str]:
    """Each public class and function of `grbm`, its public methods, the settings of a run, and what presets choose."""
    settings = {name: kind for name, kind in vars(config).items() if name.endswith("Config")}
    for name, member in {**{name: getattr(grbm, name) for name in sorted(grbm.__all__)}, **settings}.items():
        if not callable(member) or (isinstance(member, type) and issubclass(member, Exception)):
            continue
        frozen = ", frozen" if is_dataclass(member) and member.__dataclass_params__.frozen else ""
        yield name + _parameters(member) + frozen
        for attribute, value in sorted(vars(member).items()) if isinstance(member, type) else ():
            value = getattr(value, "__func__", value)
            if inspect.isfunction(value) and not attribute.startswith("_"):
                yield f"    {attribute}{_parameters(value)}"
    usual = config.RunConfig().identity()
    for name, preset in PRESETS.items():
        chosen = {key: value for key, value in preset.config.identity().items() if value != usual[key]}
        yield f"preset {name}: {json.dumps(chosen, sort_keys=True)}"
    yield from (f"sampler {name}: {sampler}" for name, sampler in PAPER_SAMPLERS.items())
    yield from (f"experiment {name}: {experiment}" for name, experiment in EXPERIMENTS.items())


def _parameters(member: object) -> str:
    """Names and defaults without types, whose spelling differs between versions of Python."""
    shown = []
    for parameter in inspect.signature(member).parameters.values():
        text = re.sub(r" object at \w+", "", f"{parameter.name}={parameter.default!r}")
        shown.append(parameter.name if parameter.default is parameter.empty else text)
    return f"({', '.join(shown)})"


def listed() -> str:
    """The list as a text."""
    return "\n".join(signatures()) + "\n"


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
