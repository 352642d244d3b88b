"""The check of words, `tools/prose.py`, on folders written for these tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "prose.py"
WORDS = """\
skip = ["skipped/"]

[[rule]]
avoid = "products?"
write = "matmul"
allow = "dot products?"

[[rule]]
avoid = "asked for ahead"
write = "software prefetch"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the words above and an empty baseline."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "prose.toml").write_text(WORDS, encoding="utf-8")
    set_baseline(tmp_path, "")
    return tmp_path


def set_baseline(root: Path, lines: str) -> None:
    text = f"[folders]\n{lines}"
    (root / "tools" / "prose_baseline.toml").write_text(text, encoding="utf-8")


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--root", str(root), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("The products of a layer.", "products"),
        ("def few_rows_product(x):", "product"),
        ("class Int8Product:", "product"),
        ("class BF16ProductChoice:", "product"),
        ("rows are asked for ahead", "asked for ahead"),
    ],
)
def test_finds_words_and_identifiers(checkout: Path, line: str, word: str) -> None:
    write(checkout, "docs/page.md", f"# Page\n\n{line}\n")
    done = run(checkout, "docs")
    assert done.returncode == 1
    assert done.stdout.startswith(f"docs/page.md:3: {word!r} -> ")
    assert len(done.stdout.splitlines()) == 1


def test_finds_file_names(checkout: Path) -> None:
    write(checkout, "docs/few_products.py", "")
    assert run(checkout, "docs").stdout.startswith("docs/few_products.py:1: 'products' -> matmul")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/a.md", "the dot products of rows"),
        ("docs/a.md", "production, byproducts"),
        ("skipped/a.md", "products"),
        (".hidden/a.md", "products"),
        ("docs/a.onnx", "products"),
    ],
)
def test_leaves_legitimate_uses_alone(checkout: Path, name: str, text: str) -> None:
    write(checkout, name, text)
    done = run(checkout)
    assert (done.returncode, done.stderr) == (0, "")


def test_more_than_the_baseline_fails(checkout: Path) -> None:
    set_baseline(checkout, "docs = 1\n")
    write(checkout, "docs/a.md", "product, product")
    done = run(checkout)
    assert done.returncode == 1
    assert "docs: 2 findings, the baseline allows 1" in done.stderr
    assert run(checkout, "--update").returncode == 1
    assert run(checkout).returncode == 1


def test_an_empty_baseline_allows_no_finding(checkout: Path) -> None:
    write(checkout, "docs/a.md", "a matmul\n\na product, a product")
    write(checkout, "tools/b.py", "")
    done = run(checkout)
    assert done.returncode == 1
    line = "docs/a.md:3: 'product' -> matmul"
    assert done.stderr.splitlines() == [line, line]
    assert run(checkout, "--update").returncode == 1
    write(checkout, "docs/a.md", "a matmul")
    assert run(checkout).returncode == 0


def test_fewer_than_the_baseline_must_lower_it(checkout: Path) -> None:
    set_baseline(checkout, "docs = 2\ntools = 1\n")
    write(checkout, "docs/a.md", "product")
    done = run(checkout)
    assert done.returncode == 1
    assert "docs: 1 findings, below the baseline of 2" in done.stderr
    assert "tools: 0 findings, below the baseline of 1" in done.stderr
    assert run(checkout, "--update").returncode == 0
    assert run(checkout).returncode == 0


def test_counts_move_with_their_files(checkout: Path) -> None:
    """`--update` allows a larger number in one folder where the total does not grow."""
    set_baseline(checkout, '"core/src" = 1\n')
    write(checkout, "plugins/new/src/a.py", "product = 1\n")
    assert run(checkout).returncode == 1
    assert run(checkout, "--update").returncode == 0
    assert run(checkout).returncode == 0
