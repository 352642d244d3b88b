"""Text as it comes: whole characters, stop strings that straddle tokens."""

from __future__ import annotations

import pytest
import tokenizers
from generate_kit import script_program, tokenizer_files
from tokenizers import decoders, models, pre_tokenizers

from narrowpass.errors import UsageError
from narrowpass_generate import Tokenizer, generate, stream
from narrowpass_generate.streams import Detokenizer, StopStrings

TEXT = "the dog: grüße 🎉🎊日本語 and ẞ"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_files())


def pieces_of(tokenizer, text, **options) -> tuple[list[str], object]:
    """Return the texts of the pieces of a model that says a text, and the result."""
    script = tokenizer.encode(text, special=False)
    with script_program(script, tokenizer.vocabulary) as program:
        pieces = stream(program, [0], tokens=len(script), tokenizer=tokenizer, **options)
        return [piece.text for piece in pieces], pieces.result


def test_characters_are_whole(tokenizer):
    texts, result = pieces_of(tokenizer, TEXT)
    assert "".join(texts) == result.text == TEXT
    assert len(texts) > len(TEXT) / 2
    assert "" in texts  # characters of several tokens come with the last of these
    for text in texts:
        assert "\N{REPLACEMENT CHARACTER}" not in text


def test_half_a_character_at_the_end(tokenizer):
    script = tokenizer.encode("ab☃", special=False)
    with script_program(script, tokenizer.vocabulary) as program:
        result = generate(program, [0], tokens=len(script) - 1, tokenizer=tokenizer)
    assert result.text == "ab\N{REPLACEMENT CHARACTER}"
    assert result.finish_reason == "length"


def test_the_first_token_keeps_its_space():
    """Decoders of SentencePiece's kind drop the space of the first token of a text."""
    inner = tokenizers.Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2}, unk_token="c"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    tokenizer = Tokenizer({"tokenizer.json": inner.to_str().encode()})
    assert tokenizer.decode([0, 1]) == "a b"
    text = Detokenizer(tokenizer, [0])
    assert [text.add(token) for token in (1, 2, 0)] == [" b", "c", " a"]
    assert text.flush() == ""


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (["grü"], "the dog: "),
        ([": gr", "dog"], "the "),
        (["🎊"], "the dog: grüße 🎉"),
        (["not there"], TEXT),
        (["and ẞẞ"], TEXT),  # begun at the end, and never completed
        (["ẞ"], TEXT[:-1]),
    ],
)
def test_stop_strings(tokenizer, stop, expected):
    texts, result = pieces_of(tokenizer, TEXT, stop=stop)
    assert "".join(texts) == result.text == expected
    assert result.finish_reason == ("length" if expected == TEXT else "stop")


def test_an_interrupt_returns_what_was_held_back(tokenizer):
    script = tokenizer.encode("abc", special=False)
    with script_program(script, tokenizer.vocabulary) as program:
        pieces = stream(program, [0], tokens=3, tokenizer=tokenizer, stop=["abcd"])
        assert [next(pieces).text, next(pieces).text] == ["", ""]
        assert pieces.interrupt() == "ab"
    assert pieces.result.text == "ab"


def test_stop_strings_that_begin_within_themselves():
    stops = StopStrings(["aab"])
    assert [stops.add(c) for c in "xaaac"] == ["x", "", "", "a", "aac"]
    stops = StopStrings(["aab"])
    assert "".join(stops.add(c) for c in "xaaab") == "xa"
    assert stops.found


def test_end_tokens_have_no_text(tokenizer):
    script = [*tokenizer.encode("ab", special=False), 1, 70]
    with script_program(script, tokenizer.vocabulary) as program:
        result = generate(program, [0], tokens=4, tokenizer=tokenizer)
    assert (result.text, result.finish_reason) == ("ab", "stop")
    assert result.tokens[-1] == 1


def test_prompts_of_text(tokenizer):
    prompt = tokenizer.encode("the cat")
    assert prompt[0] == 0  # <s>
    script = tokenizer.encode(" sat", special=False)
    with script_program(script, tokenizer.vocabulary, len(prompt)) as program:
        result = generate(program, "the cat", tokens=len(script), tokenizer=tokenizer)
        assert (result.text, result.prompt_tokens) == (" sat", len(prompt))
        with pytest.raises(UsageError, match="a prompt of text needs a tokenizer"):
            generate(program, "the cat")
        with pytest.raises(UsageError, match="stop strings need a tokenizer"):
            generate(program, [0], stop=["a"])
        with pytest.raises(UsageError, match="a stop string is empty"):
            generate(program, [0], stop=[""], tokenizer=tokenizer)
        with pytest.raises(UsageError, match=r"pass \['ab'\]"):
            generate(program, [0], stop="ab", tokenizer=tokenizer)
