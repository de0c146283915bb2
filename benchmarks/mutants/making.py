"""Mutants: the places of a source where a small change is possible, and the source with one of them changed.

Python is changed by the operators of cosmic-ray, C by exchanging one token.
"""

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "grbm"
C_SOURCES = SOURCE / "samplers" / "engines"

C_TOKENS = {
    **{"+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "++": "--"},
}
C_SCAN = re.compile(
    r"(?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\"(?:\\.|[^\"])*\"|'(?:\\.|[^'])*'|->|<<=?|>>=?|--)"
    r"|(?P<number>(?<![\w.])(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?)[uUlLfF]*)"
    r"|(?P<token>\+\+|[-+*/]=|[<>=!]=|&&|\|\||(?<=\s)[-+*/<>](?=\s))",
    re.DOTALL | re.MULTILINE,
)


class Mutant(NamedTuple):
    """A change of a source: of ``path`` below the root, at ``line``, the ``occurrence`` of ``operator``."""

    group: str
    path: str
    line: int
    operator: str
    occurrence: int


def groups() -> dict[str, list[Path]]:
    """The sources of each group that a sample is drawn from, by the group's name."""
    found = {
        "model": [SOURCE / "model" / "energy.py", SOURCE / "model" / "grbm.py"],
        "moments": [SOURCE / "samplers" / "moments.py"],
        **{name: [SOURCE / "learning" / f"{name}.py"] for name in ("objectives", "descent")},
        **{name: sorted((SOURCE / name).rglob("*.py")) for name in ("samplers", "evaluate", "data", "runs")},
        "C": sorted([*C_SOURCES.glob("*.c"), *C_SOURCES.glob("*.h")]),
    }
    return found


def sample(n: int, seed: int, chosen: dict[str, list[Path]]) -> list[Mutant]:
    """Draw ``n`` mutants, as many of each group as far as its places go, each of another place.

    A place is a token of the source; of the changes that are possible there one is drawn.
    """
    drawn: list[Mutant] = []
    rng = random.Random(seed)
    for k, (group, paths) in enumerate(chosen.items()):
        places: dict[tuple[str, tuple[int, int]], list[Mutant]] = defaultdict(list)
        for path in paths:
            for start, mutant in mutants_of(group, path):
                places[mutant.path, start].append(mutant)
        wanted = n // len(chosen) + (k < n % len(chosen))
        for place in rng.sample(sorted(places), min(wanted, len(places))):
            drawn.append(rng.choice(places[place]))
    return drawn


def mutants_of(group: str, path: Path) -> Iterator[tuple[tuple[int, int], Mutant]]:
    """All mutants of a source, each with the line and column of its token."""
    short, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for k, found in enumerate(_tokens(text)):
            line = text.count("\n", 0, found.start()) + 1
            yield (line, found.start() - text.rfind("\n", 0, found.start())), Mutant(group, short, line, "C", k)
        return
    from cosmic_ray.ast import ast_nodes, get_ast

    passed_over, tree = _said_of_types(text), get_ast(text)
    for name, operator in _operators().items():
        positions = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for k, start in enumerate(positions):
            if not any(first <= start < last for first, last in passed_over):
                yield start, Mutant(group, short, start[0], name, k)


@cache
def _operators() -> dict[str, object]:
    """The operators of cosmic-ray that exchange what a person could confuse.

    Without a decorator a module mostly fails to import, bits of floating-point numbers cannot be shifted, and numbers
    are not compared by identity: any test would kill such mutants, and they would only flatter the shares.
    """
    from cosmic_ray.plugins import get_operator, operator_names

    found = {}
    for name in operator_names():
        operator, (kind, *between) = get_operator(name), name.partition("/")[2].split("_")
        arithmetic = kind != "ReplaceBinaryOperator" or set(between) <= {
            "Add",
            "Sub",
            "Mul",
            "Div",
            "FloorDiv",
            "Mod",
            "Pow",
        }
        identity = {"Is", "IsNot"} & set(between)
        if arithmetic and len(identity) != 1 and kind != "RemoveDecorator" and not operator.arguments():
            found[name] = operator()
    return found


def _said_of_types(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Find the places of annotations and blocks for type checkers, which do nothing when the program runs."""
    nodes: list[ast.AST] = []
    for node in ast.walk(ast.parse(text)):
        nodes += [part for name in ("annotation", "returns") if (part := getattr(node, name, None)) is not None]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes.append(node)
    return [((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)) for node in nodes]  # type: ignore[attr-defined]


def _tokens(text: str) -> list[re.Match[str]]:
    """Numbers and operators of a C source, in order, comments and preprocessor lines left out."""
    return [found for found in C_SCAN.finditer(text) if not found["skip"]]


def mutated(mutant: Mutant, text: str) -> str:
    """The source ``text`` with the change of ``mutant``."""
    if mutant.operator != "C":
        from cosmic_ray.mutating import mutate_code

        changed = mutate_code(text, _operators()[mutant.operator], mutant.occurrence)
        assert changed is not None, mutant
        return str(changed)
    found = _tokens(text)[mutant.occurrence]
    return text[: found.start()] + _other(found) + text[found.end() :]


def _other(found: re.Match[str]) -> str:
    """Another token in place of one: an integer one more, a fraction half as much again, an operator its opposite."""
    if found["token"]:
        return C_TOKENS[found["token"]]
    number = found["number"].rstrip("uUlLfF") if not found["number"].lower().startswith("0x") else found["number"]
    suffix = found["number"][len(number) :]
    if number.lower().startswith("0x"):
        digits = number.rstrip("uUlL")
        return hex(int(digits, 16) + 1) + number[len(digits) :]
    return (str(int(number) + 1) if number.isdigit() else repr(1.5 * float(number) or 0.5)) + suffix
