"""The page in a headless browser: its script runs, draws all, and answers."""

from __future__ import annotations

import html
import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from narrowpass import Histogram
from narrowpass.bundle import Bundle, MethodReport, Report
from narrowpass_report import layout
from narrowpass_report.page import render

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


class Dom(html.parser.HTMLParser):
    """Attributes of the body, tags, and the texts of details, trail and legend."""

    def __init__(self, content):
        super().__init__()
        self.body, self.tags, self._open = {}, set(), []
        self.panel = self.trail = self.legend = ""
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "body":
            self.body = {name.removeprefix("data-"): value for name, value in attrs}
        if tag in ("aside", "nav"):
            self._open.append(tag)
        if ("class", "legend") in attrs:
            self._open.append("div")

    def handle_endtag(self, tag):
        if self._open[-1:] == [tag]:
            self._open.pop()

    def handle_data(self, data):
        if self._open == ["aside"]:
            self.panel += data + "\n"
        if self._open == ["nav"]:
            self.trail += data + "\n"
        if self._open == ["div"]:
            self.legend += data


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Return a function that opens a file and returns its document once scripts have run."""
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
    """Return a function that creates a page and opens it."""

    def open_page(bundle, fragment="", script=""):
        content = render(bundle, "title")
        if script:  # run it beside ours, which the page's policy does not allow
            content = re.sub(r"<meta http-equiv[^>]*>", "", content, count=1)
            head, end, tail = content.rpartition("})();")
            content = head + script + end + tail
        file = Path(tmp_path, "page.html")
        file.write_text(content, encoding="utf-8")
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


@pytest.mark.parametrize(
    ("mode", "entries"),
    [
        ("precision", ("float32 21", "float16 6")),
        ("decision", ("green 9", "gray 9", "red 9")),
        ("range", ("over the limit 9", "not measured 18")),
        ("error", ("to 10⁻³ 9", "not measured 18")),
        ("bytes", ("no weights 18", "below 1 kB 9")),
    ],
)
def test_color_by(visit, deep, mode, entries):
    dom = visit(deep(3), f"#by={mode}")
    assert dom.body["drawn"] == "27"
    for entry in entries:
        assert entry in " ".join(dom.legend.split())


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


_EVENTS = """
const view = viewers[0], { canvas } = view;
canvas.setPointerCapture = () => {};
const at = (i) => [view.camera.x + view.camera.k * view.scene.nodes[i].x,
  view.camera.y + view.camera.k * view.scene.nodes[i].y];
const point = (type, [x, y], id = 1, kind = PointerEvent) => {
  const box = canvas.getBoundingClientRect(), [clientX, clientY] = [box.left + x, box.top + y];
  canvas.dispatchEvent(new kind(type, { clientX, clientY, pointerId: id, deltaY: -300 }));
};
const index = (name) => view.graph.nodes.findIndex((node) => node.name === name);
const check = (what, is) => { if (!is) throw new Error(what); };
"""


def test_pointer_and_keys(visit, nested):
    script = """
    const top = index("top");
    point("pointermove", at(top));
    check("tip", !view.tip.hidden && view.tip.textContent.includes("ReduceMax"));
    point("pointerdown", at(top));
    point("pointerup", at(top));
    check("click", view.selected === top);
    const before = at(top);
    point("pointerdown", [5, 5]);
    point("pointermove", [45, 25]);
    point("pointerup", [45, 25]);
    check("drag", Math.abs(at(top)[0] - before[0] - 40) < 1 && view.selected === top);
    const { k } = view.camera, [x, y] = at(top);
    point("wheel", [x, y], 1, WheelEvent);
    check("wheel", view.camera.k > k && Math.hypot(at(top)[0] - x, at(top)[1] - y) < 2);
    const wheeled = view.camera.k;
    point("pointerdown", [50, 50], 1);
    point("pointerdown", [60, 50], 2);
    point("pointermove", [55, 50], 2);
    point("pointerup", [50, 50], 1);
    point("pointerup", [55, 50], 2);
    check("pinch", Math.abs(view.camera.k - wheeled / 2) < 0.01);
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
    check("fit", view.camera.k === k);
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    check("escape", view.selected === null);
    view.legend.querySelector("button").click();
    check("legend", view.only !== null);
    point("dblclick", at(index("choose")), 1, MouseEvent);
    check("open", view.graph.title.endsWith("_branch"));
    view.trail.querySelector("button").click();
    check("back", view.number === 0);
    view.select(index("call"));
    view.panel.querySelector("button.open").click();
    check("function", view.graph.title === "function Twice" && view.trail.children.length === 2);
    body.dataset.events = "done";
    """
    assert visit(nested, script=_EVENTS + script).body["events"] == "done"


def test_tables_lead_to_the_graph(visit, deep):
    script = """
    document.querySelector("table[data-method] tbody td").click();
    body.dataset.events = view.graph.nodes[view.selected].name;
    """
    bundle = deep(1)
    dom = visit(bundle, script=_EVENTS + script)
    assert dom.body["events"] == next(iter(bundle.methods["main"].graph)).name


def test_longest_lines_are_drawn_on_demand(visit, deep, monkeypatch):
    for name in ("_LEAST", "_POINTS", "_NEAR"):
        monkeypatch.setattr(layout, name, 1)
    script = """
    const end = view.graph.far[0];
    check("hidden", view.farLines().length === 0);
    view.select(end, true);
    check("shown", view.farLines().length > 0);
    body.dataset.events = "done";
    """
    dom = visit(deep(9), script=_EVENTS + script)
    assert dom.body["events"] == "done"


def test_histograms_are_drawn(visit, deep):
    model = deep(1).methods["main"]
    name = next(iter(model.graph)).name
    shown = Histogram(-1.0, 1.0, (1, 9, 9, 1), 3, (-0.5, 0.5)).to_json()
    fields = {"node": name, "op_type": "MatMul", "decision": "int8", "by": "rule", "sqnr": 30.0}
    report = Report("int8-sym", {"main": MethodReport(({**fields, "histogram": shown},))})
    script = """
    const bars = document.querySelector(".histograms .inside"), frame = bars.ownerSVGElement;
    check("size", frame.clientWidth > 100 && frame.clientHeight > 30);
    check("bars", bars.getBBox().width === 128 && bars.getBBox().height === 64);
    check("colour", getComputedStyle(bars).fill !== "rgb(0, 0, 0)");
    document.querySelector("table.noise tbody td").click();
    body.dataset.events = view.graph.nodes[view.selected].name;
    """
    dom = visit(Bundle({"main": model}, reports=[report]), script=_EVENTS + script)
    assert dom.body["events"] == name
