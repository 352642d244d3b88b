"""A conversation: messages, and the caches of what the model has read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from narrowpass_generate.decoder import Decoder
from narrowpass_generate.generation import stream

if TYPE_CHECKING:
    from types import TracebackType

    from narrowpass_generate.commands.options import Model
    from narrowpass_generate.streams import Stream

_ANSWER = 1024
"""Tokens of an answer at most, where no number is given."""


class Conversation:
    """Messages of a user and answers of a model; a context manager that frees the caches.

    Args:
        model: that answers.
        system: the system's message; None for none.
        tokens: of an answer at most; None for 1,024, or as many as the context has room for.

    Attributes:
        messages: so far.
        decoder: that answers; it has run what `ids` says of the conversation.
    """

    def __init__(self, model: Model, system: str | None, tokens: int | None) -> None:
        self.decoder = Decoder(model.program)
        self._model, self._tokens = model, tokens
        self._begin = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._begin)

    def check(self) -> None:
        """Check that the chat template takes messages, before anybody writes one.

        Raises:
            UsageError: there is none.
            DataError: it refuses them.
        """
        self._model.tokenizer.render([*self._begin, {"role": "user", "content": "?"}])

    def ask(self, text: str) -> Stream:
        """Add a user's message, and return the answer's stream.

        Raises:
            UsageError: the context has no room for it; the message is dropped.
        """
        model, context = self._model, self._model.tokenizer.context
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = model.tokenizer.encode_chat(messages)
        tokens = _ANSWER if self._tokens is None else self._tokens
        if context is not None:
            tokens = max(1, min(tokens, context - len(ids)))
        pieces = stream(
            self.decoder,
            ids,
            model.sampling,
            tokens=tokens,
            tokenizer=model.tokenizer,
            **model.options,
        )
        self.messages = messages
        return pieces

    def answered(self, text: str) -> None:
        """Add the model's answer to the messages."""
        self.messages.append({"role": "assistant", "content": text})

    def reset(self) -> None:
        """Forget all but the system's message."""
        self.messages = list(self._begin)
        self.decoder.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.decoder.close()
