"""The structs that native code is handed, as its C source declares them: ``structs.Walk`` is Walk in steps.h."""

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
HEADERS = [FOLDER / f"{name}.h" for name in ("arithmetic", "tiles", "steps", "averages")]
SOURCES = [
    FOLDER / f"{name}.c"
    for name in (
        "native",
        "packing",
        "tempered",
        "given",
        "collapsed",
        "jumps",
        "averages",
        "climbing",
        "learning",
        "noise",
    )
]
NUMBERS = ("int64_t", "uint64_t", "uint32_t", "float", "double")


@functools.cache
def handed() -> dict[str, Any]:
    """All structs that the source marks as HANDED, by their names: of numbers, pointers, and structs before them."""
    code = "".join(re.sub(r"//.*", "", path.read_text("utf-8")) for path in (*HEADERS, *SOURCES))
    kinds: dict[str, Any] = {name: getattr(ctypes, f"c_{name.removesuffix('_t')}") for name in NUMBERS}
    marked = set(re.findall(r"HANDED\((\w+)\)", code))
    for body, name in re.findall(r"typedef struct \{([^{}]*)\} (\w+);", code):
        if name in marked:
            lines = [line.removeprefix("const ").split(maxsplit=1) for line in map(str.strip, body.split(";")) if line]
            fields = [(kind, field.strip()) for kind, names in lines for field in names.split(",")]
            typed = [(x.lstrip("*"), ctypes.c_void_p if x[0] == "*" else kinds[kind]) for kind, x in fields]
            kinds[name] = type(name, (ctypes.Structure,), {"_fields_": typed})
    return {name: kind for name, kind in kinds.items() if name in marked}


def __getattr__(name: str) -> Any:
    """The struct of this name."""
    if name.startswith("_") or name not in handed():
        raise AttributeError(f"Native code is handed no {name}.")
    globals().update(handed())  # asked for once
    return handed()[name]
