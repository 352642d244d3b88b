"""What a caller may get wrong, and models that are no decoders."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from generate_kit import table_program, tokenizer_files
from onnx import parser

import narrowpass
from narrowpass.errors import DataError, ModelError, UsageError
from narrowpass_generate import Decoder, Tokenizer, generate, generate_all
from narrowpass_generate.template import ChatTemplate


@pytest.fixture(scope="module")
def program():
    with table_program(np.eye(8)) as built:
        yield built


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [
        ([], UsageError, "the prompt is empty"),
        (np.zeros((1, 0), int), UsageError, "the prompt is empty"),
        ([8], DataError, "token 8 is not in the vocabulary of 8"),
        ([-1], DataError, "token -1 is not"),
        ([2**70], UsageError, "must be whole numbers"),
        ([1.5], UsageError, "must be whole numbers, not float64"),
        ([[1, 2], [3]], UsageError, "one sequence"),
        ([[1, 2], [3, 4]], UsageError, "2 axes"),
        (5, UsageError, "one sequence"),
        (b"text", UsageError, "encode text with Tokenizer"),
        (None, UsageError, "one sequence"),
        (["a"], UsageError, "must be whole numbers"),
    ],
)
def test_prompts(program, prompt, kind, message):
    with pytest.raises(kind, match=message):
        generate(program, prompt)


def test_prompts_of_numpy(program):
    for prompt in (np.array([1, 2], np.int32), np.array([[1, 2]]), (1, 2), range(1, 3)):
        assert generate(program, prompt, tokens=2).tokens == (2, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "`tokens` must be at least 1"),
        ({"tokens": 7, "context": 8}, r"2 tokens of the prompt and 7 more exceed .* at most 6"),
        ({"context": 2}, "the prompt has 2 tokens, which leaves no room in the context of 2"),
        ({"context": -4}, "`context`"),
        ({"sampling": {"temperature": 1}}, "`sampling` cannot be a Python dict"),
        ({"tokenizer": "folder"}, "`tokenizer` cannot be"),
        ({"ends": [-1]}, "an id of `ends`"),
        ({"drafted": 0}, "`drafted`"),
    ],
)
def test_options(program, options, message):
    with pytest.raises(UsageError, match=message):
        generate(program, [1, 2], **options)


def test_several_prompts_are_checked_before_the_first_runs(program):
    with Decoder(program) as decoder:
        with pytest.raises(DataError, match="token 9"):
            generate_all(decoder, [[1], [9]])
        assert decoder.ids == ()
    with pytest.raises(UsageError, match=r"pass \[prompt\]"):
        generate_all(program, "text")
    with pytest.raises(UsageError, match="`n`"):
        generate_all(program, [[1]], n=0)


def test_programs(program):
    with pytest.raises(UsageError, match=r"needs a program, not a Python str"):
        generate("model.narrow", [1])
    tokenizer = Tokenizer(tokenizer_files())
    with pytest.raises(DataError, match=r"tokens and the model 8 logits: it is not the model's"):
        generate(program, [1], tokenizer=tokenizer)
    stateless = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[1, 2] x) => (float[1, 2] y) '
        "{ y = Neg(x) }"
    )
    with (
        narrowpass.load(narrowpass.build(stateless, ""), "reference") as other,
        pytest.raises(UsageError, match="the bundle has no state"),
    ):
        generate(other, [1])


DECODER = """<ir_version: 9, opset_import: ["": 18]>
g (int64[1, S] input_ids, float[1, P, 1] past) => (float[1, S, 4] logits, float[1, T, 1] present)
<int64[1] two = {2}, float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
    cast = Cast <to = 1> (input_ids)
    new = Unsqueeze(cast, two)
    present = Concat <axis = 1> (past, new)
    logits = Gather(table, input_ids)
}"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids,": "input_ids, float[1] speed,"}, "'speed' (float), which generation cannot"),
        ({"input_ids,": "input_ids, int64[1, S] types,"}, "'types' (int64), which generation"),
        ({"[1, S] input_ids": "[2, S] input_ids"}, "takes 2 sequences at once"),
        ({"[1, S] input_ids": "[1, 7] input_ids"}, "takes 7 tokens in each run"),
        (
            {
                "int64[1, S] input_ids": "int64[1, S] a, int64[1, S] b",
                "(input_ids)": "(a)",
                "(table, input_ids)": "(table, b)",
            },
            "one input of token ids",
        ),
        (
            {
                "float[1, S, 4] logits": "float[1, S, 4] y, float[1, S, 4] z",
                "logits = Gather(table, input_ids)": "y = Gather(table, input_ids) z = Neg(y)",
            },
            "one output of logits",
        ),
    ],
)
def test_models_that_are_no_decoders(changes, message):
    text = DECODER
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    error = pytest.raises(ModelError, match=re.escape(message))
    bundle = narrowpass.build(parser.parse_model(text), "")
    with narrowpass.load(bundle, "reference") as other, error:
        generate(other, [1])


def test_closed_decoders(program):
    decoder = Decoder(program)
    decoder.close()
    with pytest.raises(UsageError, match="closed"):
        decoder.advance([1])
    with Decoder(program) as other, pytest.raises(UsageError, match="3 ids cannot be dropped"):
        other.rewind(3)


def test_a_vocabulary_without_an_unknown_token():
    """The library's error, which has no class of its own, becomes one that names the file."""
    words = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}
    tokenizer = Tokenizer({"tokenizer.json": json.dumps(words).encode()}, "folder")
    with pytest.raises(DataError, match=r"tokenizer\.json cannot encode this text"):
        tokenizer.encode("b")


SLOW = {
    "loops": "{% set r = range(150) %}{% for a in r %}{% for b in r %}{% for c in r %}"
    + 3 * "{% endfor %}",
    "texts": "{% set r = range(1500) %}{% for a in r %}{% for b in r %}x{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(18) }}",
    "recursion": "{% set r = range(40) %}"
    "{% for a in r recursive %}{{ loop(r) if loop.depth < 4 }}{% endfor %}",
    "filters": "{% set r = range(9999) %}{% for a in r if r|sum %}{% endfor %}",
}
"""Templates that Jinja renders in about a second."""


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW)
def test_a_chat_template_that_takes_too_long(source, monkeypatch):
    monkeypatch.setattr("narrowpass_generate.template.SECONDS", 0.01)
    with pytest.raises(DataError, match=r"folder: .* fails: it does not end within 0.01 s"):
        ChatTemplate(source, {}, "folder").render([])


def doubled(text):
    """Return a template that doubles a text to 134 million characters."""
    begin = "{% set n = namespace(x='a') %}{% for a in range(27) %}{% set n.x = "
    return f"{begin}{text} %}}{{% endfor %}}"


LONG = {
    "joined": doubled("n.x ~ n.x"),
    "added": doubled("n.x + n.x"),
    "filtered": doubled("[n.x, n.x]|join"),
    "called": doubled("n.x.replace('a', 'aa')"),
    "repeated": "{{ 'a' * 70000000 }}",
    "list": "{{ [1] * 70000000 }}",
    "centered": "{{ 'a'|center(70000000) }}",
    "width": "{{ '%70000000d' % 1 }}",
    "width of an argument": "{{ '%*d' % (70000000, 1) }}",
    "precision": "{{ '%.70000000f' % 1 }}",
    "format": "{{ '{:>70000000}'.format(1) }}",
    "format of an argument": "{{ '{:>{w}}'.format(1, w=70000000) }}",
    "method": "{{ 'a'.rjust(70000000) }}",
    "batch": "{{ [1]|batch(70000000, 0)|list }}",
    "json": "{% for a in range(99) %}{% set x = ('a' * 10 ** 6)|tojson %}{% endfor %}",
    "written": "{% set x = 'a' * 10 ** 6 %}{% for a in range(99) %}{{ x }}{% endfor %}",
}


@pytest.mark.parametrize("source", LONG.values(), ids=LONG)
def test_a_chat_template_whose_texts_are_too_long(source):
    with pytest.raises(DataError, match="its texts are longer than 67,108,864 characters"):
        ChatTemplate(source, {}, "folder").render([])


def test_a_chat_template_whose_numbers_are_too_large():
    with pytest.raises(DataError, match="of integers of that size"):
        ChatTemplate("{{ 10 ** 20000 }}", {}, "folder").render([])


def test_large_numbers_are_no_widths():
    source = "{{ n }} {{ n|string }} {{ '%d' % n }} {{ '{:d}'.format(n) }} {{ namespace(n=n).n }}"
    source = "{% set n = 1700000000 %}" + source + " {{ 'of 20261126010203 %s' % n }}"
    text = ChatTemplate(source, {}, "folder").render([])
    assert text == " ".join(["1700000000"] * 5) + " of 20261126010203 1700000000"


def test_a_chat_template_has_no_texts_of_any_length():
    with pytest.raises(DataError, match="'lipsum' is undefined"):
        ChatTemplate("{{ lipsum(n=1) }}", {}, "folder").render([])


def test_a_chat_template_that_needs_all_memory():
    template = ChatTemplate('{{ "a" * 10 ** 18 }}', {}, "folder")
    with pytest.raises(DataError, match="the chat template fails"):
        template.render([])
