"""OpenAI's endpoints in this process: texts as an oracle generates them, errors, users at once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from generate_kit import TEMPLATE, byte_tokenizer, write_files
from llama_kit import Oracle, Shape, models_of
from serve_kit import matmul, serving, wait_until

import narrowpass
from narrowpass_generate import Decoder, Sampling
from narrowpass_serve.completions.requests import read_parameters

SHAPE = Shape(vocabulary=320, layers=1)
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
END = 319


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    narrowpass.build(models_of(SHAPE), "", out=folder / "llama.narrow")
    write_files(folder / "llama.narrow", generation={"eos_token_id": END})
    paths = {"llama": folder / "llama.narrow", "plain": matmul(folder / "plain.narrow")}
    with serving(paths, sequences=4) as found:
        yield found


def expected(prompt, count):
    """Return the text that greedy tokens of onnx's evaluator are, and their number."""
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
    tokens = Oracle(SHAPE).greedy(ids, count)
    tokens = tokens[: tokens.index(END) + 1] if END in tokens else tokens
    before = tokenizer.decode(ids)
    return tokenizer.decode([*ids, *tokens]).removeprefix(before), len(tokens)


def complete(server, prompt="the cat", count=6, **more):
    document = {"model": "llama", "prompt": prompt, "max_tokens": count, "temperature": 0, **more}
    return server.client.post(COMPLETE, json=document)


def chunks(answer):
    """Return the documents of a stream."""
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_models_that_generate(server):
    assert [each["id"] for each in server.client.get("/v1/models").json()["data"]] == ["llama"]
    assert server.client.get("/v1/models/llama").json()["object"] == "model"
    assert server.client.get("/v1/models/plain").status_code == 400


def test_a_completion_is_that_of_the_oracle(server):
    answer = complete(server).json()
    text, count = expected("the cat", 6)
    assert answer["choices"][0]["text"] == text
    prompt = len(byte_tokenizer().encode("the cat").ids)
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": count,
        "total_tokens": prompt + count,
    }


def test_several_prompts_and_token_ids(server):
    ids = byte_tokenizer().encode("a dog").ids
    texts = [each["text"] for each in complete(server, ["the cat", "a dog"]).json()["choices"]]
    assert texts == [expected("the cat", 6)[0], expected("a dog", 6)[0]]
    assert complete(server, ids).json()["choices"][0]["text"] == texts[1]


def test_a_stream_has_the_text_of_the_answer(server):
    whole = complete(server, count=20).json()
    parts = chunks(complete(server, count=20, stream=True, stream_options={"include_usage": True}))
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == whole["usage"]
    found = [each["choices"][0] for each in parts[:-1]]
    assert "".join(each["text"] for each in found) == whole["choices"][0]["text"]
    assert [e["finish_reason"] for e in found if e["finish_reason"]] == [
        whole["choices"][0]["finish_reason"]
    ]


def test_a_chat_is_the_completion_of_its_template(server):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "the cat"}]
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    prompt = "<s><system>be\n<user>the cat\n<assistant>"
    assert "bos_token" in TEMPLATE
    ids = byte_tokenizer().encode(prompt, add_special_tokens=False).ids
    document = {"model": "llama", "max_completion_tokens": 6, "temperature": 0}
    for content in ("the cat", parts):
        messages[1]["content"] = content
        answer = server.client.post(CHAT, json={**document, "messages": messages}).json()
        assert answer["choices"][0]["message"]["content"] == expected(ids, 6)[0]
    streamed = chunks(
        server.client.post(CHAT, json={**document, "messages": messages, "stream": True})
    )
    deltas = [each["choices"][0]["delta"] for each in streamed]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(each.get("content", "") for each in deltas) == expected(ids, 6)[0]


def test_a_stop_string_ends_the_text(server):
    text = expected("the cat", 12)[0]
    stop = text[3:5]
    choice = complete(server, count=12, stop=stop).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_seeds_repeat_and_choices_differ(server):
    more = {"temperature": 1.0, "seed": 3, "n": 3}
    first, again = (complete(server, count=12, **more).json() for _ in range(2))
    texts = [each["text"] for each in first["choices"]]
    assert texts == [each["text"] for each in again["choices"]]
    assert len(set(texts)) == 3
    assert first["usage"]["prompt_tokens"] == len(byte_tokenizer().encode("the cat").ids)


def test_users_at_once_get_what_they_get_alone(server, monkeypatch):
    joined = set()
    run = Decoder.run_ahead

    def counted(self, others, tokens):
        joined.add(1 + len(others))
        run(self, others, tokens)

    monkeypatch.setattr(Decoder, "run_ahead", counted)
    prompts = [
        f"the {word}" for word in ("cat", "dog", "cake", "mat", "köln", "日本", "ate", "on", "a")
    ]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt, 20), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.json()["choices"][0]["text"] == expected(prompt, 20)[0]
    assert 1 not in joined  # who is alone waits for nobody


BAD = {
    "no model": ({"model": None}, 400, "model", "`model` must be"),
    "another model": ({"model": "lama"}, 404, None, "no model 'lama'"),
    "one that does not": ({"model": "plain"}, 400, "model", "does not generate text"),
    "no prompt": ({"prompt": None}, 400, "prompt", "`prompt` must be"),
    "an empty list": ({"prompt": []}, 400, "prompt", "`prompt` must be"),
    "no tokens": ({"prompt": [[]]}, 400, "prompt", "at least one token"),
    "an unknown token": ({"prompt": [9999]}, 400, None, "not in the vocabulary"),
    "a surrogate": ({"prompt": "\ud800"}, 400, None, "half of a character"),
    "temperature": ({"temperature": -1}, 400, "temperature", "at least 0"),
    "text": ({"temperature": "hot"}, 400, "temperature", "must be a number"),
    "top_p": ({"top_p": 2}, 400, "top_p", "at most 1"),
    "seed": ({"seed": -1}, 400, "seed", "at least 0"),
    "tokens": ({"max_tokens": 0}, 400, "max_tokens", "from 1"),
    "the context": ({"max_tokens": 999}, 400, None, "exceed the context of 128"),
    "n": ({"n": 1.5}, 400, "n", "whole number"),
    "stop": ({"stop": [1]}, 400, "stop", "a string or a list"),
    "stream": ({"stream": "yes"}, 400, "stream", "true or false"),
    "logprobs": ({"logprobs": 5}, 400, "logprobs", "does not have the parameter"),
    "echo": ({"echo": True}, 400, "echo", "does not have the parameter"),
    "bias": ({"logit_bias": {"1": 2}}, 400, "logit_bias", "does not have"),
    "unknown": ({"temprature": 1}, 400, "temprature", "unknown parameter"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(server, name):
    changes, status, parameter, message = BAD[name]
    document = {"model": "llama", "prompt": "a", **changes}
    answer = server.client.post(COMPLETE, content=json.dumps(document))
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == parameter


@pytest.mark.parametrize(
    ("messages", "parameter"),
    [
        ("hi", "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_messages_that_are_none(server, messages, parameter):
    answer = server.client.post(CHAT, json={"model": "llama", "messages": messages})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == parameter


def test_what_asks_for_nothing_is_taken(server):
    neutral = {"logprobs": None, "echo": False, "presence_penalty": 0.0, "user": "me", "best_of": 1}
    assert complete(server, **neutral).status_code == 200


def test_tokens_are_drawn_where_nobody_says_how():
    authors = Sampling(temperature=0.3, top_k=5)
    for asked, default, temperature in (
        ({}, Sampling(), 1.0),
        ({}, authors, 0.3),
        ({"temperature": 0}, authors, 0.0),
        ({"top_p": 0.5}, authors, 0.3),
    ):
        found = read_parameters(asked, frozenset(), default, None).sampling
        assert found == replace(default, temperature=temperature, top_p=asked.get("top_p", 1.0))


def test_a_sequence_that_fails_fails_alone(server, monkeypatch):
    from narrowpass_generate import Stream

    step = Stream.__next__

    def failing(self):
        if self.prompt == (7, 7):
            raise MemoryError
        return step(self)

    monkeypatch.setattr(Stream, "__next__", failing)
    with ThreadPoolExecutor(3) as pool:
        prompts = ["the cat", [7, 7], "a dog"]
        answers = list(pool.map(lambda prompt: complete(server, prompt), prompts))
    assert [each.status_code for each in answers] == [200, 503, 200]
    assert answers[2].json()["choices"][0]["text"] == expected("a dog", 6)[0]
    assert "memory" in answers[1].json()["error"]["message"]
    streamed = complete(server, [7, 7], stream=True)
    assert "memory" in json.loads(streamed.text.removeprefix("data: "))["error"]["message"]


def test_all_sequences_end_and_tokens_are_counted(server):
    before = server.metric("narrowpass_tokens_total", model="llama", kind="generated")
    count = complete(server, count=9).json()["usage"]["completion_tokens"]
    after = server.metric("narrowpass_tokens_total", model="llama", kind="generated")
    assert after - before == count
    labels = {"model": "llama", "state": "running"}
    assert wait_until(lambda: server.metric("narrowpass_sequences", **labels) == 0)
