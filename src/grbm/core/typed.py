"""Files of JSON read back as what a type hint says, every value checked: the right syntax may hold anything."""

import errno
import json
import types
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read_bytes(path: Path) -> bytes:
    """The content of a file; raises OSError for anything else, such as a pipe, which would be waited for."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "it is no file", str(path))
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Content of a file of JSON; raises OSError where it is no file, and ValueError where it is no JSON."""
    try:
        return json.loads(read_bytes(path).decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def restore(kind: type[T], value: Any, where: str = "") -> T:
    """``value``, as JSON gave it, as a dataclass or NamedTuple ``kind``; fields that are not given keep their defaults.

    Raises
    ------
    ValueError
        For a field that ``kind`` has not, one that it needs, and one of another type; the message names it, as one of
        what is called ``where``.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where or kind.__name__} is {_short(value)}")
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else list(kind._fields)  # type: ignore[attr-defined]
    within = f"{where}." if where else ""
    if unknown := sorted(value.keys() - set(names)):
        raise ValueError(f"there is no {within}{unknown[0]}")
    hints = get_type_hints(kind)
    given = {name: _restored(hints[name], value[name], f"{within}{name}") for name in names if name in value}
    try:
        return kind(**given)
    except TypeError as error:  # something without a default is missing
        raise ValueError(f"{where or kind.__name__}: {error}") from error


def is_kind(hint: Any, value: Any) -> bool:
    """Whether ``value``, as JSON gave it, is what ``hint`` says."""
    with suppress(ValueError):
        _restored(hint, value, "")
        return True
    return False


def _restored(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _restored(option, value, where)
            except ValueError:
                if _is_record(option) and isinstance(value, dict):  # nothing else can take it; say what is wrong in it
                    raise
    elif origin is Literal:
        if any(value == option and type(value) is type(option) for option in args):
            return value
    elif _is_record(hint):
        return restore(hint, value, where)
    elif origin in (list, tuple) and isinstance(value, list | tuple):
        if origin is list or args[1:] == (...,):
            return origin(_restored(args[0], x, f"{where}[{k}]") for k, x in enumerate(value))
        if len(args) == len(value):
            return tuple(_restored(a, x, f"{where}[{k}]") for k, (a, x) in enumerate(zip(args, value, strict=True)))
    elif origin is dict and isinstance(value, dict):
        return {name: _restored(args[1], x, f"{where}[{name!r}]") for name, x in value.items()}
    elif hint is Path and isinstance(value, str):
        return Path(value)
    elif hint in (int, float) and type(value) is int and abs(value) < 2**63:
        return value  # a whole number stays one: configurations are compared as they are written
    elif hint in (float, str, bool, types.NoneType) and type(value) is hint:
        return value
    raise ValueError(f"{where or 'it'} is {_short(value)}")


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or (issubclass(hint, tuple) and hasattr(hint, "_fields")))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
