"""The tokenizer of a GGUF file as ``tokenizer.json`` of the library tokenizers.

Two kinds are written: BPE over bytes (``gpt2``), whose merges the file has; and SentencePiece
(``llama``), whose pieces have scores: of two neighbours whose piece has the best score, the first
are merged, which is BPE with merges in the order of scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from narrowpass_gguf.metadata import Metadata
from narrowpass_ir.errors import ModelError

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
"""Values of ``tokenizer.ggml.token_type``."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPACE = "\u2581"


@dataclass(frozen=True)
class Special:
    """Tokens with a meaning, by their index; None for those that there are not.

    Attributes:
        tokens: all tokens.
        begin: begins a text.
        end: ends a text.
        ends: all that end a text or a turn of a chat.
        unknown: stands for what has no token.
        padding: fills rows up.
        add_begin: whether texts begin with `begin`.
    """

    tokens: Sequence[str]
    begin: int | None
    end: int | None
    ends: tuple[int, ...]
    unknown: int | None
    padding: int | None
    add_begin: bool

    @classmethod
    def of(cls, metadata: Metadata) -> Special:
        """Read them from a file."""
        tokens = metadata.items("tokenizer.ggml.tokens", str, [])

        def index(name: str) -> int | None:
            found = metadata.get(f"tokenizer.ggml.{name}_token_id", int, -1)
            return found if 0 <= found < len(tokens) else None

        begin, end = index("bos"), index("eos")
        found = [i for i in (end, index("eot"), index("eom")) if i is not None]
        sentence_piece = metadata.get("tokenizer.ggml.model", str, "") == "llama"
        llama3 = metadata.get("tokenizer.ggml.pre", str, "") in ("llama-bpe", "llama3")
        add = metadata.get("tokenizer.ggml.add_bos_token", bool, sentence_piece or llama3)
        ends = tuple(dict.fromkeys(found))
        return cls(
            tokens, begin, end, ends, index("unknown"), index("padding"), add and begin is not None
        )


def tokenizer_json(metadata: Metadata, special: Special) -> dict[str, Any] | str:
    """Return the content of ``tokenizer.json``, or why there is none.

    Raises:
        ModelError: lists that do not fit each other.
    """
    if not special.tokens:
        return "the file has no tokenizer"
    kind = metadata.get("tokenizer.ggml.model", str, "")
    if kind == "gpt2":
        parts: dict[str, Any] | str = _bytes(metadata, special)
    elif kind == "llama":
        parts = _pieces(metadata, special)
    else:
        return f"its kind {kind!r} is not supported; take the tokenizer of the original model"
    if isinstance(parts, str):
        return parts
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(metadata, special),
        "normalizer": None,
        "pre_tokenizer": None,
        **parts,
        "post_processor": _begin(special) or parts.get("post_processor"),
    }


def _types(metadata: Metadata, special: Special) -> list[int]:
    types = metadata.items("tokenizer.ggml.token_type", int, [])
    if types and len(types) != len(special.tokens):
        raise ModelError(f"has {len(special.tokens)} tokens, and types of {len(types)}")
    return types or [_NORMAL] * len(special.tokens)


def _added(metadata: Metadata, special: Special) -> list[dict[str, Any]]:
    """Return the tokens that are found in a text before it is split."""
    return [
        {
            "id": index,
            "content": special.tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER,
        }
        for index, kind in enumerate(_types(metadata, special))
        if kind in (_CONTROL, _USER) or (kind == _UNKNOWN and special.tokens[index])
    ]


def _begin(special: Special) -> dict[str, Any] | None:
    """Return what puts the first token before texts."""
    if not special.add_begin or special.begin is None:
        return None
    token = special.tokens[special.begin]
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    second = {"SpecialToken": {"id": token, "type_id": 1}}
    rows = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [first, rows[0]],
        "pair": [first, rows[0], second, rows[1]],
        "special_tokens": {token: {"id": token, "ids": [special.begin], "tokens": [token]}},
    }


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, token in enumerate(tokens):
        found.setdefault(token, index)
    return found


def _bytes(metadata: Metadata, special: Special) -> dict[str, Any] | str:
    """Return BPE over bytes."""
    name = metadata.get("tokenizer.ggml.pre", str, "default")
    split = _splits(name)
    if split is None:
        known = ", ".join(sorted(_SPLITS))
        return (
            f"how {name!r} splits a text is not known (known are {known}); take the tokenizer of "
            "the original model"
        )
    merges = metadata.items("tokenizer.ggml.merges", str)
    pairs = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise ModelError("has a merge that is no pair of tokens")
    vocabulary = _vocabulary(special.tokens)
    for left, right in pairs:
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelError(f"merges {left!r} and {right!r}, which are not among its tokens")
    model = _model(vocabulary, pairs, ignore_merges=name in _WHOLE_WORDS)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    first = metadata.get("tokenizer.ggml.add_space_prefix", bool, False)
    return {
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                *split,
                {**level, "add_prefix_space": first, "use_regex": name in _BY_BYTE_LEVEL},
            ],
        },
        "post_processor": {**level, "trim_offsets": False, "use_regex": True},
        "decoder": {**level, "add_prefix_space": True, "use_regex": True},
        "model": model,
    }


_DIGITS = {"type": "Digits", "individual_digits": True}
_SPLITS: Mapping[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "gpt2": None,
    "smollm": None,
    "llama-bpe": _WORDS % "{1,3}",
    "llama3": _WORDS % "{1,3}",
    "qwen2": _WORDS % "",
}
_BY_BYTE_LEVEL = {"default", "gpt-2", "gpt2", "smollm"}
"""Texts are split by the expression of GPT-2, which tokenizers has built in."""
_WHOLE_WORDS = {"llama-bpe", "llama3"}
"""A word that is a token is not merged from its bytes."""


def _splits(name: str) -> list[dict[str, Any]] | None:
    if name not in _SPLITS:
        return None
    expression = _SPLITS[name]
    if expression is None:
        return [_DIGITS] if name == "smollm" else []
    pattern = {"Regex": expression}
    return [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}]


def _model(
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    *,
    ignore_merges: bool = False,
    unknown: str | None = None,
    fallback: bool = False,
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fallback,
        "byte_fallback": fallback,
        "ignore_merges": ignore_merges,
        "vocab": dict(vocabulary),
        "merges": [list(pair) for pair in merges],
    }


def _pieces(metadata: Metadata, special: Special) -> dict[str, Any]:
    """Return SentencePiece's BPE."""
    scores = metadata.items("tokenizer.ggml.scores", float)
    if len(scores) != len(special.tokens):
        raise ModelError(f"has {len(special.tokens)} tokens, and scores of {len(scores)}")
    vocabulary = _vocabulary(special.tokens)
    merges = _merges(vocabulary, scores, _types(metadata, special))
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", bool, True)
    unknown = None if special.unknown is None else special.tokens[special.unknown]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, space]},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(vocabulary, merges, unknown=unknown, fallback=True),
    }


def _merges(
    vocabulary: Mapping[str, int], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """Return all pairs of pieces that are a piece, those with the best scores first."""
    found = []
    for piece, index in vocabulary.items():
        if types[index] not in (_NORMAL, _USER):
            continue
        for place in range(1, len(piece)):
            left, right = piece[:place], piece[place:]
            if left in vocabulary and right in vocabulary:
                order = -scores[index], vocabulary[left], vocabulary[right]
                found.append((order, (left, right)))
    found.sort()
    return [pair for _, pair in found]
