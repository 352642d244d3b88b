"""Options, errors, threads, forks and the end of sessions and of the interpreter."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import onnxruntime
import pytest
from provider_kit import (
    CPU,
    bundles,
    check,
    cpu_session,
    drawn,
    graph,
    our_session,
    perceptron,
    settings,
)

import narrowpass_onnxruntime
from narrowpass.errors import UsageError
from narrowpass_onnxruntime.provider import callbacks, compiling
from narrowpass_onnxruntime.provider.options import Options
from narrowpass_onnxruntime.provider.registration import NAME


def without_fallback(model, **options):
    """Create a session that does not try other providers when ours refuses."""
    narrowpass_onnxruntime.register()
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        settings(),
        providers=[NAME, CPU],
        provider_options=[options, {}],
        enable_fallback=False,
    )


def test_options_are_read():
    given = {"threads": "2", "pipeline": "fold", "cache_dir": "/x", "require_native": "True"}
    found = Options.parse(given)
    assert (found.threads, found.pipeline, found.require_native) == (2, "fold", True)
    assert str(found.cache_dir) == "/x"
    assert Options.parse({"threads": "0"}).threads is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("thread", "1", "unknown option 'thread' of the provider; known are threads"),
        ("threads", "-1", "`threads` is a number"),
        ("threads", "two", "`threads` is a number"),
        ("require_native", "maybe", "`require_native` is true or false"),
    ],
)
def test_bad_options(name, value, message):
    with pytest.raises(UsageError, match=message):
        Options.parse({name: value})
    with pytest.raises(Exception, match=message):
        without_fallback(perceptron(), **{name: value})


def partly_native():
    return graph(
        """g (float[N,16] x) => (string[N,16] s) { a = MatMul(x, w)  s = Cast<to=8>(a) }""",
        w=drawn(16, 16),
    )


def test_all_nodes_may_be_required_to_be_native():
    without_fallback(perceptron(), require_native="true")
    with pytest.raises(Exception, match="1 nodes are not native, and all must be:\n  Cast"):
        without_fallback(partly_native(), require_native="true")


def test_a_pipeline_runs_on_groups():
    """Weights in bfloat16 are rounded by 2^-9 of their size at most, in two layers."""
    model = perceptron()
    ours = our_session(model, pipeline="store-weights{dtype=bfloat16}")
    x = {"x": drawn(4, 64)}
    expected = cpu_session(model).run(None, x)[0]
    found = ours.run(x)[0]
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 1e-5 < error < 1e-2


def test_a_pipeline_that_does_not_parse_is_an_error():
    with pytest.raises(Exception, match="no pass 'no-such-pass' is installed"):
        without_fallback(perceptron(), pipeline="no-such-pass")


def test_a_group_that_does_not_compile_is_left_with_one_warning(monkeypatch, capfd):
    def fails(*_):
        raise RuntimeError("there is no way")

    monkeypatch.setattr(compiling.GroupCompiler, "compile", fails)
    model = graph(
        """g (float[N,16] x) => (float[N,16] y) {
        a = MatMul(x, w)  s = Cast<to=8>(a)  b = Cast<to=1>(s)  y = MatMul(b, w) }""",
        w=drawn(16, 16, scale=0.3),
    )
    narrowpass_onnxruntime.register()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[NAME, CPU])
    x = {"x": drawn(2, 16)}
    np.testing.assert_array_equal(session.run(None, x)[0], cpu_session(model).run(None, x)[0])
    warnings = [line for line in capfd.readouterr().err.splitlines() if "narrowpass:" in line]
    assert len(warnings) == 1
    assert "1 nodes from MatMul" in warnings[0]
    assert "are left to other providers: there is no way" in warnings[0]


@pytest.mark.parametrize(
    ("threads", "spins", "model", "hint"),
    [
        (2, None, partly_native(), True),
        (2, "1", partly_native(), True),
        (2, "0", partly_native(), False),
        (1, None, partly_native(), False),
        (2, None, perceptron(), False),
    ],
)
def test_a_hint_at_threads_that_spin_beside_ours(threads, spins, model, hint, capfd):
    """Only where both have threads to run, for whoever asks for what is left to whom."""
    narrowpass_onnxruntime.register()
    options = settings(threads)
    if spins is not None:
        options.add_session_config_entry("session.intra_op.allow_spinning", spins)
    given = [{"threads": str(threads)}, {}]
    onnxruntime.set_default_logger_severity(1)
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=[NAME, CPU], provider_options=given
        )
    finally:
        onnxruntime.set_default_logger_severity(2)
    log = capfd.readouterr().err
    assert "nodes are taken" in log
    assert ("session.intra_op.allow_spinning to 0" in log) == hint


def test_errors_of_a_run_name_the_node():
    """The kernel window is larger than the input, for which narrowpass has no result."""
    model = graph(
        """g (float[1,C,H,W] x) => (float[1,C,M,P] y) { y = AveragePool<kernel_shape=[3,3]>(x) }"""
    )
    ours = our_session(model)
    assert ours.groups
    x = drawn(1, 2, 5, 5)
    found = ours.run({"x": x})[0]
    assert found.shape == (1, 2, 3, 3)
    with pytest.raises(Exception, match="a kernel window of 3 is larger"):
        ours.run({"x": drawn(1, 2, 1, 5)})
    np.testing.assert_array_equal(ours.run({"x": x})[0], found)


def test_feeds_of_a_wrong_type_raise_as_onnxruntime_does():
    model = perceptron()
    ours, theirs = our_session(model), cpu_session(model)
    bad = {"x": np.zeros((2, 64), np.float64)}
    with pytest.raises(Exception, match="Unexpected input data type") as expected:
        theirs.run(None, bad)
    with pytest.raises(type(expected.value), match="Unexpected input data type"):
        ours.run(bad)


def test_an_initializer_that_the_options_replace():
    """The node that reads it is onnxruntime's; the other matmul is ours."""
    model = perceptron()
    narrowpass_onnxruntime.register()
    other = drawn(64, 256, scale=0.1)
    options = settings()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(other)
    options.add_initializer("w", value)
    data, x = model.SerializeToString(), {"x": drawn(3, 64)}
    before = len(callbacks.groups())
    session = onnxruntime.InferenceSession(data, options, providers=[NAME, CPU])
    assert len(callbacks.groups()) == before + 1
    theirs = onnxruntime.InferenceSession(data, options, providers=[CPU])
    (expected,) = theirs.run(None, x)
    assert np.abs(expected - cpu_session(model).run(None, x)[0]).max() > 0.1
    # Accumulators in float32 over hundreds of elements, in another order.
    np.testing.assert_allclose(session.run(None, x)[0], expected, rtol=0, atol=1e-4)


def test_threads_share_a_session():
    model = perceptron()
    ours, theirs = our_session(model, threads=2), cpu_session(model)
    feeds = [{"x": drawn(rows, 64)} for rows in (1, 2, 3, 1, 5, 2, 1, 4)]
    expected = [theirs.run(None, each)[0] for each in feeds]
    failures = []

    def work(number):
        for turn in range(40):
            which = (number + turn) % len(feeds)
            found = ours.run(feeds[which])[0]
            if not np.allclose(found, expected[which], rtol=0, atol=1e-4):
                failures.append(which)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(ours.counts) == 160


def test_sessions_end_with_what_they_hold():
    before = len(callbacks.groups())
    ours = our_session(perceptron())
    assert len(callbacks.groups()) == before + 1
    ours.groups.clear()
    del ours
    gc.collect()
    assert len(callbacks.groups()) == before


def test_large_weights_are_kept_for_later_sessions(tmp_path, monkeypatch):
    """A second session finds the bundle: nothing is built, and a pass would not run."""
    model = perceptron(256, 1024)
    theirs = cpu_session(model)
    first = our_session(model, cache_dir=str(tmp_path))
    check(first, theirs, {"x": drawn(2, 256)})
    assert len(bundles(tmp_path)) == 1
    monkeypatch.delattr(compiling.GroupCompiler, "_build")
    second = our_session(model, cache_dir=str(tmp_path))
    assert len(second.groups) == 1
    check(second, theirs, {"x": drawn(2, 256)})


def test_other_weights_have_another_bundle(tmp_path):
    for _ in range(2):
        model = perceptron(256, 1024)
        ours = our_session(model, cache_dir=str(tmp_path))
        check(ours, cpu_session(model), {"x": drawn(2, 256)})
    assert len(bundles(tmp_path)) == 2


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    model = perceptron(256, 1024)
    ours = our_session(model, cache_dir=str(file))
    assert len(ours.groups) == 1
    check(ours, cpu_session(model), {"x": drawn(2, 256)})


PROGRAM = """
    import os, sys
    import numpy as np, onnxruntime
    from onnx import parser
    import narrowpass_onnxruntime

    narrowpass_onnxruntime.register()
    text = "g (float[N,8] x) => (float[N,8] y) { a = Relu(x)  y = Sigmoid(a) }"
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options,
        providers=["NarrowpassExecutionProvider", "CPUExecutionProvider"],
        provider_options=[{"threads": "2"}, {}],
    )
    x = np.zeros((2, 8), np.float32)
    assert session.run(None, {"x": x})[0][0, 0] == 0.5
"""


def program(rest=""):
    text = textwrap.dedent(PROGRAM) + textwrap.dedent(rest)
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_sessions_are_freed_when_the_interpreter_exits():
    done = program("sys.modules['kept'] = session; import builtins; builtins.kept = session")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_while_the_interpreter_exits_is_refused():
    """Functions registered before ours run after it."""
    done = program(
        """
        import atexit
        from narrowpass_onnxruntime.provider.library import lib
        lib.np_set_alive(False)
        try:
            session.run(None, {"x": x})
        except Exception as error:
            assert "shutting down" in str(error)
            print("refused")
        """
    )
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_runs():
    done = program(
        """
        import warnings
        for _ in range(3):
            session.run(None, {"x": x})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns that threads are not copied
            child = os.fork()
        for rows in (2, 2, 2, 5, 2):
            fed = np.zeros((rows, 8), np.float32)
            assert session.run(None, {"x": fed})[0][0, 0] == 0.5
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("both")
        """
    )
    assert (done.returncode, done.stdout) == (0, "both\n"), done.stderr
