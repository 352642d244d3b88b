"""Requests of completions: parameters, read from JSON and checked, and prompts as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from narrowpass.errors import UsageError
from narrowpass_generate import Sampling
from narrowpass_ir.arguments import kind_of
from narrowpass_serve.errors import RequestError

if TYPE_CHECKING:
    from narrowpass_generate import Tokenizer


MOST_CHOICES = 128
"""Choices of one request at most, as in OpenAI's interface."""

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""What changes no text: whom a request is from, and how it is kept."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
"""Parameters that the server does not have, with the values that ask for nothing."""


@dataclass(frozen=True)
class Parameters:
    """How a request's text is generated.

    Attributes:
        sampling: how tokens are chosen.
        tokens: at most so many for each choice; None for as many as the context has room for.
        stop: strings that end the text.
        choices: of each prompt.
        stream: whether text is sent as it comes.
        usage: whether a stream ends with the numbers of tokens.
    """

    sampling: Sampling
    tokens: int | None
    stop: tuple[str, ...]
    choices: int
    stream: bool
    usage: bool

    def of_choice(self, index: int) -> Sampling:
        """Return the sampling of one choice: a seed stands for that of the first one."""
        seed = self.sampling.seed
        return self.sampling if seed is None else replace(self.sampling, seed=seed + index)


def read_parameters(
    document: Mapping[str, Any], own: frozenset[str], default: Sampling, tokens: int | None
) -> Parameters:
    """Read the parameters of a request.

    Args:
        document: the body.
        own: names of parameters that the endpoint itself reads.
        default: how the model's authors sample.
        tokens: where the request does not say.

    Raises:
        RequestError: a parameter that is unknown, out of range, or not to be had; with its name.
    """
    values = {name: value for name, value in document.items() if value is not None}
    known = {*_SAMPLING, *_IGNORED, *own, *_READ}
    for name, value in values.items():
        if name in known:
            continue
        if name not in _NEUTRAL:
            raise RequestError(f"unknown parameter {name[:100]!r}; leave it out", parameter=name)
        if not any(_same(value, each) for each in _NEUTRAL[name]):
            raise RequestError(
                f"this server does not have the parameter {name!r}; leave it out", parameter=name
            )
    limits = [n for n in ("max_completion_tokens", "max_tokens") if n in values]
    for name in limits:
        tokens = _count(values, name, 1 << 31)
    options = _of(values, "stream_options", dict, "an object", {})
    return Parameters(
        _sampling(values, default),
        tokens,
        _stop(values),
        _count(values, "n", MOST_CHOICES) if "n" in values else 1,
        _of(values, "stream", bool, "true or false", False),
        _of(options, "include_usage", bool, "true or false", False),
    )


_READ = ("max_completion_tokens", "max_tokens", "model", "n", "stop", "stream", "stream_options")


def _same(one: object, other: object) -> bool:
    """Return whether JSON values are equal; false is not 0."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _sampling(values: Mapping[str, Any], default: Sampling) -> Sampling:
    # OpenAI's default, where neither the request nor the model's authors say.
    base = default if default.temperature else replace(default, temperature=1.0)
    for name in _SAMPLING:
        if name in values:
            try:
                base = replace(base, **{name: values[name]})
            except UsageError as error:
                raise RequestError(str(error), parameter=name) from error
    return base


def _stop(values: Mapping[str, Any]) -> tuple[str, ...]:
    stop = values.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise RequestError("`stop` must be a string or a list of strings", parameter="stop")
    return tuple(stops)


def _count(values: Mapping[str, Any], name: str, most: int) -> int:
    value = values[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise RequestError(
            f"`{name}` must be a whole number from 1 to {most}, not {value!r:.100}", parameter=name
        )
    return value


def _of(
    values: Mapping[str, Any],
    name: str,
    kind: type | tuple[type, ...],
    what: str,
    default: Any,
) -> Any:
    value = values.get(name, default)
    if not isinstance(value, kind):
        raise RequestError(f"`{name}` must be {what}, not {kind_of(value)}", parameter=name)
    return value


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
