"""``--max-memory`` and ``--timeout``: what they end, and that they are lifted again."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass.cli import _limits
from narrowpass.cli._errors import redeliver_interrupts

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's"),
]


def narrowpass(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "narrowpass", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def saved(path, nodes, **constants):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    np.save(path.with_suffix(".npy"), np.ones(1, np.float32))
    return path, "--input", f"x={path.with_suffix('.npy')}", "--backend", "reference"


def test_a_model_has_no_more_memory_than_the_limit(tmp_path):
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["e"]),  # 600 MB
        helper.make_node("Slice", ["e", "zero", "one"], ["y"]),
    ]
    shape, zero, one = np.array([150_000_000]), np.array([0]), np.array([1])
    run = saved(tmp_path / "m.onnx", nodes, shape=shape, zero=zero, one=one)
    out = tmp_path / "out.npz"
    done = narrowpass("run", *run, "-o", out, "--max-memory", "700MB")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Unable to allocate" in done.stderr
    assert done.stderr.rstrip().endswith("--max-memory allows 700MB")
    assert not out.exists()
    done = narrowpass("--max-memory", "3 GiB", "run", *run, "-o", out)
    assert done.returncode == 0, done.stderr
    assert np.load(out)["y"] == [1]


def test_a_model_runs_no_longer_than_the_limit(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])],
        "b",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
    )
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    run = saved(tmp_path / "m.onnx", nodes, trips=np.int64(10**7))
    began = time.monotonic()
    done = narrowpass("run", *run, "-o", tmp_path / "out.npz", "--timeout", "2")
    assert time.monotonic() - began > 2
    assert done.returncode == 1
    assert done.stderr.strip() == "narrowpass: error: not done after 2 s; pass a longer --timeout"
    assert not (tmp_path / "out.npz").exists()


def test_what_does_not_answer_is_ended():
    """Code of C that lets no exception in has `GRACE` more seconds."""
    program = """
import collections, itertools, click
from narrowpass.cli import _limits

_limits.GRACE = 0.2

@click.command()
@_limits.limit_options
def stuck():
    collections.deque(itertools.repeat(0), maxlen=0)

stuck(["--timeout", "0.2"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in stuck" in done.stderr


@pytest.mark.parametrize("before", [True, False])
def test_time_ends_a_command_and_the_timer(call, commands, before):
    def wait():
        time.sleep(60)

    commands(wait=wait)
    handler = signal.getsignal(signal.SIGALRM)
    limit, name = ("--timeout", "0.1"), ("wait",)
    with redeliver_interrupts():  # as `main` does
        result = call(*((*limit, *name) if before else (*name, *limit)), code=1)
    assert "not done after 0.1 s" in result.err
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_command_in_time_is_not_ended(call, commands):
    commands(quick=lambda: click.echo(signal.getitimer(signal.ITIMER_REAL)[0] > 50))
    assert call("quick", "--timeout", "60").out == "True\n"
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_interrupt_of_the_user_is_none_of_the_limit(call, commands):
    def interrupted():
        raise KeyboardInterrupt

    commands(interrupted=interrupted)
    assert "interrupted" in call("interrupted", "--timeout", "60", code=130).err


def test_the_limit_of_memory_holds_for_the_command_only(call, commands):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    commands(show=lambda: click.echo(resource.getrlimit(resource.RLIMIT_DATA)[0]))
    assert call("show", "--max-memory", "5GiB").out == f"{5 << 30}\n"
    assert call("--max-memory", "6GB", "show").out == "6000000000\n"
    # The lower one holds.
    assert call("--max-memory", "6GB", "show", "--max-memory", "7GB").out == "6000000000\n"
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_an_error_without_a_limit_names_none(call, commands):
    def greedy():
        raise MemoryError

    commands(greedy=greedy)
    assert "--max-memory allows" not in call("greedy", code=1).err
    assert "out of memory; --max-memory allows 5GiB" in (
        call("greedy", "--max-memory", "5GiB", code=1).err
    )


def test_another_error_is_not_blamed_on_the_limit(call, commands):
    def bad():
        raise click.BadParameter("no")

    commands(bad=bad)
    assert "--max-memory allows" not in call("bad", "--max-memory", "5GiB", code=2).err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-memory", "1KB", "MiB before it reads anything; pass more"),
        ("--max-memory", "4 parsecs", "this is not a size"),
        ("--max-memory", "-1", "this is not a size"),
        ("--timeout", "0", "at most a year"),
        ("--timeout", "-3", "at most a year"),
        ("--timeout", "nan", "at most a year"),
        ("--timeout", "inf", "at most a year"),
        ("--timeout", "soon", "not a valid float"),
    ],
)
def test_wrong_limits_are_refused(call, commands, option, value, message):
    commands(greet=lambda: click.echo("hello"))
    result = call("greet", f"{option}={value}", code=2)
    assert message in result.err
    assert result.out == ""


def test_other_systems_have_no_limit_of_memory(call, commands, monkeypatch):
    commands(greet=lambda: click.echo("hello"))
    monkeypatch.setattr(_limits.sys, "platform", "darwin")
    assert "only Linux" in call("greet", "--max-memory", "5GiB", code=2).err


def test_an_option_of_the_command_comes_first(call, install):
    @click.command()
    @click.option("--timeout", type=int)
    def serve(timeout):
        click.echo(f"{timeout} {signal.getitimer(signal.ITIMER_REAL)[0] > 50}")

    install(narrowpass_commands=[serve])
    assert call("serve", "--timeout", "3").out == "3 False\n"
    assert call("--timeout", "60", "serve").out == "None True\n"


def test_completion_sets_no_limit(call, commands, monkeypatch):
    commands(greet=lambda: click.echo("hello"))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setenv("_NARROWPASS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "narrowpass --max-memory 1KB --timeout 0 gr")
    monkeypatch.setenv("COMP_CWORD", "5")
    assert "greet" in call(code=0).out
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
