"""Each notebook of the gallery runs from its first cell to its last, whose assertions hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
NOTEBOOKS = sorted(GALLERY.glob("*.ipynb"))


def test_there_are_notebooks():
    names = {path.stem for path in NOTEBOOKS}
    assert {
        "chat",
        "embedding-search",
        "first-backend",
        "first-pass",
        "ocr",
        "voice-activity",
    } <= names


@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, tmp_path, monkeypatch):
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    for name in notebook.metadata["narrowpass"]["requires"]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name}, which has the model or reads it, is not installed")
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "cache"))
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=300, resources=resources).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_end_in_assertions(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert "assert" in code[-1].source
