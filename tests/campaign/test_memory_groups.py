"""Builds, loads and runs in a control group with too little memory: Linux ends the process."""

from __future__ import annotations

import shutil
import signal
import sys
from collections import Counter

import pytest

pytest.importorskip("narrowpass_xnn_cpu")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
]

MB = 1 << 20
ACTIONS = ("build", "load", "run")
FEW = (24, 80, 140, 2000)
MANY = (*range(24, 300, 4), 2000)


@pytest.fixture(scope="module")
def group():
    from faults.groups import NoGroupError
    from faults.groups import group as created

    try:
        with created("memory") as found:
            yield found
    except NoGroupError as error:
        pytest.skip(str(error))


def act(folder, action, group=None):
    """Do it in a process, in the group if any; return how that ended, and what it said."""
    from faults.memory import start

    done = start(action, 0, "none", folder, group)
    return done.returncode, done.stdout or done.stderr[-2000:]


def check(group, prepared, folder, action, limits):
    """Try limits in MB; the least must be too little, and the last enough."""
    from narrowpass.bundle import verify

    outcomes = []
    for limit in limits:
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
        group.allow(limit * MB)
        ended, said = act(folder, action, group)
        assert (ended, said) in ((0, "right"), (-signal.SIGKILL, "")), f"{limit} MB: {ended} {said}"
        outcomes.append("right" if ended == 0 else "killed")
        assert verify(folder / "m.narrow") == [], f"{limit} MB"
        # The next process finds what it needs, and leaves nothing behind.
        assert act(folder, action) == (0, "right"), f"{limit} MB"
        left = {path.name for path in folder.iterdir()} - {"m.onnx", "m.narrow", "cache"}
        assert action != "build" or left == set(), f"{limit} MB"
        shutil.rmtree(folder)
    print(action, Counter(outcomes))
    assert outcomes[0] == "killed"
    assert outcomes[-1] == "right"


@pytest.mark.parametrize("action", ACTIONS)
def test_some_limits(group, prepared, tmp_path, action):
    check(group, prepared, tmp_path / "at", action, FEW)


@pytest.mark.long
@pytest.mark.parametrize("action", ACTIONS)
def test_many_limits(group, prepared, tmp_path, action):
    check(group, prepared, tmp_path / "at", action, MANY)
