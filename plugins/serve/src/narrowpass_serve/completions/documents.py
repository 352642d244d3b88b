"""What completions are answered with: the JSON of OpenAI's interface."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowpass_generate import Generation


@dataclass(frozen=True)
class Answer:
    """The parts that all documents of one answer share.

    Attributes:
        model: its name.
        chat: whether it is that of a chat.
        id: of the answer.
        created: seconds since 1970.
    """

    model: str
    chat: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, results: Sequence[Generation], usage: Mapping[str, int]) -> dict[str, Any]:
        """Return an answer that is not streamed, one choice for each result."""
        choices = [
            {"index": index, **self._content(result.text), **_ending(result)}
            for index, result in enumerate(results)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    def piece(self, index: int, text: str, result: Generation | None) -> dict[str, Any]:
        """Return text of one choice as it came; the result where it is the last of that."""
        content = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        return self._chunk([{"index": index, **content, **_ending(result)}])

    def beginning(self, index: int) -> dict[str, Any]:
        """Return what a choice of a chat begins with: the role."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, **_ending(None)}])

    def ending(self, usage: Mapping[str, int]) -> dict[str, Any]:
        """Return the last chunk of a stream: the numbers of tokens."""
        return {**self._chunk([]), "usage": usage}

    def _content(self, text: str) -> dict[str, Any]:
        if not self.chat:
            return {"text": text}
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _chunk(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": list(choices)}

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        kind = kind if self.chat else "text_completion"
        return {
            "id": f"{prefix}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def usage_of(prompts: Sequence[Sequence[int]], results: Sequence[Generation]) -> dict[str, int]:
    """Return the numbers of tokens; each prompt counts once, however many choices it has."""
    prompt, generated = sum(map(len, prompts)), sum(len(result.tokens) for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }


def _ending(result: Generation | None) -> dict[str, Any]:
    reason = None if result is None else result.finish_reason
    return {"logprobs": None, "finish_reason": reason}
