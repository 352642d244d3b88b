"""Threads of a process in a control group with a CPU quota, as containers have them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("narrowpass_xnn_cpu")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
]

MODEL = "g (float[N, 8] x) => (float[N, 8] y) { y = Relu(x) }"
PROCESS = """
import json, sys, threading
import narrowpass
from narrowpass.runtime.processors import usable_processors

with narrowpass.load(sys.argv[1], "xnn-cpu", cache=False):
    started = sum(thread.name.startswith("narrowpass-") for thread in threading.enumerate())
print(json.dumps([usable_processors(), 1 + started]))
"""


@pytest.fixture(scope="module")
def group():
    from faults.groups import NoGroupError
    from faults.groups import group as created

    try:
        with created("cpu") as found:
            joined = subprocess.run(
                found.command(["true"]), capture_output=True, text=True, check=False
            )
            if joined.returncode:
                pytest.skip(f"no process can join a control group: {joined.stderr}")
            yield found
    except NoGroupError as error:
        pytest.skip(str(error))


@pytest.fixture
def below(group):
    """Return a group without a quota in the one that gets it."""
    found = replace(group, folder=group.folder / "below")
    found.folder.mkdir()
    yield found
    found.folder.rmdir()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from narrowpass import save_model
    from narrowpass_testing import model_from_text

    path = tmp_path_factory.mktemp("model") / "m.onnx"
    save_model(model_from_text(MODEL), path)
    return path


def counts(model, group=None):
    """Return what a process counts as its processors, and how many threads compute."""
    command = [sys.executable, "-c", PROCESS, str(model)]
    done = subprocess.run(
        group.command(command) if group else command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def processors(model):
    """Return how many processors a process outside the group has."""
    found, threads = counts(model)
    assert threads == found
    if found == 1:
        pytest.skip("one processor is no more than any quota")
    return found


@pytest.mark.parametrize(("quota", "most"), [(1.0, 1), (1.5, 2)])
@pytest.mark.parametrize("which", ["group", "below"])
def test_threads_are_those_of_the_quota(request, group, model, processors, which, quota, most):
    group.share(quota)
    assert counts(model, request.getfixturevalue(which)) == [min(most, processors)] * 2
