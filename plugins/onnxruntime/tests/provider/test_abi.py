"""The places in onnxruntime's tables, by what the functions there do; versions are refused."""

import subprocess
import sys
import textwrap

import numpy as np
import onnxruntime
from provider_kit import drawn, our_session, perceptron

import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider import session as session_module
from narrowpass_onnxruntime.provider.graph import read_graph
from narrowpass_onnxruntime.provider.library import check, ffi, lib, ort


def test_statuses():
    """The first places: a status is created, read and freed."""
    narrowpass_onnxruntime.register()
    api = ort()
    status = api.CreateStatus(lib.NP_ORT_INVALID_ARGUMENT, b"what it says")
    assert api.GetErrorCode(status) == lib.NP_ORT_INVALID_ARGUMENT
    assert ffi.string(api.GetErrorMessage(status)) == b"what it says"
    api.ReleaseStatus(status)
    check(ffi.NULL)


def test_a_graph_is_read_as_it_is(monkeypatch):
    """The functions of graphs, nodes, values and attributes, the last ones of the table too."""
    seen = []

    def reading(pointer):
        seen.append(read_graph(pointer))
        return seen[-1]

    monkeypatch.setattr(session_module, "read_graph", reading)
    weights = drawn(64, 256)
    model = perceptron()
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.raw_data = weights.tobytes()
    model.graph.node[3].attribute.clear()
    our_session(model)
    graph = seen[0]
    operators = {node.op_type for node in graph.nodes}
    assert operators <= {"MatMul", "Add", "Relu", "Gemm"}
    assert graph.outputs == {"y"}
    assert graph.opsets[""] == 21
    assert graph.shapes["x"] == [None, 64]
    assert graph.types["x"].name == "FLOAT"
    assert {"w", "v"} <= set(graph.constants)


def test_all_kinds_of_attributes_are_read(monkeypatch):
    from provider_kit import graph as model_of

    seen = []

    def reading(pointer):
        seen.append(read_graph(pointer))
        return seen[-1]

    monkeypatch.setattr(session_module, "read_graph", reading)
    model = model_of(
        """g (float[3,2,4] x, float[1,5,4] w, float[1,5,5] r, float[1,1,4,4] i) =>
        (float[3,1,2,5] y, float[3,2,4] z, float[1,1,A,B] u) {
        y = RNN<hidden_size=5, activations=["Relu"], activation_alpha=[0.5]>(x, w, r)
        z = LeakyRelu<alpha=0.25>(x)
        u = Conv<pads=[1,2,1,2], auto_pad="NOTSET">(i, k) }""",
        k=drawn(1, 1, 3, 3),
    )
    our_session(model)
    found = {
        (node.op_type, each.name): each.value
        for graph in seen
        for node in graph.nodes
        for each in node.attributes
    }
    assert found["RNN", "hidden_size"] == 5
    assert [*found["RNN", "activations"]] == ["Relu"]
    assert [*found["RNN", "activation_alpha"]] == [0.5]
    assert found["RNN", "direction"] == "forward"
    assert found["LeakyRelu", "alpha"] == 0.25
    assert [*found["Conv", "pads"]] == [1, 2, 1, 2]


def test_a_second_registration_does_nothing():
    narrowpass_onnxruntime.register()
    narrowpass_onnxruntime.register()
    names = onnxruntime.get_available_providers()
    assert names.count("NarrowpassExecutionProvider") == 1
    assert np.__version__


REFUSED = """
    import ctypes
    from narrowpass_onnxruntime.provider.library import PATH

    library = ctypes.CDLL(PATH)
    keep = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code, message):
        keep.append(message.decode())
        return 1

    table = (ctypes.c_void_p * 424)(ctypes.cast(create_status, ctypes.c_void_p).value)

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    def get_api(version):
        return ctypes.addressof(table) if version <= NEWEST else None

    @ctypes.CFUNCTYPE(ctypes.c_char_p)
    def get_version():
        return VERSION

    base = (ctypes.c_void_p * 2)(
        ctypes.cast(get_api, ctypes.c_void_p).value, ctypes.cast(get_version, ctypes.c_void_p).value
    )
    count = ctypes.c_size_t(7)
    factories = (ctypes.c_void_p * 4)()
    create = library.CreateEpFactories
    create.restype = ctypes.c_void_p
    status = create(b"name", base, None, factories, ctypes.c_size_t(4), ctypes.byref(count))
    print(status, count.value, keep)
"""


def refusal(version, newest):
    text = textwrap.dedent(REFUSED).replace("VERSION", repr(version)).replace("NEWEST", str(newest))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stdout


def test_versions_that_are_not_known_are_refused():
    assert "1 0 ['this version of onnxruntime is not supported: 1.30" in refusal(b"1.29.3", 29)
    assert "1 0 ['this version of onnxruntime is not supported: 1.30" in refusal(b"2.0.0", 40)
    assert "1 0 ['onnxruntime does not say its version" in refusal(b"nightly", 30)
    assert "1 0 ['onnxruntime does not offer the interface" in refusal(b"1.30.0", 3)
