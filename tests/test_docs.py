"""The documentation: tutorials run, pages build without a warning, links on them lead somewhere."""

import html.parser
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.whole
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_run(path, tmp_path):
    """As they are, at full length, with warnings of the library's own as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(path)],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_there_is_a_tutorial_for_each_subject():
    found = " ".join(path.stem for path in TUTORIALS)
    subjects = "mixtures digits own_array likelihoods binary_codes inpainting sampler gaps weight"
    for subject in subjects.split():
        assert subject in found


class Links(html.parser.HTMLParser):
    """What a page links to, and what can be linked to on it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.to.append(value)
            if name in ("id", "name") and value:
                self.ids.add(value)


@pytest.mark.whole
def test_the_site_builds_and_its_links_resolve(tmp_path):
    """Without running the tutorials, which are run above. Nothing on the pages is fetched from elsewhere."""
    for package in ("sphinx_gallery", "myst_parser", "furo", "latex2mathml"):
        pytest.importorskip(package, reason="needs the packages of the pages: uv run --extra docs pytest")
    source, site = tmp_path / "docs", tmp_path / "site"
    subprocess.run(["cp", "-r", str(ROOT / "docs"), str(source)], check=True)
    command = ["sphinx", "-q", "-W", "--keep-going", "-D", "plot_gallery=0", str(source), str(site)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.resolve(): Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 20
    for page, links in pages.items():
        for link in links.to:
            if re.match(r"[a-z]+:", link):
                assert link.startswith(("https://", "data:", "mailto:")), f"{page.name}: {link}"
                continue
            target, _, fragment = unquote(link.split("?")[0]).partition("#")
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.name}: {link}"
            if fragment and there in pages:
                assert fragment in pages[there].ids, f"{page.name}: {link}"
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=.https?://", text), page.name


def test_the_appendix_is_what_its_logs_make():
    """A log that changes, or is new, wants `python docs/lab/make_appendix.py`."""
    spec = importlib.util.spec_from_file_location("make_appendix", ROOT / "docs" / "lab" / "make_appendix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "lab" / "appendix.md").read_text(encoding="utf-8") == module.page()
    assert "seed" in module.page()
