"""--report: which plugin writes the file."""

from __future__ import annotations

import pytest

from narrowpass import ReportWriter


class Lines(ReportWriter):
    """Writes the title and the methods."""

    name = "txt"

    def render(self, bundle, title):
        return "\n".join([title, *bundle.methods])


class Marks(Lines):
    """Writes another format."""

    name = "html"

    def render(self, bundle, title):
        return f"<{title}>"


@pytest.mark.parametrize("command", [["build", "-o", "o.narrow"], ["explain"]])
def test_the_ending_chooses_the_writer(call, install, model, tmp_path, command):
    install(narrowpass_reports=[Lines(), Marks()])
    name, *output = command
    title = output[-1] if output else model
    for file, content in (
        ("r.txt", f"{title}\nmain"),
        ("r.html", f"<{title}>"),
        ("r", f"<{title}>"),
    ):
        assert f"wrote {file}" in call(name, model, *output, "-p", "", "--report", file).out
        assert (tmp_path / file).read_text("utf-8") == content


@pytest.mark.parametrize("writers", [[], [Lines()]])
def test_a_missing_writer_is_named_before_anything_is_built(
    call, install, model, tmp_path, writers
):
    install(narrowpass_reports=writers)
    error = call("build", model, "-o", "o.narrow", "-p", "", "--report", "r.html", code=2).err
    # What is said where the distribution that has one is not installed: test_missing.py.
    if "html is a format of" not in error:
        assert f"report writers: {writers[0].name if writers else 'none'}" in error
    assert not (tmp_path / "o.narrow").exists()


def test_a_writer_that_is_none_is_refused(call, install):
    install(narrowpass_reports=[3])
    assert (
        "is not an instance of narrowpass.ReportWriter" in call("plugins").err + call("passes").err
    )
