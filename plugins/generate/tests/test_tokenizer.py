"""The files of tokenizers and chat templates, beside transformers where it is there."""

from __future__ import annotations

import json
import sys

import pytest
from generate_kit import TEMPLATE, tokenizer_files, write_files

from narrowpass.errors import DataError, UsageError
from narrowpass_generate import Sampling, Tokenizer

MESSAGES = [
    {"role": "system", "content": "be <b>brief</b>"},
    {"role": "user", "content": "the cat?"},
]


def test_files_of_a_folder(tmp_path):
    write_files(
        tmp_path,
        generation={"eos_token_id": [7, 1], "do_sample": True, "temperature": 0.6, "top_k": 20},
    )
    for path in (tmp_path, str(tmp_path), tmp_path / "config.json"):
        tokenizer = Tokenizer.load(path)
        assert tokenizer.ends == (7, 1)
        assert tokenizer.context == 128
        assert tokenizer.sampling == Sampling(temperature=0.6, top_k=20)
        assert tokenizer.has_template
    ids = tokenizer.encode("the cat")
    assert ids[0] == 0
    assert tokenizer.encode("the cat", special=False) == ids[1:]
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.vocabulary == 1 + max(
        json.loads((tmp_path / "tokenizer.json").read_bytes())["model"]["vocab"].values()
    )


def test_only_a_tokenizer():
    tokenizer = Tokenizer({"tokenizer.json": tokenizer_files()["tokenizer.json"]})
    assert (tokenizer.ends, tokenizer.context, tokenizer.sampling) == ((), None, Sampling())
    with pytest.raises(UsageError, match="there is no chat template"):
        tokenizer.render(MESSAGES)


def test_a_panic_of_the_library_is_an_error(monkeypatch):
    """What Rust's bindings for Python raise is no Exception."""
    panic = type("PanicException", (BaseException,), {})

    def read(text):
        raise panic("a panic")

    monkeypatch.setattr("tokenizers.Tokenizer.from_str", read)
    with pytest.raises(DataError, match="the library tokenizers does not read it: a panic"):
        Tokenizer({"tokenizer.json": tokenizer_files()["tokenizer.json"]})
    monkeypatch.setattr("tokenizers.Tokenizer.from_str", lambda text: sys.exit(3))
    with pytest.raises(SystemExit):
        Tokenizer({"tokenizer.json": tokenizer_files()["tokenizer.json"]})


def test_ids_that_are_none():
    tokenizer = Tokenizer(tokenizer_files())
    for ids in ([-1], [1 << 70]):
        with pytest.raises(DataError, match="cannot decode these ids"):
            tokenizer.decode(ids)


@pytest.mark.parametrize("name", [["default"], {}, 3, None])
def test_names_of_templates_that_are_none(name):
    files = tokenizer_files(chat=None, tokenizer_config={"chat_template": [{"name": name}, 5, []]})
    assert not Tokenizer(files).has_template


def test_prompts_are_neither_cut_off_nor_filled_up():
    files = tokenizer_files()
    settings = json.loads(files["tokenizer.json"])
    settings["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    settings["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    }
    cut = Tokenizer({**files, "tokenizer.json": json.dumps(settings).encode()})
    text = "the cat sat on the mat"
    assert cut.encode(text) == Tokenizer(files).encode(text)


TEMPLATES = [
    TEMPLATE,
    (
        "{%- for m in messages %}\n  {%- if loop.first and m['role'] != 'system' %}\n{{ 'x' }}\n"
        "  {%- endif %}\n{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    ),
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{{ messages | tojson }}{{ tools is none }}"
    ),
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_rendered_as_by_transformers(template, tmp_path):
    transformers = pytest.importorskip("transformers")
    write_files(tmp_path, chat_template=template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    expected = theirs.apply_chat_template(
        MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    ours = Tokenizer.load(tmp_path)
    assert ours.render(MESSAGES) == expected
    assert ours.encode_chat(MESSAGES) == theirs.encode(expected, add_special_tokens=False)


def test_templates_by_hand(tmp_path):
    tokenizer = Tokenizer(tokenizer_files())
    assert tokenizer.render(MESSAGES) == ("<s><system>be <b>brief</b>\n<user>the cat?\n<assistant>")
    assert tokenizer.render(MESSAGES[1:], answer=False) == "<s><user>the cat?\n"
    assert tokenizer.encode_chat(MESSAGES).count(0) == 1  # the template has <s>, once
    today = Tokenizer(tokenizer_files(chat_template="{{ strftime_now('%Y') }}"))
    assert int(today.render(MESSAGES)) >= 2024


def test_templates_in_tokenizer_config():
    for value in (
        "{{ 1 }}",
        [{"name": "tool_use", "template": "{{ 2 }}"}, {"name": "default", "template": "{{ 1 }}"}],
    ):
        files = tokenizer_files(chat_template=None, tokenizer_config={"chat_template": value})
        assert Tokenizer(files).render(MESSAGES) == "1"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system message') }}", "fails: no system message"),
        ("{% for %}", "does not parse"),
        ("{{ messages.append(1) }}", "fails"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        ("{{ messages.nothing.at_all }}", "fails"),
        ("{{ 1 // 0 }}", "fails"),
        ("{{ messages[0].content + 1 }}", "fails"),
        ("{{ range(10 ** 9) | list }}", "fails"),
        ("{% include '/etc/passwd' %}", "fails"),
    ],
)
def test_templates_that_fail(template, message):
    with pytest.raises(DataError, match=message):
        Tokenizer(tokenizer_files(chat_template=template)).render(MESSAGES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.json": "{"}, "tokenizers does not read it"),
        ({"tokenizer.json": b"\xff"}, "tokenizers does not read it"),
        ({"tokenizer.json": "[]"}, "tokenizers does not read it"),
        ({"tokenizer_config": "nothing"}, r"tokenizer_config.json: is no JSON"),
        ({"config": "[1]"}, "config.json: must be a JSON object"),
        ({"generation": {"do_sample": True, "temperature": -2}}, "generation_config.json: `temp"),
        ({"chat_template": b"\xff\xfe"}, "is not UTF-8"),
    ],
)
def test_damaged_files(changes, message):
    with pytest.raises(DataError, match=message):
        Tokenizer(tokenizer_files(**changes))


def test_strange_values_are_no_values():
    files = tokenizer_files(
        tokenizer_config={"eos_token": {"content": 5}, "bos_token": [], "chat_template": 3},
        generation={"eos_token_id": ["x", 3, True]},
        config={"max_position_embeddings": "many", "text_config": 5},
        chat_template=None,
    )
    tokenizer = Tokenizer(files)
    assert (tokenizer.ends, tokenizer.context, tokenizer.has_template) == ((3,), None, False)


def test_wrong_calls(tmp_path):
    with pytest.raises(UsageError, match=r"there is no tokenizer\.json; copy the files"):
        Tokenizer.load(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        Tokenizer.load(tmp_path / "nothing")
    tokenizer = Tokenizer(tokenizer_files())
    with pytest.raises(UsageError, match="must be a str"):
        tokenizer.encode(5)
    with pytest.raises(UsageError, match="not valid Unicode"):
        tokenizer.encode("a\ud800")
    for message in ({"role": "user"}, {}, {"content": "x"}):
        with pytest.raises(UsageError, match="a role and a content"):
            tokenizer.render([message])
