"""The prompts of a request as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from narrowpass_ir.arguments import kind_of
from narrowpass_serve.errors import RequestError

if TYPE_CHECKING:
    from narrowpass_generate import Tokenizer

MOST_PROMPTS = 2048
"""Prompts of one request at most."""


def read_prompts(document: Mapping[str, Any], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the prompts of a completion.

    Args:
        document: whose ``prompt`` is text, token ids, or a list of one or the other.
        tokenizer: of the model.

    Raises:
        RequestError: it is nothing of these, or empty.
        NarrowpassError: as `Tokenizer.encode`.
    """
    prompt = document.get("prompt")
    if isinstance(prompt, str) or _is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt or len(prompt) > MOST_PROMPTS:
        raise RequestError(
            "`prompt` must be a text, a list of token ids, or a list of at most "
            f"{MOST_PROMPTS} of one or the other",
            parameter="prompt",
        )
    return [_prompt(each, tokenizer) for each in prompt]


def read_messages(document: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    """Return the prompt of a chat: its messages by the model's chat template.

    Raises:
        RequestError: messages that are none, or have parts that are no text.
        NarrowpassError: as `Tokenizer.encode_chat`.
    """
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(
            "`messages` must be a list of objects with `role` and `content`", parameter="messages"
        )
    return tokenizer.encode_chat([_message(each, i) for i, each in enumerate(messages)])


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _prompt(value: Any, tokenizer: Tokenizer) -> list[int]:
    ids = tokenizer.encode(value) if isinstance(value, str) else value
    if not _is_ids(ids):
        raise RequestError(
            "a prompt is empty, or neither text nor token ids; pass at least one token",
            parameter="prompt",
        )
    found: list[int] = ids
    return found


def _message(value: Any, index: int) -> dict[str, str]:
    where = f"messages[{index}]"
    if not isinstance(value, dict):
        raise RequestError(f"`{where}` must be an object, not {kind_of(value)}", parameter=where)
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"`{where}.role` must be text, such as 'user'", parameter=f"{where}.role"
        )
    more = sorted(
        name
        for name, given in value.items()
        if name not in ("role", "content", "name") and given not in (None, [])
    )
    if more:
        raise RequestError(
            f"`{where}` has {more[0]!r}, which this server does not take; leave it out",
            parameter=f"{where}.{more[0]}",
        )
    if isinstance(content, list):
        content = "".join(_part(each, f"{where}.content[{i}]") for i, each in enumerate(content))
    if not isinstance(content, str):
        raise RequestError(
            f"`{where}.content` must be text, or a list of parts of type 'text'",
            parameter=f"{where}.content",
        )
    return {"role": role, "content": content}


def _part(value: Any, where: str) -> str:
    text = value.get("text") if isinstance(value, dict) and value.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(f"`{where}` must be of type 'text', with a text", parameter=where)
    return text
