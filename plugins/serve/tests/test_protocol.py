"""The Open Inference Protocol over HTTP: forms of tensors, metadata, errors."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from serve_kit import (
    WIDTH,
    doubling,
    identity,
    matmul,
    result,
    row_of,
    serving,
    strings,
    tensor,
    weights,
)

from narrowpass_serve.errors import RequestError
from narrowpass_serve.protocol.tensors import MOST_JSON, to_json

HEADER = "Inference-Header-Content-Length"
TYPES = {
    "BOOL": (TensorProto.BOOL, np.bool_, [True, False]),
    "UINT8": (TensorProto.UINT8, np.uint8, [0, 255]),
    "UINT16": (TensorProto.UINT16, np.uint16, [0, 65535]),
    "UINT32": (TensorProto.UINT32, np.uint32, [0, 2**32 - 1]),
    "UINT64": (TensorProto.UINT64, np.uint64, [0, 2**64 - 1]),
    "INT8": (TensorProto.INT8, np.int8, [-128, 127]),
    "INT16": (TensorProto.INT16, np.int16, [-(2**15), 2**15 - 1]),
    "INT32": (TensorProto.INT32, np.int32, [-(2**31), 2**31 - 1]),
    "INT64": (TensorProto.INT64, np.int64, [-(2**63), 2**63 - 1]),
    "FP16": (TensorProto.FLOAT16, np.float16, [0.1, -65504.0]),
    "FP32": (TensorProto.FLOAT, np.float32, [0.1, -3.4028234663852886e38]),
    "FP64": (TensorProto.DOUBLE, np.float64, [0.1, 1e300]),
    "BF16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, [0.1, -3.0]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    paths = {name: identity(folder / f"{name}.narrow", TYPES[name][0]) for name in TYPES}
    paths["matmul"] = matmul(folder / "matmul.narrow")
    paths["strings"] = strings(folder / "strings.narrow")
    paths["half"] = doubling(folder / "half.narrow", TensorProto.FLOAT16)
    with serving(paths) as found:
        yield found


def test_the_server_says_what_it_is(server):
    assert server.client.get("/v2").json()["extensions"] == [
        "binary_tensor_data",
        "model_repository",
    ]
    for path in ("/v2/health/live", "/v2/health/ready", "/healthz", "/v2/models/matmul/ready"):
        assert server.client.get(path).status_code == 200


def test_metadata(server):
    for path in ("/v2/models/matmul", "/v2/models/matmul/versions/1", "/v2/models/matmul:main"):
        found = server.client.get(path).json()
        assert found["versions"] == ["1"]
        assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, WIDTH]}]
        assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 8]}]


def test_numbers_of_json(server):
    rows = row_of(1, 3)
    answer = server.infer("matmul", tensor("x", rows), id="seven")
    assert answer.json()["id"] == "seven"
    assert answer.json()["model_version"] == "1"
    # 16 terms of a dot product in float32, each of size about 1.
    np.testing.assert_allclose(result(answer), rows @ weights(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("datatype", TYPES)
def test_each_datatype_as_json_and_as_bytes(server, datatype):
    _, dtype, values = TYPES[datatype]
    array = np.array(values, dtype)
    answer = server.infer(datatype, tensor("x", array, datatype))
    assert answer.json()["outputs"][0]["datatype"] == datatype
    np.testing.assert_array_equal(result(answer, dtype=dtype), array)
    again = binary(server, datatype, [("x", datatype, array.shape, array.tobytes())])
    assert again[0][1] == array.tobytes()


def binary(server, model, inputs, **more):
    """Send inputs as bytes; return the outputs' documents with their bytes."""
    parts = [
        {"name": n, "datatype": t, "shape": list(s), "parameters": {"binary_data_size": len(b)}}
        for n, t, s, b in inputs
    ]
    document = {"inputs": parts, "parameters": {"binary_data_output": True}, **more}
    head = json.dumps(document).encode()
    body = head + b"".join(each[3] for each in inputs)
    answer = server.client.post(
        f"/v2/models/{model}/infer", content=body, headers={HEADER: str(len(head))}
    )
    assert answer.status_code == 200, answer.text
    length = int(answer.headers[HEADER])
    outputs, rest = json.loads(answer.content[:length])["outputs"], answer.content[length:]
    found = []
    for each in outputs:
        size = each["parameters"]["binary_data_size"]
        found.append((each, rest[:size]))
        rest = rest[size:]
    assert rest == b""
    return found


def test_binary_results_have_the_bits_of_json(server):
    rows = row_of(2, 5)
    (document, data), *_ = binary(server, "matmul", [("x", "FP32", rows.shape, rows.tobytes())])
    assert document["shape"] == [5, 8]
    assert data == result(server.infer("matmul", tensor("x", rows))).tobytes()


def test_texts(server):
    texts = ["", "grüße", "日本語 🎉", "a" * 300]
    answer = server.infer("strings", tensor("x", np.array(texts, object), "BYTES"))
    assert answer.json()["outputs"][0]["data"] == texts
    encoded = b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in texts)
    (document, data), *_ = binary(server, "strings", [("x", "BYTES", (4,), encoded)])
    assert document["datatype"] == "BYTES"
    assert data == encoded


def test_no_rows(server):
    answer = server.infer("FP32", {"name": "x", "datatype": "FP32", "shape": [0], "data": []})
    assert answer.json()["outputs"][0]["shape"] == [0]


def test_nested_data_is_that_of_the_shape(server):
    rows = row_of(3, 2)
    nested = {**tensor("x", rows), "data": rows.tolist()}
    assert (
        server.infer("matmul", nested).content == server.infer("matmul", tensor("x", rows)).content
    )


def test_results_that_json_has_not(server):
    answer = server.infer("half", tensor("x", np.array([[65504.0, 1.0]]), "FP16"))
    assert answer.status_code == 422
    assert "binary_data" in answer.json()["error"]


def test_more_elements_than_json_is_good_for():
    wide = np.broadcast_to(np.float32(0), (MOST_JSON + 1,))
    with pytest.raises(RequestError, match="binary_data"):
        to_json(wide, "output 'y'")
    assert len(to_json(wide[1:], "output 'y'")) == MOST_JSON


ROW = tensor("x", row_of(0))
BAD = {
    "no body": (b"", 400, "no JSON"),
    "a list": ([], 400, "must be a JSON object"),
    "no inputs": ({}, 400, "`inputs` must be a list"),
    "a wrong name": ({"inputs": [{**ROW, "name": "z"}]}, 400, "no input 'z'"),
    "a name twice": ({"inputs": [ROW, ROW]}, 400, "twice"),
    "another type": ({"inputs": [{**ROW, "datatype": "FP64"}]}, 400, "of datatype FP32"),
    "no shape": ({"inputs": [{**ROW, "shape": None}]}, 400, "`shape` must be a list"),
    "a negative size": ({"inputs": [{**ROW, "shape": [-1, WIDTH]}]}, 400, "at least 0"),
    "too few": ({"inputs": [{**ROW, "data": [1.0]}]}, 400, "1 elements"),
    "text": ({"inputs": [{**ROW, "data": ["a"] * WIDTH}]}, 400, "must be a number"),
    "null": ({"inputs": [{**ROW, "data": [None] * WIDTH}]}, 400, "must be a number"),
    "ragged": ({"inputs": [{**ROW, "data": [[1.0], [1.0, 2.0]]}]}, 400, "no array of numbers"),
    "too large": ({"inputs": [{**ROW, "data": [1e39] * WIDTH}]}, 400, "out of the range of FP32"),
    "another row": ({"inputs": [tensor("x", np.ones((1, 3)))]}, 400, "axis 1 is 3, not 16"),
    "another rank": ({"inputs": [tensor("x", np.ones(WIDTH))]}, 400, "rank 2, not 1"),
    "an output": ({"inputs": [ROW], "outputs": [{"name": "x"}]}, 400, "no output 'x'"),
    "classes": (
        {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        400,
        "does not classify",
    ),
    "sequences": ({"inputs": [ROW], "parameters": {"sequence_id": 7}}, 400, "keeps no state"),
    "memory": (
        {"inputs": [{**ROW, "parameters": {"shared_memory_region": "r"}}]},
        400,
        "no shared memory",
    ),
    "nothing binary": (
        {"inputs": [{**ROW, "data": [], "parameters": {"binary_data_size": 64}}]},
        400,
        "both `data` and",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(server, name):
    body, status, message = BAD[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = server.client.post("/v2/models/matmul/infer", content=content)
    assert answer.status_code == status
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/v2/models/matmull/infer", 404, "models: "),
        ("/v2/models/matmul:other/infer", 404, "its methods: main"),
        ("/v2/models/matmul/versions/9/infer", 404, "'1' is served"),
        ("/v2/nothing", 404, "nothing at"),
        ("/v2/models/matmul", 405, "does not take POST"),
    ],
)
def test_what_is_not_there(server, path, status, message):
    answer = server.client.post(path, json={"inputs": [ROW]})
    assert answer.status_code == status
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("header", "message"), [("9999", "up to"), ("-1", "number of bytes"), ("x", "number of bytes")]
)
def test_a_wrong_length(server, header, message):
    answer = server.client.post("/v2/models/matmul/infer", content=b"{}", headers={HEADER: header})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_bytes_that_are_left_over(server):
    head = json.dumps({"inputs": [ROW]}).encode()
    headers = {HEADER: str(len(head))}
    answer = server.client.post("/v2/models/matmul/infer", content=head + b"1234", headers=headers)
    assert answer.status_code == 400
    assert "belong to no input" in answer.json()["error"]


def test_a_compressed_body(server):
    headers = {"Content-Encoding": "gzip"}
    answer = server.client.post("/v2/models/matmul/infer", content=b"x", headers=headers)
    assert answer.status_code == 415


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_long(tmp_path, declared):
    with serving({"m": matmul(tmp_path / "m.narrow")}, max_body=1000) as server:
        body = b"x" * 1001
        content = body if declared else iter([body[:600], body[600:]])
        answer = server.client.post("/v2/models/m/infer", content=content)
        assert answer.status_code == 413
        assert "--max-body" in answer.json()["error"]


def test_requests_are_counted(server):
    labels = {"model": "matmul", "protocol": "http"}
    before = [
        server.metric("narrowpass_requests_total", **labels, status=s) for s in ("200", "400")
    ]
    server.infer("matmul", ROW)
    server.infer("matmul", {**ROW, "datatype": "FP64"})
    server.infer("unheard of", ROW)
    after = [server.metric("narrowpass_requests_total", **labels, status=s) for s in ("200", "400")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
    assert "unheard of" not in server.client.get("/metrics").text
