"""A model's own tokenizer, and what else its files say about texts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import tokenizers

from narrowpass.errors import DataError, UsageError
from narrowpass_generate.sampling import Sampling
from narrowpass_generate.template import ChatTemplate
from narrowpass_ir.arguments import kind_of, path_of

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
"""What is read, all but the first where it is there."""


class Tokenizer:
    """Encodes text as a model's token ids, and decodes these: the library tokenizers.

    Args:
        files: bytes by name; see `FILES`.
        where: the folder, for messages.

    Attributes:
        vocabulary: the largest token id, plus 1.
        ends: ids that end a text: those of ``generation_config.json`` and ``config.json``, and the
            ``eos_token`` of ``tokenizer_config.json``.
        context: positions that the model has, by ``max_position_embeddings`` of ``config.json``;
            None where it does not say.
        sampling: how the model's authors sample, by ``generation_config.json``; greedy where it
            does not say.

    Raises:
        UsageError: ``tokenizer.json`` is not among the files.
        DataError: a file that cannot be read as what it is.
    """

    def __init__(self, files: Mapping[str, bytes], where: str = "") -> None:
        self._where = where
        if "tokenizer.json" not in files:
            place = where or "the model's files"
            raise UsageError(
                f"{place}: there is no tokenizer.json; copy the files of the model's tokenizer "
                "there, or name their folder"
            )
        self._tokenizer = self._parsed(files["tokenizer.json"])
        # What a training run needed: a prompt is neither cut off nor filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary = max(vocabulary.values(), default=-1) + 1
        settings = self._json(files, "tokenizer_config.json")
        generation = self._json(files, "generation_config.json")
        config = self._json(files, "config.json")
        config = {**config, **_mapping(config.get("text_config"))}
        named = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _text_of(settings.get(name))) is not None
        }
        ends = [*_ids_of(generation.get("eos_token_id")), *_ids_of(config.get("eos_token_id"))]
        if named.get("eos_token") in vocabulary:
            ends.append(vocabulary[named["eos_token"]])
        self.ends = tuple(dict.fromkeys(ends))
        context = config.get("max_position_embeddings", config.get("n_positions"))
        self.context = context if isinstance(context, int) and context > 0 else None
        self.sampling = self._sampling(generation)
        self._template = self._chat_template(files, settings, named)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read the files of a folder: a bundle, or where a model is from.

        Raises:
            UsageError: there is no such folder, or no ``tokenizer.json`` in it.
            DataError: a file that cannot be read as what it is.
        """
        path = Path(path_of(folder, "the tokenizer's folder"))
        if path.is_file():
            path = path.parent
        if not path.is_dir():
            raise UsageError(f"{path}: no such folder; pass the one that tokenizer.json is in")
        files = {}
        for name in FILES:
            try:
                files[name] = (path / name).read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise UsageError(f"{path / name}: cannot be read: {error.strerror}") from error
        return cls(files, str(path))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: any.
            special: whether tokens that begin or end a text are added, as the tokenizer says.

        Raises:
            UsageError: it is no text, or has half of a character.
        """
        if not isinstance(text, str):
            raise UsageError(f"text to encode must be a str, not {kind_of(text)}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the text is not valid Unicode: {error}; pass UTF-8") from error
        with _reported(f"{self._where or 'the tokenizer'}: tokenizer.json cannot encode this text"):
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens; unknown ids have none.

        Raises:
            DataError: an id is negative or has more than 32 bits, or the tokenizer's files have a
                decoder that fails.
        """
        with _reported(f"{self._where or 'the tokenizer'}: tokenizer.json cannot decode these ids"):
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""
        return self._template is not None

    def render(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Return a conversation as text, by the model's chat template.

        Args:
            messages: each with ``role`` (``system``, ``user``, ``assistant``) and ``content``.
            answer: whether the beginning of the assistant's next message follows.

        Raises:
            UsageError: there is no chat template, or a message is none.
            DataError: the template refuses the messages, or fails.
        """
        if self._template is None:
            raise UsageError(
                f"{self._where or 'the model'}: there is no chat template, neither "
                "chat_template.jinja nor in tokenizer_config.json: the model was not trained for "
                "chat; use `narrowpass generate`, or add the file"
            )
        for message in messages:
            if not {"role", "content"} <= dict(message).keys():
                raise UsageError(f"a message has a role and a content, not {message!r}")
        return self._template.render(messages, answer=answer)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the token ids of a conversation, up to the beginning of the next answer.

        Raises:
            UsageError: as `render`.
            DataError: as `render`.
        """
        return self.encode(self.render(messages), special=False)  # the template has them

    def _parsed(self, data: bytes) -> tokenizers.Tokenizer:
        with _reported(f"{self._path('tokenizer.json')}: the library tokenizers does not read it"):
            return tokenizers.Tokenizer.from_str(data.decode())

    def _path(self, name: str) -> str:
        return str(Path(self._where) / name)

    def _json(self, files: Mapping[str, bytes], name: str) -> Mapping[str, Any]:
        if name not in files:
            return {}
        try:
            found = json.loads(files[name])
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self._path(name)}: is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise DataError(f"{self._path(name)}: must be a JSON object, not {kind_of(found)}")
        return found

    def _sampling(self, settings: Mapping[str, Any]) -> Sampling:
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        given = {name: settings[name] for name in names if settings.get(name) is not None}
        if not settings.get("do_sample"):
            given = {name: given[name] for name in ("repetition_penalty",) if name in given}
        else:
            given = {"temperature": 1.0, **given}
        try:
            return Sampling(**given)
        except UsageError as error:
            raise DataError(f"{self._path('generation_config.json')}: {error}") from error

    def _chat_template(
        self, files: Mapping[str, bytes], settings: Mapping[str, Any], tokens: Mapping[str, str]
    ) -> ChatTemplate | None:
        name = "chat_template.jinja"
        if name in files:
            try:
                return ChatTemplate(files[name].decode(), tokens, self._path(name))
            except UnicodeDecodeError as error:
                raise DataError(f"{self._path(name)}: is not UTF-8: {error}") from error
        found = settings.get("chat_template")
        if isinstance(found, list):  # several, with names
            default = [each for each in map(_mapping, found) if each.get("name") == "default"]
            found = default[-1].get("template") if default else None
        if not isinstance(found, str):
            return None
        return ChatTemplate(found, tokens, self._path("tokenizer_config.json"))


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Report what the library raises: nothing narrower than Exception, and where Rust panics less.

    Raises:
        DataError: it raised something.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{what}: {error}") from error


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text_of(value: object) -> str | None:
    """Return a token's text, which files have as such, or in an object with other settings."""
    text = _mapping(value).get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ids_of(value: object) -> list[int]:
    """Return one id or several; what is none is left out."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]
