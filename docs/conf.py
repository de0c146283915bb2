"""The documentation: `uv run --extra docs sphinx-build -W docs site`, then open site/index.html."""

import logging
import warnings

import latex2mathml.converter
from docutils import nodes

import grbm

project, author, copyright = "grbm", "the authors of grbm", "the authors of grbm, MIT licence"
version = release = grbm.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["tutorials/*", "_build"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
default_role = "code"
html_theme, html_title = "furo", "grbm"
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


def setup(app):
    """Equations as MathML, which browsers draw themselves: nothing is fetched from anywhere."""

    def inline(self, node: nodes.math) -> None:
        self.body.append(latex2mathml.converter.convert(node.astext(), display="inline"))
        raise nodes.SkipNode

    def block(self, node: nodes.math_block) -> None:
        style = "overflow-x: auto; overflow-y: hidden; margin: 1em 0; padding: 0.4em 0"  # wide ones scroll on phones
        self.body.append(self.starttag(node, "div", CLASS="math", style=style))
        self.body.append(latex2mathml.converter.convert(node.astext(), display="block"))
        self.body.append("</div>")
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (block, None))
