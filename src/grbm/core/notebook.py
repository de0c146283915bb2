"""Tables that show an object in a notebook."""

from collections.abc import Mapping
from html import escape

CELL = "text-align: left; padding: 0.15em 1em 0.15em 0"


def facts(title: str, rows: Mapping[str, str]) -> str:
    """HTML of a title and of ``rows`` of a name and a text each."""
    lines = "".join(
        f'<tr><th scope="row" style="{CELL}; font-weight: normal">{escape(name)}</th>'
        f'<td style="{CELL}">{escape(text)}</td></tr>'
        for name, text in rows.items()
    )
    return f"<div><strong>{escape(title)}</strong><table>{lines}</table></div>"
