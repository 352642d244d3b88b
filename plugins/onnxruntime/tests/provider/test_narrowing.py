"""Pipelines, samples and errors that are allowed, of groups that are compiled for the provider."""

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
from narrowpass_onnxruntime.provider import compiling
from narrowpass_onnxruntime.provider.registration import NAME

WIDTH = 64


def error_of(ours, model, feeds):
    """Return the largest difference over the largest element, of all outputs."""
    expected = cpu_session(model).run(None, feeds)
    pairs = zip(ours.run(feeds), expected, strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)


def split_by_strings():
    """Two matmuls with strings in between, which only onnxruntime computes: two groups."""
    return graph(
        f"""g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y) {{
        a = MatMul(x, w)  r = Relu(a)
        t = Cast<to=8>(r)  s = Cast<to=1>(t)
        m = MatMul(s, v)  y = Relu(m) }}""",
        w=drawn(WIDTH, WIDTH, scale=0.1),
        v=drawn(WIDTH, WIDTH, scale=0.1),
    )


@pytest.fixture
def samples(tmp_path):
    """A folder of samples of `x`."""
    folder = tmp_path / "samples"
    folder.mkdir()
    for number in range(8):
        np.savez(folder / f"{number}.npz", x=drawn(16, WIDTH))
    return folder


def without_fallback(model, **options):
    narrowpass_onnxruntime.register()
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        settings(),
        providers=[NAME, CPU],
        provider_options=[options, {}],
        enable_fallback=False,
    )


def test_passes_that_change_no_result():
    pytest.importorskip("narrowpass_constant_folding")
    model = perceptron()
    ours = our_session(model, pipeline="fold")
    assert ours.groups
    check(ours, cpu_session(model), {"x": drawn(4, 64)})


@pytest.mark.parametrize("model", [perceptron, split_by_strings])
def test_int8_calibrates_each_group_by_samples_of_the_model(model, samples):
    """Two layers of 8 bits: an error of 1/127 of the range of each, for feeds like the samples."""
    pytest.importorskip("narrowpass_int8_sym")
    original = model()
    ours = our_session(original, pipeline="int8-sym", calibration=str(samples))
    assert len(ours.groups) == (2 if model is split_by_strings else 1)
    kernels = [plan.kernel for group in ours.groups for plan in group.program.explain()]
    assert sum("int8" in kernel for kernel in kernels) >= 2, kernels
    assert 1e-5 < error_of(ours, original, {"x": drawn(16, WIDTH)}) < 6e-2


def test_samples_without_an_input(samples, capfd):
    """The group is left to onnxruntime, with a warning."""
    pytest.importorskip("narrowpass_int8_sym")
    np.savez(samples / "0.npz", z=drawn(16, WIDTH))
    narrowpass_onnxruntime.register()
    onnxruntime.InferenceSession(
        perceptron().SerializeToString(),
        providers=[NAME, CPU],
        provider_options=[{"pipeline": "int8-sym", "calibration": str(samples)}, {}],
    )
    assert "a sample has no 'x', which the model is fed; it has z" in capfd.readouterr().err


def large():
    return perceptron(WIDTH, 8192)


def test_types_are_chosen_within_an_error_and_once(samples, tmp_path, monkeypatch):
    """The error is measured on fresh feeds; a second session searches nothing."""
    auto = pytest.importorskip("narrowpass_auto.testing")
    pytest.importorskip("narrowpass_fp16")
    model = large()
    options = {
        "max_error": "rel:2e-2",
        "objective": "bytes",
        "calibration": str(samples),
        "cache_dir": str(tmp_path / "cache"),
    }
    with auto.steady_times():
        ours = our_session(model, **options)
    feeds = {"x": drawn(16, WIDTH)}
    # More than rounding in float32, and within the limit.
    assert 1e-5 < error_of(ours, model, feeds) < 2e-2
    assert len(bundles(tmp_path / "cache")) == 1
    monkeypatch.delattr(compiling.GroupCompiler, "_build")
    again = our_session(model, **options)
    np.testing.assert_array_equal(again.run(feeds)[0], ours.run(feeds)[0])


def test_a_choice_for_another_limit_is_another_bundle(samples, tmp_path):
    pytest.importorskip("narrowpass_auto")
    pytest.importorskip("narrowpass_fp16")
    model, feeds = perceptron(), {"x": drawn(16, WIDTH)}
    options = {"calibration": str(samples), "cache_dir": str(tmp_path / "cache")}
    for limit in ("rel:2e-2", "rel:1e-6"):
        ours = our_session(model, max_error=limit, objective="bytes", **options)
        check(ours, cpu_session(model), feeds, tolerance=float(limit[4:]) + 2e-5)
    assert len(bundles(tmp_path / "cache")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "bytes"}, "objective: needs max_error"),
        ({"max_error": "rel"}, "rel"),
        ({"max_error": "rel:1e-2", "objective": "size"}, "size"),
        ({"calibration": "gone"}, "no data at 'gone'"),
    ],
)
def test_bad_options_of_narrowing(options, message):
    pytest.importorskip("narrowpass_auto")
    with pytest.raises(Exception, match=message):
        without_fallback(perceptron(), **options)
