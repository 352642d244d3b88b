"""The command line, in processes as users have them, and in this one where that is enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from generate_kit import byte_tokenizer, write_files
from llama_kit import Oracle, Shape, models_of

import narrowpass
from narrowpass.cli import app
from narrowpass_generate import Decoder, Tokenizer, generate

SHAPE = Shape(vocabulary=320, layers=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.narrow"
    narrowpass.build(models_of(SHAPE), "", out=path)
    write_files(path, generation={"eos_token_id": 319})
    return path


def run(*arguments, text=None):
    done = CliRunner().invoke(app, [str(each) for each in arguments], input=text)
    return done.exit_code, done.stdout, done.stderr


def test_the_bundle_is_still_one(bundle):
    assert run("inspect", bundle)[0] == 0


def test_json(bundle):
    code, out, _ = run("generate", bundle, "the cat", "--tokens", 6, "--greedy", "--json")
    assert code == 0
    document = json.loads(out)
    prompt = Tokenizer.load(bundle).encode("the cat")
    assert document["tokens"] == Oracle(SHAPE).greedy(prompt, 6)
    expected = byte_tokenizer().decode([*prompt, *document["tokens"]]).removeprefix("the cat")
    assert document["text"] == expected
    assert document["prompt_tokens"] == len(prompt)
    assert document["finish_reason"] == "length"
    times = document["times"]
    assert times.keys() == {"load", "first_token", "total", "tokens_per_second"}
    assert all(value > 0 for value in times.values())


def test_text(bundle):
    arguments = ("generate", bundle, "the cat", "--tokens", 6)
    text = json.loads(run(*arguments, "--json")[1])["text"]
    for more in ((), ("--stream",), ("--no-stream",), ("--lookup", 2), ("--draft", bundle)):
        code, out, err = run(*arguments, *more)
        assert (code, out) == (0, text + "\n")
        assert "6 tokens" in err
        assert ("drafts accepted" in err) == (more[:1] == ("--draft",))
    assert run("generate", bundle, "-", "--tokens", 6, text="the cat")[1] == text + "\n"
    assert run("generate", "-q", bundle, "the cat", "--tokens", 6)[2] == ""


def test_seeds(bundle):
    arguments = ("generate", bundle, "the", "--tokens", 12, "--temperature", 2, "--json")
    tokens = [json.loads(run(*arguments, "--seed", s)[1])["tokens"] for s in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_sampling_of_the_models_files(bundle, tmp_path):
    folder = tmp_path / "sampling"
    folder.mkdir()
    write_files(folder, generation={"do_sample": True, "temperature": 1.5, "top_k": 7})
    arguments = ("generate", bundle, "the", "--tokens", 12, "--json", "--seed", 3)
    files = ("--tokenizer", folder)

    def tokens(*more):
        return json.loads(run(*arguments, *more)[1])["tokens"]

    assert tokens(*files) == tokens("--temperature", 1.5, "--top-k", 7)
    assert tokens(*files, "--greedy") == tokens("--greedy") != tokens(*files)


def test_chat_template(bundle):
    text = "<s><system>brief\n<user>the cat\n<assistant>"
    prompt = Tokenizer.load(bundle).encode(text, special=False)
    options = ("--chat", "--system", "brief", "--tokens", 4, "--json")
    document = json.loads(run("generate", bundle, "the cat", *options)[1])
    assert document["prompt_tokens"] == len(prompt)
    assert document["tokens"] == Oracle(SHAPE).greedy(prompt, 4)


def test_chat_keeps_what_was_read(bundle, monkeypatch):
    runs: list[int] = []
    feed = Decoder.feed
    monkeypatch.setattr(
        Decoder, "feed", lambda self, tokens: runs.append(len(tokens)) or feed(self, tokens)
    )
    lines = "the cat\n\n/what\n/reset\nthe cat\nthe dog\n/exit\nnot read\n"
    code, out, err = run("chat", bundle, "--tokens", 3, text=lines)
    assert code == 0
    first, again, second = out.splitlines()
    assert first == again
    assert "/what is no command" in err
    assert "forgotten" in err
    tokenizer = Tokenizer.load(bundle)
    messages = [{"role": "user", "content": "the cat"}]
    prompt = tokenizer.encode_chat(messages)
    assert runs[:3] == runs[3:6] == [len(prompt), 1, 1]
    whole = [
        *messages,
        {"role": "assistant", "content": first},
        {"role": "user", "content": "the dog"},
    ]
    ids = tokenizer.encode_chat(whole)
    assert runs[6] <= len(ids) - len(prompt)  # the prompt was not run again
    with narrowpass.load(bundle) as program:
        expected = generate(program, ids, tokens=3, tokenizer=tokenizer).text
    assert second == expected


def test_chat_ends_with_the_input(bundle):
    code, out, _ = run("chat", bundle, "--tokens", 2, text="the")
    assert code == 0
    assert out.endswith("\n")


def test_a_full_context_is_said_and_forgotten(bundle):
    code, out, err = run("chat", bundle, "--tokens", 2, text=f"{'the cat ' * 100}\nthe\n")
    assert code == 0
    assert "leaves no room in the context of 128; shorten it; /reset" in err
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "-1"), "`temperature` must be a number at least 0"),
        (("--top-p", "3"), "`top_p`"),
        (("--greedy", "--temperature", "2"), "contradict each other"),
        (("--json", "--stream"), "contradict each other"),
        (("--system", "x"), "pass --chat, too"),
        (("--tokens", "0"), "`tokens` must be at least 1"),
        (("--tokens", "1000"), "exceed the context of 128; ask for at most"),
        (("--stop", ""), "a stop string is empty"),
        (("--lookup", "-1"), "`lookup`"),
        (("--draft", "nothing.narrow"), "nothing.narrow: no such file or bundle"),
        (("--tokenizer", "nothing"), "no such folder"),
        (("--heat", "3"), "No such option"),
        (("--backend", "nothing"), "nothing"),
    ],
)
def test_wrong_options(bundle, arguments, message):
    code, out, err = run("generate", bundle, "the cat", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "internal error" not in err


def test_wrong_bundles(bundle, tmp_path):
    code, _, err = run("generate", tmp_path / "nothing", "the cat")
    assert (code, "no such file or bundle" in err) == (2, True)
    bare = tmp_path / "bare.narrow"
    narrowpass.build(models_of(SHAPE), "", out=bare)
    for command in (("generate", bare, "the cat"), ("chat", bare)):
        code, _, err = run(*command)
        assert (code, "there is no tokenizer.json; copy the files" in err) == (2, True)
    write_files(bare, chat_template=None)
    code, _, err = run("chat", bare)
    assert (code, "there is no chat template" in err) == (2, True)
    write_files(bare, chat_template="{{ raise_exception('never') }}")
    code, _, err = run("chat", bare)
    assert (code, "the chat template fails: never" in err) == (1, True)
    code, _, err = run("generate", bare, "x", "--tokenizer", bundle, "--draft", bare, "--lookup", 2)
    assert (code, "not by both" in err) == (2, True)
    small = tmp_path / "small.narrow"
    narrowpass.build(models_of(Shape(vocabulary=99)), "", out=small)
    code, _, err = run("generate", small, "the cat", "--tokenizer", bundle)
    assert (code, "it is not the model's own" in err) == (1, True)


@pytest.fixture(scope="module")
def long_bundle(tmp_path_factory):
    """Return a decoder whose answers take minutes."""
    path = tmp_path_factory.mktemp("long") / "long.narrow"
    shape = Shape(vocabulary=320, layers=12, width=256, hidden=1024, positions=30_000)
    narrowpass.build(models_of(shape), "", out=path)
    write_files(path, config={"max_position_embeddings": 30_000})
    return path


def take_interrupts():
    """Take SIGINT again, which children of a shell's background jobs ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted(bundle, stream, seconds):
    """Generate until an interrupt after the first text, or after some seconds; return outputs."""
    command = [sys.executable, "-m", "narrowpass", "generate", bundle, "the"]
    command += ["--tokens", "29000"]
    with subprocess.Popen(
        [*command, stream],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_interrupts,  # noqa: PLW1509  # the tests have one thread
    ) as process:
        if stream == "--stream":
            assert process.stdout.read(1)
        else:
            time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return out, err


@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process needs POSIX")
def test_an_interrupt_ends_a_stream(long_bundle):
    _, err = interrupted(long_bundle, "--stream", 0)
    assert "ended by interrupted" in err


@pytest.mark.skipif(os.name == "nt", reason="SIGINT to one process needs POSIX")
def test_an_interrupt_ends_a_document(long_bundle):
    """On a busy machine the command may still be loading after the first of these times."""
    for seconds in (6, 24, 96):
        out, _ = interrupted(long_bundle, "--json", seconds)
        if out:
            break
    document = json.loads(out)
    assert document["finish_reason"] == "interrupted"
    assert 0 < len(document["tokens"]) < 29_000


def chat(bundle, **streams):
    """Begin a chat whose answers have 29,000 tokens."""
    command = [sys.executable, "-m", "narrowpass", "chat", bundle, "--tokens", "29000"]
    streams["preexec_fn"] = take_interrupts
    return subprocess.Popen(command, text=True, bufsize=1, **streams)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_an_interrupt_ends_an_answer_and_not_the_chat(long_bundle):
    pipe = subprocess.PIPE
    with chat(long_bundle, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        for message in ("the cat", "the dog"):
            process.stdin.write(f"{message}\n")
            assert process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            while process.stdout.read(1) != "\n":
                pass
        out, err = process.communicate("/exit\n", timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.skipif(os.name == "nt", reason="signals and terminals")
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_an_interrupt_between_answers_ends_the_chat(long_bundle, terminal):
    """With 130, and without a traceback; on a terminal, where it asks for a message, too."""
    pipe = subprocess.PIPE
    ours, theirs = os.openpty() if terminal else (None, pipe)
    with chat(long_bundle, stdin=theirs, stdout=pipe, stderr=pipe) as process:
        if terminal:
            os.close(theirs)
            assert "/reset forgets" in process.stderr.readline()
        else:
            process.stdin.write("/reset\n")
            assert "is forgotten" in process.stderr.readline()
        time.sleep(0.5)  # until it waits for a message
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    if ours is not None:
        os.close(ours)
    assert process.returncode == 130, err
    assert "Traceback" not in err
