"""The provider in programs that do not ask for it: `narrowpass onnxruntime enable`."""

import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import onnxruntime
import pytest
from click.testing import CliRunner

from narrowpass.errors import UsageError
from narrowpass_onnxruntime.command import onnxruntime as command
from narrowpass_onnxruntime.provider import enabling
from narrowpass_onnxruntime.provider.defaults import front, parse
from narrowpass_onnxruntime.provider.registration import NAME

CPU = "CPUExecutionProvider"

PROGRAM = textwrap.dedent(
    """
    import sys
    assert "narrowpass" not in sys.modules and "numpy" not in sys.modules
    import onnxruntime, numpy as np
    from onnx import parser
    text = "g (float[N,8] x) => (float[N,8] y) { a = Relu(x)  y = Sigmoid(a) }"
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
    session = onnxruntime.InferenceSession(model.SerializeToString(), PROVIDERS)
    print(*session.get_providers(), session.run(None, {"x": np.zeros((1, 8), np.float32)})[0][0, 0])
    """
)


@pytest.fixture
def environment(tmp_path):
    """Return a virtual environment that sees the packages of this one."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    done = subprocess.run(
        [folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    site = Path(done.stdout.strip())
    paths = [path for path in sys.path if path and Path(path).is_dir() and "site-packages" in path]
    # `addsitedir` reads the .pth files of editable installations too.
    lines = [f"import site; site.addsitedir({path!r})" for path in paths]
    (site / "packages.pth").write_text("\n".join(lines) + "\n")
    return folder


def run(environment, providers="providers=None", **variables):
    done = subprocess.run(
        [environment / "bin" / "python", "-c", PROGRAM.replace("PROVIDERS", providers)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1], done.stderr


def test_programs_of_an_environment(environment):
    assert run(environment)[0] == f"{CPU} 0.5"
    runner = CliRunner()
    done = runner.invoke(command, ["enable", "--venv", str(environment)])
    assert done.exit_code == 0, done.output
    assert run(environment)[0] == f"{NAME} {CPU} 0.5"
    assert run(environment, f"providers=['{CPU}']")[0] == f"{NAME} {CPU} 0.5"
    assert run(environment, NARROWPASS_ONNXRUNTIME="threads=1")[0] == f"{NAME} {CPU} 0.5"
    assert run(environment, NARROWPASS_ONNXRUNTIME="0")[0] == f"{CPU} 0.5"
    found, stderr = run(environment, NARROWPASS_ONNXRUNTIME="treads=1")
    assert found == f"{CPU} 0.5"
    assert "unknown option 'treads'" in stderr
    done = runner.invoke(command, ["disable", "--venv", str(environment)])
    assert done.output.startswith("removed")
    assert run(environment)[0] == f"{CPU} 0.5"
    done = runner.invoke(command, ["disable", "--venv", str(environment)])
    assert done.output == "it was not enabled\n"


def test_what_is_no_environment(tmp_path):
    with pytest.raises(UsageError, match="is no virtual environment"):
        enabling.enable(str(tmp_path))
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True, with_pip=False)
    with pytest.raises(UsageError, match="narrowpass-onnxruntime is not installed in"):
        enabling.enable(str(bare))


class Settings:
    """A stand-in for `onnxruntime.SessionOptions`, with providers of devices or without."""

    def __init__(self, threads=0, *, devices=False):
        self.intra_op_num_threads, self._devices = threads, devices

    def has_providers(self):
        return self._devices

    def get_session_config_entry(self, key):
        raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")


@pytest.mark.parametrize(
    ("providers", "options", "session", "expected"),
    [
        (None, None, None, [(NAME, {}), (CPU, {})]),
        ([], None, Settings(2), [(NAME, {"threads": "2"}), (CPU, {})]),
        ([CPU], [{"a": "b"}], Settings(), [(NAME, {}), (CPU, {"a": "b"})]),
        ([(CPU, {"a": "b"})], None, None, [(NAME, {}), (CPU, {"a": "b"})]),
        ([NAME, CPU], None, None, None),
        (["CUDAExecutionProvider", CPU], None, None, None),
        (None, None, Settings(devices=True), None),
    ],
)
def test_providers_in_front(providers, options, session, expected):
    assert front(providers, options, {}, session) == expected


def test_sessions_that_are_left_alone():
    options = onnxruntime.SessionOptions()
    assert front(None, None, {}, options) == [(NAME, {}), (CPU, {})]
    options.add_session_config_entry("narrowpass.left_alone", "1")
    assert front(None, None, {}, options) is None


def test_the_backend_onnxruntime_is_left_alone():
    """`compare` with it would compare this provider with itself."""
    program = """
        import narrowpass
        from onnx import parser
        from narrowpass_onnxruntime.provider import callbacks
        text = "g (float[N,8] x) => (float[N,8] y) { a = Relu(x)  y = Sigmoid(a) }"
        model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
        narrowpass.load(model, "onnxruntime", pipeline="")
        print(len(callbacks.groups()))
        import onnxruntime
        session = onnxruntime.InferenceSession(model.SerializeToString())
        print(len(callbacks.groups()))
    """
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import narrowpass_onnxruntime_startup\n" + textwrap.dedent(program),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "0\n1\n"), done.stderr


def test_options_in_the_environment():
    assert parse("") == parse("1") == {}
    assert parse("threads=2; pipeline=fp16{a=b},fold") == {
        "threads": "2",
        "pipeline": "fp16{a=b},fold",
    }
    with pytest.raises(UsageError, match="options are written NAME=VALUE"):
        parse("fast")


def test_onnxruntime_has_what_is_wrapped():
    from onnxruntime.capi import onnxruntime_inference_collection as collection

    assert hasattr(collection.InferenceSession, "_create_inference_session")
    assert not onnxruntime.SessionOptions().has_providers()
    assert sysconfig.get_path("purelib")
