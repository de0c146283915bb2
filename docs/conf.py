"""The documentation: `uv run --extra docs sphinx-build -W docs site`, then open site/index.html."""

import contextlib
import io
import logging
import os
import re
import warnings
from pathlib import Path

import latex2mathml.converter
from docutils import nodes

import grbm
from grbm import cli
from grbm.cli.main import USAGE
from grbm.cli.names import COMMANDS
from grbm.cli.training import HELP_ALL

project, author, copyright = "grbm", "the authors of grbm", "the authors of grbm, MIT licence"
version = release = grbm.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorials/*", "_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
default_role = "code"
html_theme, html_title = "furo", "grbm"
html_static_path, html_css_files = ["static"], ["grbm.css"]
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say shapes as well, which types cannot
napoleon_google_docstring = False
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "auto_tutorials",
    "filename_pattern": r"/\d_",
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    "show_memory": False,
    "capture_repr": (),
    "download_all_examples": False,
    "abort_on_example_error": True,
    "write_computation_times": False,  # a page that loads scripts from elsewhere
}
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
logging.getLogger("arviz").setLevel(logging.WARNING)


def command_line(app) -> None:
    """The page of the command line, from what its parsers say."""
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    arguments = {
        "train": [["train"], ["train", "array", HELP_ALL]],
        "reproduce": [["reproduce"], ["reproduce", "table1"]],
    }
    parts = ["# The command line", f"```text\n{USAGE}\n```"]
    for command in COMMANDS:
        parts.append(f"## grbm {command}")
        for words in arguments.get(command, [[command]]):
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
                cli.main([*words, "--help"])
            text = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()).strip()
            parts.append(f"```text\n{text}\n```")
    (Path(app.srcdir) / "auto_command_line.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def gallery(app, docname: str, source: list[str]) -> None:
    """Links to tutorials, which are files in a clone, lead to their pages."""
    source[0] = re.sub(r"\]\(tutorials/(\w+)\.py\)", r"](auto_tutorials/\1)", source[0])


def setup(app):
    """Equations as MathML, which browsers draw themselves: nothing is fetched from anywhere."""
    app.connect("source-read", gallery)

    def inline(self, node: nodes.math) -> None:
        self.body.append(latex2mathml.converter.convert(node.astext(), display="inline"))
        raise nodes.SkipNode

    def block(self, node: nodes.math_block) -> None:
        style = "overflow-x: auto; overflow-y: hidden; margin: 1em 0; padding: 0.4em 0"  # wide ones scroll on phones
        self.body.append(self.starttag(node, "div", CLASS="math", style=style))
        self.body.append(latex2mathml.converter.convert(node.astext(), display="block"))
        self.body.append("</div>")
        raise nodes.SkipNode

    app.connect("builder-inited", command_line)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
