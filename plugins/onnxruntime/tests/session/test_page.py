"""The blocks of the page on this class do what it shows."""

import doctest
import re
from pathlib import Path

import onnxruntime
import pytest
from session_kit import OURS

PAGE = Path(__file__).parents[4] / "docs" / "howto" / "inference-session.md"
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_page(tmp_path, monkeypatch):
    pytest.importorskip("narrowpass_xnn_cpu")
    pytest.importorskip("narrowpass_int8_sym")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(onnxruntime, "InferenceSession", onnxruntime.InferenceSession)
    names = {}
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert [kind for kind, _ in blocks].count("pycon") >= 2
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)  # the page's own code
            continue
        test = doctest.DocTestParser().get_doctest(text, names, "page", str(PAGE), 0)
        runner = doctest.DocTestRunner()
        assert runner.run(test, clear_globs=False).failed == 0
        names.update(test.globs)
    assert onnxruntime.InferenceSession is OURS
