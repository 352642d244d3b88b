"""Processors that a process may use, in trees of control groups as containers have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from narrowpass.runtime import processors
from narrowpass.runtime.processors import usable_processors

MASK = 64
"""Processors of the host."""

OTHERS = """\
22 60 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:2 - sysfs sysfs rw
23 60 0:5 / /dev/sh\\040m rw - tmpfs  rw
30 23 0:27 / {top}/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 23 0:28 / {top}/cpuset rw,relatime shared:10 - cgroup cgroup rw,cpuset
32 23 0:29 / {top}/cpuacct rw,relatime shared:11 - cgroup cgroup rw,cpuacct
not a mount
"""
GROUPS = ("kube.slice", "kube.slice/pod", "kube.slice/pod/app")
SECOND = "25 22 0:23 {root} {top}/second rw shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
FIRST = "26 22 0:24 {root} {top}/first rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"


class Tree:
    """A host whose processors, mounts and groups are named by a test."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.process = top / "proc"
        self.process.mkdir()

    def join(self, groups: str, *mounts: str, root: str = "/") -> None:
        """Say what the process's groups are, and what is mounted."""
        (self.process / "cgroup").write_text(groups, encoding="utf-8")
        lines = "".join([OTHERS, *mounts]).format(top=self.top, root=root)
        (self.process / "mountinfo").write_text(lines, encoding="utf-8")

    def second(self, group: str, text: str) -> None:
        """Write the quota of a group of version 2."""
        folder = self.top / "second" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(text, encoding="utf-8")

    def first(self, group: str, quota: str, period: str = "100000\n") -> None:
        """Write the quota of a group of version 1."""
        folder = self.top / "first" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.cfs_quota_us").write_text(quota, encoding="utf-8")
        (folder / "cpu.cfs_period_us").write_text(period, encoding="utf-8")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    found = Tree(tmp_path)
    monkeypatch.setattr(processors, "_PROCESS", found.process)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(MASK)), raising=False)
    return found


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("max 100000\n", MASK),
        ("150000 100000\n", 2),
        ("100000 100000\n", 1),
        ("200001 100000\n", 3),
        ("1000 100000\n", 1),
        ("6300000 100000\n", 63),
        ("12800000 100000\n", MASK),
        ("3000 1000", 3),
    ],
)
def test_quota_of_a_container(tree, text, count):
    """A container sees its own group as the root of what is mounted."""
    tree.join("0::/\n", SECOND)
    tree.second("", text)
    assert usable_processors() == count


@pytest.mark.parametrize(
    ("quota", "count"), [("-1\n", MASK), ("150000\n", 2), ("100000\n", 1), ("6350000\n", MASK)]
)
@pytest.mark.parametrize("kinds", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_quota_of_version_1(tree, kinds, quota, count):
    groups = f"12:memory:/other\n7:cpuset:/\n4:{kinds}:/docker/ab12\n1:name=systemd:/docker/ab12\n"
    tree.join(groups, FIRST, root="/docker/ab12")
    tree.first("", quota)
    tree.first("other", "100000\n")
    assert usable_processors() == count


@pytest.mark.parametrize("options", ["rw,cpu", "rw,cpuacct,cpu", "cpu"])
def test_mount_of_version_1(tree, options):
    tree.join("4:cpu:/\n", FIRST.replace("rw,cpu,cpuacct", options))
    tree.first("", "200000\n")
    assert usable_processors() == 2


@pytest.mark.parametrize(
    ("quotas", "count"),
    [
        (["400000", "300000", "200000"], 2),
        (["200000", "300000", "400000"], 2),
        (["max", "250000", "max"], 3),
        (["max", "max", "100000"], 1),
        ([None, "500000", None], 5),
        (["max", "max", "max"], MASK),
    ],
)
def test_a_parent_has_a_lower_quota(tree, quotas, count):
    tree.join("0::/kube.slice/pod/app\n4:cpu:/kube.slice/pod/app\n", SECOND, FIRST)
    for group, quota in zip(GROUPS, quotas, strict=True):
        if quota is not None:
            tree.second(group, f"{quota} 100000\n")
    tree.second("kube.slice/sibling", "100000 100000\n")
    assert usable_processors() == count
    for group, quota in zip(GROUPS, quotas, strict=True):
        (tree.top / "second" / group / "cpu.max").unlink(missing_ok=True)
        if quota is not None:
            tree.first(group, f"{quota.replace('max', '-1')}\n")
    assert usable_processors() == count


def test_both_versions(tree):
    tree.join("4:cpu:/a\n0::/b\n", SECOND, FIRST)
    tree.first("a", "300000\n")
    tree.second("b", "200000 100000\n")
    assert usable_processors() == 2
    tree.first("a", "100000\n")
    assert usable_processors() == 1


@pytest.mark.parametrize("group", ["/elsewhere", "/dock", "/docker2/ab12", "/../ab12"])
def test_a_mount_without_the_group(tree, group):
    """What is mounted belongs to others, and so do its quotas."""
    tree.join(f"0::{group}\n4:cpu:{group}\n", SECOND, FIRST, root="/docker")
    tree.second("", "100000 100000\n")
    tree.first("", "100000\n")
    assert usable_processors() == MASK


def test_groups_with_colons_spaces_and_other_bytes(tree):
    name = "a:b c\udcff"
    tree.join("", SECOND)
    (tree.process / "cgroup").write_bytes(f"0::/{name}\n".encode("utf-8", "surrogateescape"))
    folder = tree.top / "second" / name
    try:
        folder.mkdir(parents=True)
    except (OSError, UnicodeError):
        pytest.skip("no such names here")
    (folder / "cpu.max").write_text("150000 100000\n", encoding="utf-8")
    assert usable_processors() == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max",
        "max max",
        "100000",
        "100000 0",
        "0 100000",
        "-100000 100000",
        "100000 -100000",
        "1e5 100000",
        "100000 100000 100000",
        f"{'9' * 5000} 1",
        "one two",
        "\0",
        "\udcff\udcfe",
    ],
)
def test_quota_that_is_none(tree, text):
    tree.join("0::/a\n4:cpu:/a\n", SECOND, FIRST)
    for file in ("second/a/cpu.max", "first/a/cpu.cfs_quota_us"):
        path = tree.top / file
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert usable_processors() == MASK
    # Another one still counts.
    tree.second("", "500000 100000\n")
    assert usable_processors() == 5


@pytest.mark.parametrize("name", ["cgroup", "mountinfo"])
@pytest.mark.parametrize("what", ["missing", "folder", b"", b"\0\xff\n::\n: - cgroup\n", b"text"])
def test_processes_that_cannot_be_read(tree, name, what):
    tree.join("0::/\n4:cpu:/\n", SECOND, FIRST)
    tree.second("", "100000 100000\n")
    assert usable_processors() == 1
    path = tree.process / name
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes(what)
    assert usable_processors() == MASK


def test_files_of_quotas_that_cannot_be_read(tree):
    tree.join("0::/\n4:cpu:/\n", SECOND, FIRST)
    (tree.top / "second" / "cpu.max").mkdir(parents=True)
    (tree.top / "first" / "cpu.cfs_quota_us").mkdir(parents=True)
    assert usable_processors() == MASK


def test_a_mask_that_is_smaller(tree, monkeypatch):
    tree.join("0::/\n", SECOND)
    tree.second("", "400000 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert usable_processors() == 3


@pytest.mark.parametrize(("count", "expected"), [(8, 4), (3, 3), (None, 1)])
def test_systems_without_a_mask(tree, monkeypatch, count, expected):
    tree.join("0::/\n", SECOND)
    tree.second("", "400000 100000\n")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert usable_processors() == expected
