"""Options of sessions and of the provider: what they change, and which are refused."""

import json
import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from session_kit import (
    ORIGINAL,
    OURS,
    both,
    external,
    identity,
    model,
    node,
    perceptron,
    tensor,
    value,
)

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def options(**attributes):
    chosen = onnxruntime.SessionOptions()
    for name, given in attributes.items():
        setattr(chosen, name, given)
    return chosen


def refused(name, call):
    with pytest.raises(Exception, match="is not supported") as caught:
        call()
    assert type(caught.value) is onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented
    assert name in str(caught.value)


def with_denotation():
    chosen = identity(shape=("n", "m", 4, None))
    chosen.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    return chosen


def test_free_dimensions_by_name_and_denotation():
    original, ours = both(with_denotation(), fixed())
    assert ours.get_inputs()[0].shape == original.get_inputs()[0].shape == [2, 3, 4, None]
    x = np.ones((2, 3, 4, 5), np.float32)
    assert np.array_equal(ours.run(None, {"x": x})[0], original.run(None, {"x": x})[0])
    for wrong in (x[:1], x[:, :2]):
        for session in (original, ours):
            with pytest.raises(Exception, match="invalid dimensions"):
                session.run(None, {"x": wrong})


def fixed():
    chosen = options()
    chosen.add_free_dimension_override_by_name("n", 2)
    chosen.add_free_dimension_override_by_denotation("DATA_CHANNEL", 3)
    return chosen


def test_free_dimensions_of_inner_graphs():
    branch = helper.make_graph([node("Relu", ["x"], ["r"])], "b", [], [value("r")])
    other = helper.make_graph([node("Neg", ["x"], ["s"])], "c", [], [value("s")])
    chosen = model(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=other)],
        [value("x"), value("c", (), onnx.TensorProto.BOOL)],
        [value("y")],
    )
    original, ours = both(chosen, fixed())
    assert ours.get_outputs()[0].shape == original.get_outputs()[0].shape == [2, 3]
    for condition in (True, False):
        feeds = {"x": X, "c": np.array(condition)}
        assert np.array_equal(ours.run(None, feeds)[0], original.run(None, feeds)[0])


def test_reading_options_changes_none_of_them(tmp_path):
    given = options(
        intra_op_num_threads=2,
        enable_profiling=True,
        profile_file_prefix=str(tmp_path / "p"),
        optimized_model_filepath=str(tmp_path / "o.onnx"),
    )
    OURS(perceptron().SerializeToString(), given).end_profiling()
    assert given.intra_op_num_threads == 2
    assert given.enable_profiling
    assert given.optimized_model_filepath == str(tmp_path / "o.onnx")
    assert len([*tmp_path.iterdir()]) == 2  # nothing was written by the probe


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_initializers_given_with_options(kind):
    """They take the place of the model's, in this session alone. Small whole numbers are exact."""
    weight = tensor(np.ones((3, 3), kind), "w")
    added = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", ("n", 3), weight.data_type)],
        [value("y", ("n", 3), weight.data_type)],
        [weight, tensor(np.zeros(1, np.float32), "x_")],
    )
    given = onnxruntime.OrtValue.ortvalue_from_numpy(np.arange(9).reshape(3, 3).astype(kind))
    chosen = options()
    chosen.add_initializer("w", given)
    chosen.add_initializer("another", given)
    original, ours = both(added, chosen)
    feeds = {"x": np.arange(9).reshape(3, 3).astype(kind)}
    expected = original.run(None, feeds)[0]
    assert expected.sum() == 2 * np.arange(9).sum()
    assert np.array_equal(ours.run(None, feeds)[0], expected)
    assert OURS(added).run(None, feeds)[0].sum() == np.arange(9).sum() + 9


def test_initializers_that_do_not_fit(tmp_path):
    chosen, outside = options(), options()
    weight = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones((3, 4), np.float32))
    chosen.add_initializer("w", weight)
    with pytest.raises(Exception, match=r"float\[3, 4\] for 'w', which is float\[3, 3\]") as caught:
        OURS(perceptron().SerializeToString(), chosen)
    assert type(caught.value).__name__ == "Fail"
    outside.add_external_initializers(["w"], [weight])
    path = external(tmp_path, width=3)
    refused("SessionOptions.add_external_initializers", lambda: OURS(path, outside))
    (tmp_path / "weights.bin").unlink()  # that is what the option is for
    refused("SessionOptions.add_external_initializers", lambda: OURS(path, outside))


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("session.load_model_format", "ORT"),
        ("session.save_model_format", "ORT"),
        ("ep.context_enable", "1"),
    ],
)
def test_entries_that_ask_for_something_else_are_refused(key, given):
    chosen = options()
    chosen.add_session_config_entry(key, given)
    refused(key, lambda: OURS(identity().SerializeToString(), chosen))


def test_options_that_only_tune_are_taken():
    chosen = options(
        inter_op_num_threads=3,
        execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        enable_cpu_mem_arena=False,
        enable_mem_pattern=False,
        enable_mem_reuse=False,
        logid="mine",
        log_severity_level=3,
        log_verbosity_level=1,
        use_deterministic_compute=True,
    )
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    original, ours = both(identity(), chosen)
    assert np.array_equal(ours.run(None, {"x": X})[0], original.run(None, {"x": X})[0])
    assert ours.get_session_options() is chosen


@pytest.mark.parametrize("given", [3, "fast"])
def test_what_are_no_options(given):
    for session in (OURS, ORIGINAL):
        with pytest.raises((TypeError, AttributeError)):
            session(identity().SerializeToString(), given)


def test_the_format_of_onnxruntime_is_refused(tmp_path):
    path = tmp_path / "model.ort"
    path.write_bytes(bytes(4) + b"ORTM")
    refused("(.ort)", lambda: OURS(path))
    refused("(.ort)", lambda: OURS(path.read_bytes()))


def test_an_unknown_argument_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="'use_magic'"):
        OURS(identity().SerializeToString(), use_magic=True)


def simplifiable():
    """A node that the passes of every backend leave in place, and one that `fold` removes."""
    weight = tensor(np.arange(300, dtype=np.float32).reshape(3, 100), "w")
    nodes = [node("Identity", ["x"], ["i"]), node("MatMul", ["i", "w"], ["y"])]
    return model(nodes, [value("x")], [value("y", ("n", 100))], [weight])


def test_the_optimized_model_is_written(tmp_path):
    path = tmp_path / "optimized.onnx"
    ours = OURS(simplifiable().SerializeToString(), options(optimized_model_filepath=str(path)))
    onnx.checker.check_model(path)
    expected = ours.run(None, {"x": X})[0]
    assert np.array_equal(ORIGINAL(path).run(None, {"x": X})[0], expected)  # small whole numbers


def test_the_optimized_model_with_weights_beside_it(tmp_path):
    path = tmp_path / "optimized.onnx"
    chosen = options(optimized_model_filepath=str(path))
    prefix = "session.optimized_model_external_initializers_"
    chosen.add_session_config_entry(f"{prefix}file_name", "weights.bin")
    chosen.add_session_config_entry(f"{prefix}min_size_in_bytes", "100")
    for _ in range(2):  # the second time replaces both files
        ours = OURS(simplifiable().SerializeToString(), chosen)
        assert (tmp_path / "weights.bin").stat().st_size == 1200
    expected = ours.run(None, {"x": X})[0]
    for session in (ORIGINAL, OURS):
        assert np.array_equal(session(path).run(None, {"x": X})[0], expected)


def test_no_pass_runs_where_optimization_is_disabled(tmp_path):
    pytest.importorskip("narrowpass_constant_folding")
    left = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        path = tmp_path / f"{level}.onnx"
        chosen = options(optimized_model_filepath=str(path))
        chosen.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        OURS(simplifiable().SerializeToString(), chosen)
        left.append([each.op_type for each in onnx.load(path).graph.node])
    assert left == [["Identity", "MatMul"], ["MatMul"]]


def test_a_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = options(enable_profiling=True, profile_file_prefix="runs")
    ours = OURS(perceptron().SerializeToString(), chosen)
    assert ours.get_profiling_start_time_ns() > 0
    expected = OURS(perceptron().SerializeToString()).run(None, {"x": X})
    for _ in range(2):
        assert ours.run(None, {"x": X})[0].shape == expected[0].shape
    file = ours.end_profiling()
    assert file.startswith("runs_")
    events = json.loads((tmp_path / file).read_text())
    assert [event["name"] for event in events if event["cat"] == "Session"] == [
        "session_initialization",
        "model_run",
        "model_run",
    ]
    nodes = [event for event in events if event["cat"] == "Node"]
    assert {"MatMul"} <= {event["args"]["op_name"] for event in nodes}
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        assert event["ts"] >= 0
        assert {"pid", "tid"} <= {*event}
    assert ours.end_profiling() == ""
    assert ours.run(None, {"x": X})[0].shape == (2, 3)


def provider(**given):
    return {"providers": [("NarrowpassExecutionProvider", given)]}


def test_threads_of_the_provider_and_of_the_session():
    data = perceptron().SerializeToString()
    for given, named, expected in ((3, {}, 3), (3, {"threads": 2}, 2), (0, {"threads": "1"}, 1)):
        ours = OURS(data, options(intra_op_num_threads=given), **provider(**named))
        stats = ours._program.stats()
        if "threads" in stats:
            assert stats["threads"] == expected
        assert ours.run(["z"], {"x": X})[0].shape == (2, 3)


BAD_PROVIDER_OPTIONS = {
    "unknown": ({"speed": "high"}, "no option 'speed'; its options: threads"),
    "threads": ({"threads": "many"}, "threads .* is 'many'"),
    "flag": ({"require_native": "maybe"}, "require_native .* pass 1 or 0"),
    "cache": ({"cache": "disk"}, "cache .* pass 1, 0 or memory"),
    "backend": ({"backend": "nobodys"}, "no backend 'nobodys'"),
    "backend of onnxruntime": ({"backend": "onnxruntime"}, "runs on onnxruntime.InferenceSession"),
    "pipeline": ({"pipeline": "nothing-like-it"}, "nothing-like-it"),
    "calibration": ({"calibration": "gone.npz", "pipeline": ""}, "gone.npz"),
}


@pytest.mark.parametrize("case", BAD_PROVIDER_OPTIONS)
def test_options_of_the_provider_that_are_refused(case):
    given, message = BAD_PROVIDER_OPTIONS[case]
    with pytest.raises(Exception, match=message) as caught:
        OURS(identity().SerializeToString(), **provider(**given))
    assert type(caught.value).__name__ in ("InvalidArgument", "Fail")


def test_a_pipeline_and_a_backend():
    ours = OURS(perceptron().SerializeToString(), **provider(pipeline="", backend="reference"))
    plans = ours._program.explain()
    assert [plan.op_type for plan in plans] == ["MatMul", "Relu", "MatMul"]


def test_a_narrow_pipeline_is_within_its_error():
    pytest.importorskip("narrowpass_fp16")
    pytest.importorskip("narrowpass_xnn_cpu")
    data = perceptron(64).SerializeToString()
    ours = OURS(data, **provider(pipeline="store-weights{dtype=bfloat16}"))
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    (found,) = ours.run(["y"], {"x": x})
    (expected,) = ORIGINAL(data).run(["y"], {"x": x})
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error <= 2 * 2**-8  # two matrices rounded to 8 bits of mantissa


def test_the_largest_error_that_is_allowed():
    pytest.importorskip("narrowpass_auto")
    pytest.importorskip("narrowpass_xnn_cpu")
    data = perceptron(64).SerializeToString()
    ours = OURS(data, **provider(max_error="rel:1e-2"))
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    (found,) = ours.run(["y"], {"x": x})
    (expected,) = ORIGINAL(data).run(["y"], {"x": x})
    assert np.linalg.norm(found - expected) <= 1e-2 * np.linalg.norm(expected)


def test_what_is_minimized_needs_an_error():
    with pytest.raises(Exception, match="objective: needs max_error") as caught:
        OURS(perceptron().SerializeToString(), **provider(objective="bytes"))
    assert type(caught.value).__name__ == "Fail"


def test_bytes_are_minimized_within_the_error():
    """Most weights are of 16 bits then, and each is rounded by 2^-9 of its size, in two layers."""
    auto = pytest.importorskip("narrowpass_auto.testing")
    pytest.importorskip("narrowpass_fp16")
    pytest.importorskip("narrowpass_xnn_cpu")
    data = perceptron(512).SerializeToString()
    with auto.steady_times():
        ours = OURS(data, **provider(max_error="rel:2e-2", objective="bytes"))
    x = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(2, 512)
    (found,) = ours.run(["y"], {"x": x})
    (expected,) = ORIGINAL(data).run(["y"], {"x": x})
    assert 1e-5 < np.abs(found - expected).max() / np.abs(expected).max() <= 2e-2


def test_nodes_must_be_native():
    pytest.importorskip("narrowpass_xnn_cpu")
    det = model([node("Det", ["x"], ["y"])], [value("x", (3, 3))], [value("y", ())])
    data = det.SerializeToString()
    for call in (
        lambda: OURS(data, **provider(require_native="1")),
        lambda: OURS(data, without_fallback()),
    ):
        with pytest.raises(Exception, match="no native kernel") as caught:
            call()
        assert type(caught.value).__name__ == "Fail"


def without_fallback():
    chosen = options()
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return chosen


def test_sessions_are_created_in_several_threads():
    data = perceptron().SerializeToString()
    expected = ORIGINAL(data).run(["z"], {"x": X})[0]
    found = []

    def create():
        found.append(OURS(data, fixed()).run(["z"], {"x": X})[0])

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(np.allclose(each, expected, rtol=1e-5, atol=1e-6) for each in found)
