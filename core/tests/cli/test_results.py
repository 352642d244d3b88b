"""Arrays that are read, files that are written, terminals, and interrupts."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from narrowpass import Pass, ReportWriter

X = np.ones((2, 4), np.float32)


@pytest.fixture
def run(call, model):
    def run_on(*inputs, code=0):
        given = [word for text in inputs for word in ("--input", text)]
        return call("run", model, *given, "--backend", "reference", "-p", "", code=code)

    return run_on


# Arrays


def test_the_one_array_of_an_archive(run):
    np.save("x.npy", X)
    np.savez("one.npz", x=X)
    np.savez("other.npz", foo=X)
    expected = run("x=x.npy").out
    assert run("x=one.npz").out == expected
    assert run("x=other.npz").out == expected
    assert run("one.npz").out == expected


def test_one_of_several_arrays_is_chosen_by_its_name(run):
    np.savez("two.npz", x=X * 9, z=X)
    np.save("x.npy", X)
    assert run("x=two.npz:z").out == run("x=x.npy").out
    assert "(x, z); choose one with --input x=two.npz:x" in run("x=two.npz", code=1).err
    assert "two.npz has no array 'q'; it has x, z" in run("x=two.npz:q", code=2).err


@pytest.mark.parametrize("order", [">f4", "<f4"])
def test_arrays_of_any_byte_order_and_layout(run, order):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4)).astype(np.float32)
    np.save("plain.npy", x)
    np.save("other.npy", np.asfortranarray(x.astype(order)))
    np.savez("other.npz", x=x.astype(order))
    assert run("x=other.npy").out == run("x=plain.npy").out == run("x=other.npz").out


def _broken_files():
    np.save("x.npy", X)
    np.savez("x.npz", x=X)
    whole, archive = Path("x.npy").read_bytes(), Path("x.npz").read_bytes()
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    np.savez("objects.npz", x=np.array([{}], object))
    np.savez("none.npz")
    for name, data in {
        "cut.npy": whole[:-5],
        "header.npy": whole[:20],
        "empty.npy": b"",
        "text.npy": b"hello",
        "cut.npz": archive[:-30],
        "flipped.npz": archive.replace(b"\0\0\x80?", b"\0\0\x81?", 1),
        "brace.npy": whole.replace(b"{'descr'", b"{{descr'"),
        "huge.npy": whole.replace(b"(2, 4)", b"(2000000000000, 4)"),
    }.items():
        Path(name).write_bytes(data)
    with zipfile.ZipFile("strange.npz", "w") as file:
        file.writestr("readme.txt", "hello")
    return sorted(path.name for path in Path().glob("*.np?") if path.stem != "x")


def test_files_that_hold_no_array(run):
    for name in _broken_files():
        for text in (f"x={name}", name) if name.endswith(".npz") else (f"x={name}",):
            error = run(text, code=1).err
            assert name in error
            assert "internal error" not in error


# Files that are written


class Page(ReportWriter):
    """Writes the title."""

    name = "html"

    def render(self, bundle, title):
        return title


@pytest.fixture
def sources(call, install, model):
    install("page", narrowpass_reports=[Page()])
    np.save("x.npy", X)
    call("build", model, "-o", "m.narrow", "-p", "")
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


WRITERS = {
    "run": ("run", "MODEL", "--input", "x=x.npy", "-o"),
    "bench": ("bench", "MODEL", "--runs", "1", "--input", "x=x.npy", "--trace"),
    "explain": ("explain", "MODEL", "--report"),
    "build": ("build", "MODEL", "-o", "new.narrow", "-p", "", "--report"),
}


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_what_is_read_is_not_overwritten(call, sources, words):
    command = words[0]
    targets = ["model.onnx", "./model.onnx", ""]
    targets += ["x.npy"] if "x=x.npy" in words else []
    for target in targets:
        arguments = ["model.onnx" if word == "MODEL" else word for word in words]
        call(*arguments, target, code=2)
    if command != "build":
        arguments = ["m.narrow" if word == "MODEL" else word for word in words]
        for target in ("m.narrow/weights.safetensors", "m.narrow/new", "m.narrow"):
            call(*arguments, target, code=2)
    for path, data in sources.items():
        assert path.read_bytes() == data
    assert not Path("m.narrow/new").exists()


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_devices_are_not_replaced(call, sources, words, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    arguments = ["model.onnx" if word == "MODEL" else word for word in words]
    error = call(*arguments, tmp_path / "fifo", code=2).err
    assert "is not a regular file" in error
    assert (tmp_path / "fifo").is_fifo()


# Terminals and streams


def _on_terminal(columns, *words, **environment):
    """Run the command line on a terminal; return what it shows."""
    shown, inner = pty.openpty()
    os.set_inheritable(inner, True)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "narrowpass", *words],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**kept, "TERM": "xterm", **environment},
    )
    os.close(inner)
    parts = []
    while True:
        try:
            part = os.read(shown, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(shown)
    process.wait()
    return b"".join(parts).decode()


def test_a_table_on_a_narrow_terminal_can_be_read():
    shown = _on_terminal(20, "backends")
    assert "reference" in shown
    assert "priority" in shown


def test_colours_are_left_out_on_demand():
    assert "\x1b[" in _on_terminal(80, "no-such-command")
    for words in (["no-such-command"], ["plugins"], ["backends"]):
        assert "\x1b[3" not in _on_terminal(80, *words, NO_COLOR="1")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_is_closed_from_the_start(stream):
    number = {"stdout": 1, "stderr": 2}[stream]
    program = f"import os; os.close({number}); os.execv({sys.executable!r}, "
    program += f"[{sys.executable!r}, '-m', 'narrowpass', 'backends'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0
    assert b"error" not in done.stdout + done.stderr


def test_a_name_that_the_locale_does_not_have(tmp_path, model):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "narrowpass", "build", model, "-o", "größe☃.narrow", "-p", ""],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "größe☃.narrow").is_dir()


# Interrupts


class Interrupted(Pass):
    """Ends as if the user had pressed Ctrl-C."""

    name = "interrupted"

    def run(self, model, ctx):
        raise KeyboardInterrupt


@pytest.mark.parametrize("output", ["m.narrow", "m.onnx"])
def test_an_interrupt_within_a_pass_leaves_nothing(call, install, model, output):
    install(narrowpass_passes=[Interrupted])
    before = sorted(Path().iterdir())
    error = call("build", model, "-o", output, "-p", "interrupted", code=130).err
    assert error.endswith("narrowpass: error: interrupted\n")
    assert sorted(Path().iterdir()) == before


def test_an_interrupt_while_a_bundle_is_written_leaves_nothing(call, install, model, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    call("build", model, "-o", "m.narrow", "-p", "")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    monkeypatch.setattr("narrowpass.bundle.bundle.safetensors.write", interrupt)
    call("build", model, "-o", "m.narrow", "-p", "", code=130)
    call("build", model, "-o", "other.narrow", "-p", "", code=130)
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert after == before


def test_an_interrupt_while_modules_are_imported():
    program = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from narrowpass.cli import main\n"
        "main(['plugins'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "narrowpass: error: interrupted\n")


def test_arguments_with_a_nul(call, model):
    for words in (["inspect", "a\0b"], ["run", model, "-o", "\0"]):
        assert "has a NUL character" in call(*words, code=2).err
