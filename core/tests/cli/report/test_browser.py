"""The page in a headless browser: its script runs, draws all, and answers."""

from __future__ import annotations

import html
import html.parser
import shutil
import subprocess
from pathlib import Path

import pytest

from narrowpass.cli.report import render

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1400,1000",
    "--virtual-time-budget=5000",
    "--dump-dom",
)

pytestmark = pytest.mark.once


class Dom(html.parser.HTMLParser):
    """Attributes of the body, the text of the panel with details, and tags."""

    def __init__(self, content):
        super().__init__()
        self.body, self.panel, self.trail, self.tags, self._open = {}, "", "", set(), []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "body":
            self.body = {name.removeprefix("data-"): value for name, value in attrs}
        if tag in ("aside", "nav"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        if self._open[-1:] == [tag]:
            self._open.pop()

    def handle_data(self, data):
        if self._open == ["aside"]:
            self.panel += data + "\n"
        if self._open == ["nav"]:
            self.trail += data + "\n"


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Give a function that opens a file and gives its document once scripts have run."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")

    def run(url):
        profile = tmp_path_factory.mktemp("profile")
        command = [found, *_OPTIONS, f"--user-data-dir={profile}", url]
        return subprocess.run(
            command, check=False, capture_output=True, text=True, encoding="utf-8", timeout=300
        )

    probe = tmp_path_factory.mktemp("probe") / "probe.html"
    script = "<script>document.body.dataset.probe = 6 * 7</script>"
    probe.write_text(f"<body>{script}", encoding="utf-8")
    done = run(probe.as_uri())
    if 'data-probe="42"' not in done.stdout:
        pytest.skip(f"{found} does not run here: {done.stderr.strip()[-300:]}")
    return run


@pytest.fixture
def visit(browser, tmp_path):
    """Give a function that makes a page and opens it."""

    def open_page(bundle, fragment=""):
        file = Path(tmp_path, "page.html")
        file.write_text(render(bundle, "title"), encoding="utf-8")
        done = browser(file.as_uri() + fragment)
        assert done.returncode == 0, done.stderr
        dom = Dom(done.stdout)
        assert dom.body["errors"] == ""
        return dom

    return open_page


def test_draws_all_of_many_nodes(visit, deep):
    dom = visit(deep(560))
    assert dom.body["drawn"] == "5040"
    assert "canvas" in dom.tags
    assert "5040 nodes" in dom.panel


def test_choose_node(visit, deep):
    bundle = deep(3)
    node = next(n for n in bundle.methods["main"].graph if n.op_type == "Relu")
    dom = visit(bundle, f"#node={node.name}")
    assert dom.body["selected"] == node.name
    assert dom.body["found"] == "1"
    for text in (node.name, "Relu", "float16", "red, wide", "it is too large", "limit 65500"):
        assert text in dom.panel


def test_search_operator(visit, deep):
    dom = visit(deep(3), "#find=matmul")
    assert dom.body["found"] == "9"
    assert "weight, 256 B" in dom.panel


def test_search_finds_nothing(visit, deep):
    dom = visit(deep(1), "#find=nothing")
    assert dom.body["found"] == "0"


def test_subgraph_opens(visit, nested):
    dom = visit(nested, "#node=within%20then")
    assert dom.body["selected"] == "within then"
    assert dom.body["drawn"] == "1"
    assert "choose: then_branch" in dom.trail
    assert "main graph" in dom.trail
    assert "value from outside" not in dom.panel
    assert "from captured m" in dom.panel


def test_hostile_names_stay_text(visit, hostile):
    node = next(iter(hostile.methods["main"].graph))
    dom = visit(hostile, "#find=matmul")
    assert dom.body["selected"] == node.name
    assert "harm" not in dom.body
    assert "img" not in dom.tags
    assert node.name in html.unescape(dom.panel)
    assert "measured inf" in dom.panel
