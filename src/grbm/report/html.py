"""Pieces of a page that needs nothing but a browser: every picture is its own address."""

import base64
import io
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files as resources
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from grbm.core.streams import IN_TEXT


def page(title: str, body: Sequence[str]) -> str:
    """One file without any address: the policy forbids the browser to fetch anything."""
    css, js = ((resources("grbm.report") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · grbm</title>
<link rel="icon" href="data:,">
<style>
{css}</style>
</head>
<body>
<main>
{chr(10).join(body)}
</main>
<script>
{js}</script>
</body>
</html>
"""
    return text.translate(IN_TEXT)


def section(title: str, *parts: str) -> str:
    """A part of the page under a heading."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{chr(10).join(parts)}\n</section>"


def table(rows: Sequence[Sequence[str]], head: Sequence[str], own: str = "") -> str:
    """Rows of text; the one whose first cell is ``own`` stands out."""

    def line(kind: str, row: Sequence[str]) -> str:
        rest = "".join(f"<{kind}{' class=wrap' if len(x) > 40 else ''}>{escape(x)}</{kind}>" for x in row[1:])
        return f"<tr{' class=own' if row[0] == own else ''}><th scope=row>{escape(row[0])}</th>{rest}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table><thead>{line("th", head)}</thead><tbody>{body}</tbody></table></div>'


def figure(source: str, caption: str, alt: str, kind: str = "", style: str = "") -> str:
    """A picture with a caption; ``kind`` is its class in page.css."""
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    look = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "")
    return f'<figure><img src="{source}" alt="{escape(alt)}"{look}>{words}</figure>'


def picture(array: np.ndarray) -> str:
    """An array (H, W, 3) in [0, 1] as the address of a picture that is its own content."""
    pixels = (array * 255).round().astype(np.uint8)
    if (pixels == pixels[..., :1]).all():
        return _address("png", Image.fromarray(pixels[..., 0]).save, optimize=True)
    # noise in colour does not shrink without loss
    return _address("jpeg", Image.fromarray(pixels).save, quality=90, subsampling=0)


def raster(drawn: Figure) -> str:
    """A figure as the address of a picture in pixels."""
    return _address("png", drawn.savefig, dpi=150)


def pixels(drawn: np.ndarray) -> str:
    """Data address of the picture on a canvas, (H, W, 4) of uint8."""
    return _address("png", Image.fromarray(drawn).save)


def svg(drawn: Figure) -> str:
    """Data address of a figure, as a drawing."""
    return _address("svg", drawn.savefig, metadata={"Date": None}, transparent=True)


def _address(kind: str, save: Callable[..., object], **options: Any) -> str:
    """Data address of the picture that ``save`` writes in the format ``kind``."""
    content = io.BytesIO()
    save(content, format=kind, **options)
    mime = "svg+xml" if kind == "svg" else kind
    return f"data:image/{mime};base64,{base64.b64encode(content.getvalue()).decode()}"
