from __future__ import annotations

import errno
import os

import pytest

from narrowpass import Pipeline
from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.config import project_file, project_pipelines, registry_for


@pytest.fixture
def plugins(entry_point, touch):
    from narrowpass import load_plugins

    return load_plugins(entry_points=[entry_point("fake", narrowpass_passes=[touch])])


def write(folder, text):
    path = folder / "pyproject.toml"
    path.write_text(text, "utf-8")
    return path


def test_pipelines_of_the_project_around_a_folder_are_known(tmp_path, plugins):
    write(tmp_path, '[tool.narrowpass.pipelines]\nmine = "touch,touch{label=x}"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    registry = registry_for(plugins, inner)
    assert [str(item) for item in Pipeline.parse("mine", registry)] == ["touch", "touch{label=x}"]
    assert registry.owner("pipelines", "mine") == str(tmp_path / "pyproject.toml")


@pytest.mark.parametrize(
    "text", ["", "[tool]\n", "[tool.other]\nx = 1\n", "tool = 3\n", "[tool]\nnarrowpass = 3\n"]
)
def test_a_project_without_pipelines_adds_none(tmp_path, plugins, text):
    write(tmp_path, text)
    assert registry_for(plugins, tmp_path).pipelines == {}


def test_a_folder_that_cannot_be_looked_into_has_no_project_file(tmp_path, monkeypatch):
    """As one above the current folder may be, whose owner lets others pass through its folders."""
    nearest = tmp_path / "pyproject.toml"
    nearest.write_text("")
    stat = os.stat

    def refused(path, *given, **more):
        if str(path).startswith(str(tmp_path / "inner")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *given, **more)

    monkeypatch.setattr(os, "stat", refused)
    assert project_file(tmp_path / "inner") == nearest


def test_the_nearest_project_file_counts(tmp_path):
    write(tmp_path, "")
    inner = tmp_path / "a"
    inner.mkdir()
    nearest = write(inner, "")
    assert project_file(inner) == nearest
    assert project_file(tmp_path) == tmp_path / "pyproject.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool", "cannot be read"),
        ("[tool.narrowpass]\npipelines = 3\n", "is not a table"),
        ("[tool.narrowpass.pipelines]\nmine = 3\n", "pipeline 'mine' is not text"),
    ],
)
def test_unusable_tables_name_the_file(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=message) as caught:
        project_pipelines(path)
    assert str(path) in str(caught.value)


def test_a_name_that_a_pass_has_is_taken(tmp_path, plugins):
    write(tmp_path, '[tool.narrowpass.pipelines]\ntouch = ""\n')
    with pytest.raises(PluginError, match=r"'touch' .* dist-fake 1\.0 and .*pyproject\.toml"):
        registry_for(plugins, tmp_path)
