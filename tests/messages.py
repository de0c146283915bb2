"""Every error, warning and note that the package can print, as its source has it: one list for a person to review.

    uv run python -m tests.messages        # write the list anew, after wording was changed on purpose

Values that are filled in stand in braces. Tests elsewhere assert the type of an error and the field or value that it
names; how it is worded stands here alone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import grbm

SOURCE = Path(grbm.__file__).parent
LIST = Path(__file__).with_suffix(".txt")
SAYS = {"UserError", "DamagedError", "ValueError", "TypeError", "warn_user", "warn", "warning", "ImportError"}


def messages() -> Iterator[tuple[str, str]]:
    """Each message with the module that says it, in the order of the sources."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _called(call.func) in SAYS and call.args:
                said = template(call.args[0])
                if " " in said:  # else a name, or a sentence that another function made
                    yield path.relative_to(SOURCE).as_posix(), said


def template(node: ast.expr) -> str:
    """The text of an expression, with braces about whatever is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    return "{" + ast.unparse(inner) + "}"


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
