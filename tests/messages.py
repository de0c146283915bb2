"""Errors, warnings and notes of the package as its sources word them: one list for a person to review.

    uv run python -m tests.messages        # write the list anew, after wording was changed on purpose

Values that are filled in stand in braces. Tests elsewhere assert the type of an error and the field or value that it
names; its wording stands here alone.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grbm

SOURCE = Path(grbm.__file__).parent
LIST = Path(__file__).with_suffix(".txt")
SAYS = {
    "UserError",
    "DamagedError",
    "ValueError",
    "TypeError",
    "ImportError",
    "OSError",
    "warn_user",
    "warn",
    "warning",
}
SAYS |= {"note", "_say"}
RETURNS = {"core/errors.py", "runs/recording.py"}  # whose functions return sentences


def messages() -> Iterator[tuple[str, str]]:
    """Each message with the module that says it, in the order of the sources."""
    for path in sorted(SOURCE.rglob("*.py")):
        module, tree = path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Return)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            said = ""
            if isinstance(node, ast.Call):
                to_errors = any(word.arg == "file" and "stderr" in ast.unparse(word.value) for word in node.keywords)
                if node.args and (_called(node.func) in SAYS or (_called(node.func) == "print" and to_errors)):
                    said = template(node.args[0])
            elif module in RETURNS and isinstance(node.value, ast.expr) and not isinstance(node.value, ast.Call):
                said = template(node.value)
            if re.search(r"\w \w", re.sub(r"\{[^{}]*\}", "x", said)):  # else a name, or what another function made
                yield module, said


def template(node: ast.expr) -> str:
    """The text of an expression, with braces about whatever is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return "{" + template(node.body) + " | " + template(node.orelse) + "}"
    if isinstance(node, ast.FormattedValue):
        kind = f"!{chr(node.conversion)}" if node.conversion > 0 else ""
        spec = ":" + template(node.format_spec) if node.format_spec else ""
        return "{" + ast.unparse(node.value) + kind + spec + "}"
    return "{" + ast.unparse(node) + "}"


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def listed() -> str:
    """The list as a text, a heading for each module."""
    lines: list[str] = []
    last = ""
    for module, said in messages():
        lines += ([""] if last else []) + [module] if module != last else []
        lines.append("    " + said.replace("\n", "\\n"))
        last = module
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
