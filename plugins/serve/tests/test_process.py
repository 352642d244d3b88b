"""A server in a process of its own, asked by the clients that others wrote."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from generate_kit import write_files
from llama_kit import Shape, models_of
from serve_kit import ServerProcess, matmul, row_of, strings, table, wait_until, weights

import narrowpass
from narrowpass.errors import UsageError
from narrowpass_serve.running import listen

SHAPE = Shape(vocabulary=320, layers=1)
CLIENTS = ("http", "grpc")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("tritonclient", reason="the client of another project")
    folder = tmp_path_factory.mktemp("models")
    matmul(folder / "matmul.narrow")
    strings(folder / "strings.narrow")
    narrowpass.build(models_of(SHAPE), "", out=folder / "llama.narrow")
    write_files(folder / "llama.narrow")
    with ServerProcess(folder, "--grpc-port", 0, "--control", "--watch", 0.05) as found:
        found.folder = folder
        yield found


@pytest.fixture(params=CLIENTS)
def module(request):
    return pytest.importorskip(
        f"tritonclient.{request.param}", reason="the client of another project"
    )


def client_of(module, server):
    address = (
        server.grpc if module.__name__.endswith("grpc") else server.url.removeprefix("http://")
    )
    return module.InferenceServerClient(address)


def test_the_whole_protocol(server, module):
    client = client_of(module, server)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("matmul")
    assert client.is_model_ready("matmul", "1")
    options = {"as_json": True} if module.__name__.endswith("grpc") else {}
    assert client.get_server_metadata(**options)["name"] == "narrowpass"
    found = client.get_model_metadata("matmul", **options)
    assert [int(dim) for dim in found["inputs"][0]["shape"]] == [-1, 16]
    index = client.get_model_repository_index(**options)
    names = [each["name"] for each in (index["models"] if options else index)]
    assert names == ["llama", "matmul", "strings"]


def test_inference(server, module):
    rows = row_of(5, 3)
    given = module.InferInput("x", [3, 16], "FP32")
    given.set_data_from_numpy(rows)
    wanted = [module.InferRequestedOutput("y")]
    answer = client_of(module, server).infer("matmul", [given], outputs=wanted, request_id="r")
    # 16 terms of a dot product in float32, each of size about 1.
    np.testing.assert_allclose(answer.as_numpy("y"), rows @ weights(), rtol=0, atol=1e-5)


def test_texts(server, module):
    texts = np.array([b"", "grüße 🎉".encode()], object)
    given = module.InferInput("x", [2], "BYTES")
    given.set_data_from_numpy(texts)
    answer = client_of(module, server).infer("strings", [given])
    assert answer.as_numpy("y").tolist() == texts.tolist()


def test_numbers_of_json(server):
    http = pytest.importorskip("tritonclient.http", reason="the client of another project")
    given = http.InferInput("x", [1, 16], "FP32")
    given.set_data_from_numpy(row_of(6), binary_data=False)
    wanted = [http.InferRequestedOutput("y", binary_data=False)]
    answer = client_of(http, server).infer("matmul", [given], outputs=wanted)
    np.testing.assert_allclose(answer.as_numpy("y"), row_of(6) @ weights(), rtol=0, atol=1e-5)


def test_errors_reach_the_client(server, module):
    from tritonclient.utils import InferenceServerException

    client, given = client_of(module, server), module.InferInput("x", [1, 3], "FP32")
    given.set_data_from_numpy(np.ones((1, 3), np.float32))
    for model, message in (
        ("matmul", "axis 1 is 3"),
        ("strings", "of datatype BYTES"),
        ("m", "no model 'm'"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            client.infer(model, [given])


def test_a_model_is_unloaded_and_loaded(server, module):
    from tritonclient.utils import InferenceServerException

    client = client_of(module, server)
    client.unload_model("strings")
    assert not client.is_model_ready("strings")
    client.load_model("strings")
    assert client.is_model_ready("strings")
    with pytest.raises(InferenceServerException, match="no model 'more'"):
        client.load_model("more")


def test_typed_contents_of_grpc(server):
    grpc = pytest.importorskip("grpc", reason="the transport")
    pb2 = pytest.importorskip("tritonclient.grpc.service_pb2", reason="generated code")
    stubs = pytest.importorskip("tritonclient.grpc.service_pb2_grpc", reason="generated code")
    request = pb2.ModelInferRequest(model_name="matmul")
    given = request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    given.contents.fp32_contents.extend(row_of(7)[0].tolist())
    with grpc.insecure_channel(server.grpc) as channel:
        stub = stubs.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request)
        found = np.frombuffer(answer.raw_output_contents[0], np.float32)
        np.testing.assert_allclose(found, row_of(7)[0] @ weights(), rtol=0, atol=1e-5)
        for change, message in (
            ({"fp64_contents": [1.0]}, "are in fp32_contents"),
            ({"fp32_contents": [1.0]}, "17 elements"),
        ):
            bad = pb2.ModelInferRequest()
            bad.CopyFrom(request)
            for field, values in change.items():
                getattr(bad.inputs[0].contents, field).extend(values)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(bad)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert message in caught.value.details()


def test_messages_have_the_published_fields():
    """Each field has name, number, label and type of code that was generated from the protocol."""
    pb2 = pytest.importorskip("tritonclient.grpc.service_pb2", reason="generated code")
    from narrowpass_serve.protocol.grpc_messages import create_messages

    def fields(descriptor):
        found = {}
        for each in descriptor.fields:
            inner = each.message_type
            kind = each.type if inner is None else inner.full_name
            oneof = each.containing_oneof and each.containing_oneof.name
            found[each.name] = (each.number, each.is_repeated, kind, bool(oneof))
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                found[inner.full_name] = fields(inner)
        return found

    for name, message in create_messages().items():
        seen: set[str] = set()
        ours = fields(message.DESCRIPTOR)
        seen = set()
        theirs = fields(getattr(pb2, name).DESCRIPTOR)
        assert {key: theirs[key] for key in ours} == ours, name


def test_openai(server):
    openai = pytest.importorskip("openai", reason="the client of another project")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert [each.id for each in client.models.list()] == ["llama"]
        options = {"model": "llama", "prompt": "the cat", "max_tokens": 8, "temperature": 0}
        whole = client.completions.create(**options).choices[0].text
        parts = client.completions.create(**options, stream=True)
        assert "".join(each.choices[0].text for each in parts) == whole
        messages = [{"role": "user", "content": "hi"}]
        chat = {"model": "llama", "messages": messages, "max_tokens": 8, "temperature": 0}
        answer = client.chat.completions.create(**chat).choices[0].message.content
        deltas = client.chat.completions.create(**chat, stream=True)
        assert "".join(each.choices[0].delta.content or "" for each in deltas) == answer
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            client.completions.create(**options, logprobs=2)
        with pytest.raises(openai.NotFoundError, match="no model"):
            client.completions.create(**{**options, "model": "x"})


def test_a_client_that_leaves_frees_its_sequence(server):
    openai = pytest.importorskip("openai", reason="the client of another project")
    options = {"model": "llama", "prompt": "a", "temperature": 0}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(**options, max_tokens=100, stream=True)
        next(iter(stream))
        stream.close()
        assert wait_until(
            lambda: (
                'narrowpass_sequences{model="llama",state="running"} 0.0'
                in get(server.url, "/metrics")
            )
        )


def get(url, path):
    with urllib.request.urlopen(url + path, timeout=60) as answer:
        return answer.read().decode()


def test_bundles_are_replaced_under_load(server):
    """No request is lost, each has the answer of the version that it names."""
    http = pytest.importorskip("tritonclient.http", reason="the client of another project")
    first = int(client_of(http, server).get_model_metadata("matmul")["versions"][0])
    done = threading.Event()

    def ask():
        client, found = client_of(http, server), []
        given = http.InferInput("x", [1, 16], "FP32")
        given.set_data_from_numpy(row_of(0))
        while not done.is_set():
            answer = client.infer("matmul", [given])
            version = int(answer.get_response()["model_version"]) - first
            expected = row_of(0) @ weights(version)
            found.append((version, np.allclose(answer.as_numpy("y"), expected, rtol=0, atol=1e-5)))
        return found

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask) for _ in range(3)]
        client = client_of(http, server)
        for seed in (1, 2):
            matmul(server.folder / "matmul.narrow", seed=seed)
            wanted = str(first + seed)
            served = wait_until(
                lambda: client.get_model_metadata("matmul")["versions"] == [wanted]  # noqa: B023
            )
            if not served:
                break
        done.set()
        found = [each for one in asked for each in one.result()]
    matmul(server.folder / "matmul.narrow", seed=0)  # for the other tests
    assert served
    assert all(right for _, right in found)
    assert {version for version, _ in found} >= {0, 1}


def ask_slowly(server, answers):
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": [%s]}]}'
    data = body % b",".join([b"1"] * 16)
    try:
        with urllib.request.urlopen(f"{server.url}/v2/models/m/infer", data, timeout=60) as answer:
            answers.append(answer.status)
    except OSError as error:
        answers.append(error)


def waiting(server, path, delay):
    """Start a server, and a request that waits for others to join it."""
    server.append(ServerProcess(f"m={path}", "--max-delay", delay))
    answers = []
    thread = threading.Thread(target=ask_slowly, args=(server[0], answers))
    thread.start()
    counted = 'narrowpass_waiting_requests{model="m"} 1.0'
    assert wait_until(lambda: counted in get(server[0].url, "/metrics"))
    return thread, answers


def test_the_first_signal_answers_what_came(tmp_path):
    started = []
    thread, answers = waiting(started, matmul(tmp_path / "m.narrow"), 2000)
    with started[0] as server:
        code, said = server.stop(signal.SIGTERM)
        thread.join(60)
        assert answers == [200]
        assert code == 0
        assert "no more requests" in said
        with pytest.raises(urllib.error.URLError):
            get(server.url, "/healthz")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(tmp_path, number):
    started = []
    thread, answers = waiting(started, matmul(tmp_path / "m.narrow"), 3_600_000)
    with started[0] as server:
        os.kill(server.process.pid, number)
        time.sleep(0.3)
        assert server.process.poll() is None
        code, _ = server.stop(number)
        thread.join(60)
        assert code == 128 + number
        assert isinstance(answers[0], OSError)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="a limit of Linux")
def test_memory_that_does_not_suffice(tmp_path):
    """A request of 29 MB, with 115 MB of results, ends with an error; others are answered.

    The process may take 200 MB more: enough to read the request, and not to join the results.
    What malloc reserves for a further thread does not count, as it is not writable.
    """
    with ServerProcess(f"m={table(tmp_path / 'm.narrow')}") as server:
        pid = server.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        most = (int(re.search(r"VmData:\s*(\d+) kB", status)[1]) << 10) + (200 << 20)
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))

        def ask(rows):
            size = {"binary_data_size": rows * 24}
            given = {"name": "ids", "datatype": "INT64", "shape": [rows, 3], "parameters": size}
            head = json.dumps({"inputs": [given]}).encode()
            request = urllib.request.Request(
                f"{server.url}/v2/models/m/infer",
                head + bytes(rows * 24),
                {"Inference-Header-Content-Length": str(len(head))},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status

        with ThreadPoolExecutor(1) as pool:
            small = pool.submit(lambda: [ask(1) for _ in range(100)])
            with pytest.raises(urllib.error.HTTPError) as caught:
                ask(1_200_000)
            assert caught.value.code == 503
            assert "memory" in caught.value.read().decode()
            assert set(small.result()) == {200}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_are_sent_without_delay(host):
    """asyncio sends small parts at once (TCP_NODELAY) on sockets that name TCP."""
    try:
        found = listen(host, 0)
    except UsageError:
        pytest.skip(f"there is no {host}")
    with found:
        assert found.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.narrow"], "no such bundle"),
        (["m.narrow", "--backend", "none"], "none"),
        (["m.narrow", "--host", "256.0.0.1"], "cannot listen"),
        (["broken.onnx"], "broken.onnx"),
    ],
)
def test_what_cannot_be_started(tmp_path, arguments, message):
    from click.testing import CliRunner

    from narrowpass.cli import app

    matmul(tmp_path / "m.narrow")
    (tmp_path / "broken.onnx").write_bytes(b"none")
    texts = [
        str(tmp_path / each) if each.endswith(("narrow", "onnx")) else each for each in arguments
    ]
    done = CliRunner().invoke(app, ["serve", "--port", "0", *texts])
    assert done.exit_code in (1, 2)
    assert message in done.stderr
