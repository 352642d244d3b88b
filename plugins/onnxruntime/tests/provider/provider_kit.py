"""Sessions with the provider beside sessions of onnxruntime's own provider for CPUs."""

import gc
from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, parser

import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider import callbacks
from narrowpass_onnxruntime.provider.group import Group
from narrowpass_onnxruntime.provider.registration import NAME

CPU = "CPUExecutionProvider"
RNG = np.random.default_rng(5)

TOLERANCE = 2e-5
"""Of the largest element: accumulators in float32 over a thousand elements, in another order."""


def settings(threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def cpu_session(model):
    return onnxruntime.InferenceSession(model.SerializeToString(), settings(), providers=[CPU])


@dataclass
class Ours:
    """A session with the provider, and the groups that were compiled for it."""

    session: onnxruntime.InferenceSession
    groups: list[Group]

    def run(self, feeds):
        return self.session.run(None, feeds)

    @property
    def counts(self):
        """Runs by Python and without, of all groups."""
        return tuple(np.sum([group.counts for group in self.groups], axis=0))


def our_session(model, **options):
    """Return a session with the provider; it has not fallen back."""
    narrowpass_onnxruntime.register()
    gc.collect()
    before = callbacks.groups()
    given = {"threads": 1, **options}
    data = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(
        data, settings(), providers=[NAME, CPU], provider_options=[given, {}]
    )
    assert session.get_providers() == [NAME, CPU]
    fresh = [group for group in callbacks.groups() if not any(group is old for old in before)]
    return Ours(session, fresh)


def graph(text, opset=21, **weights):
    """Return a model from the text of a graph, with these arrays as initializers."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>\n'
    model = parser.parse_model(head + text)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return model


def drawn(*shape, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def check(ours, theirs, feeds, runs=3, tolerance=TOLERANCE):
    """Compare several runs: the first is Python's, the others may be without it."""
    expected = theirs.run(None, feeds)
    for _ in range(runs):
        found = ours.run(feeds)
        assert len(found) == len(expected)
        for got, want in zip(found, expected, strict=True):
            assert got.shape == want.shape
            assert got.dtype == want.dtype
            if want.dtype.kind == "f":
                bound = tolerance * float(np.abs(want).max(initial=0.0, where=np.isfinite(want)))
                np.testing.assert_allclose(got, want, rtol=0, atol=bound)
            else:
                np.testing.assert_array_equal(got, want)


def perceptron(width=64, inner=256):
    """Return x [N, width] -> y [N, width] through one hidden layer."""
    return graph(
        f"""g (float[N,{width}] x) => (float[N,{width}] y) {{
        h = MatMul(x, w)  b = Add(h, c)  r = Relu(b)  y = MatMul(r, v) }}""",
        w=drawn(width, inner, scale=0.1),
        c=drawn(inner),
        v=drawn(inner, width, scale=0.1),
    )


def value_info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def bundles(cache_dir):
    """Return the bundles that the provider keeps in a cache folder."""
    return sorted((cache_dir / "onnxruntime").glob("*.narrow"))
