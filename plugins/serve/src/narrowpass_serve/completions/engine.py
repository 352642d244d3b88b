"""Sequences of several users, generated at once: each joins and leaves between two tokens."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from narrowpass_serve.errors import RequestError
from narrowpass_serve.threads import join, start

if TYPE_CHECKING:
    import numpy as np

    from narrowpass import Program
    from narrowpass_generate import Generation, Sampling, Stream, Tokenizer
    from narrowpass_serve.metrics import Metrics
    from narrowpass_serve.settings import Settings

_log = logging.getLogger("narrowpass.serve")

Report = Callable[["Event"], None]
"""Is called in the engine's thread with each event of a sequence."""


@dataclass(frozen=True)
class Event:
    """What happened to a sequence.

    Attributes:
        text: that came; complete characters.
        result: where the sequence has ended; None before.
        error: where it failed; None else.
    """

    text: str = ""
    result: Generation | None = None
    error: BaseException | None = None


@dataclass(eq=False)
class SequenceRequest:
    """A sequence that is wanted.

    Attributes:
        prompt: token ids.
        sampling: how tokens are chosen.
        tokens: at most so many; None for as many as the context has room for.
        stop: strings that end it.
        report: is called with its events.
        begun: until when it must have begun, by `time.monotonic`.
        left: set by any thread: nobody waits for it any more.
    """

    prompt: Sequence[int]
    sampling: Sampling
    tokens: int | None
    stop: tuple[str, ...]
    report: Report
    begun: float = float("inf")
    left: threading.Event = field(default_factory=threading.Event)


class Engine:
    """Generates sequences in a thread of its own, a token of each at a time.

    A prompt is run when its sequence joins; what it has in common with the last prompt is not run
    again, and the same prompt is run once.

    Args:
        name: of the model.
        program: of a decoder.
        tokenizer: of the model.
        settings: of the server.
        metrics: of the server.

    Raises:
        ModelError: the program is no decoder.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        tokenizer: Tokenizer,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        from narrowpass_generate import Decoder

        self._name, self._tokenizer = name, tokenizer
        self._most, self._most_waiting = settings.sequences, settings.max_queue
        self._prompts = Decoder(program)
        self._logits: np.ndarray | None = None
        self._metrics = metrics
        self._waiting: deque[SequenceRequest] = deque()
        self._running: dict[SequenceRequest, Stream] = {}
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"generate-{name}", daemon=True)

    def start(self) -> None:
        """Begin to generate.

        Raises:
            BackendError: the system has no thread more.
        """
        start(self._thread)

    def check(self, sequence: SequenceRequest) -> None:
        """Check what a sequence asks for, without running it.

        Raises:
            NarrowpassError: as `narrowpass_generate.stream`.
        """
        self._stream(self._prompts, sequence)

    def submit(self, sequences: Sequence[SequenceRequest]) -> None:
        """Let sequences join, all or none.

        Raises:
            RequestError: too many wait, or the engine is closed.
        """
        with self._changed:
            if self._closed:
                raise RequestError("the model is being closed; send the request again", 503)
            if len(self._waiting) + len(sequences) > self._most_waiting:
                raise RequestError(
                    f"{len(self._waiting)} sequences wait for this model; send fewer at once", 503
                )
            self._waiting.extend(sequences)
            self._changed.notify()

    def close(self) -> None:
        """End when all sequences have, also those that wait; then free the caches."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        join(self._thread)
        self._prompts.close()

    def _work(self) -> None:
        while self._wait():
            try:
                self._admit()
                self._step()
            except Exception as error:  # noqa: BLE001  # other sequences must still run
                _log.exception("model %r: a defect ended what it generated", self._name)
                for sequence in list(self._running):
                    self._fail(sequence, error)
            self._count()

    def _wait(self) -> bool:
        """Wait for something to do; False where the engine is closed and nothing is left."""
        with self._changed:
            while not (self._waiting or self._running):
                if self._closed:
                    return False
                self._changed.wait()
        return True

    def _admit(self) -> None:
        """Run the prompt of one sequence that waits, where there is room.

        One only: prompts take long, and between two of them those that run get a token.
        """
        with self._changed:
            if not self._waiting or len(self._running) >= self._most:
                return
            sequence = self._waiting.popleft()
        if sequence.left.is_set():
            return
        if time.monotonic() > sequence.begun:
            sequence.report(Event(error=TimeoutError()))
            return
        try:
            self._running[sequence] = self._begin(sequence)
        except BaseException as error:  # noqa: BLE001  # it is the sequence's, whatever it is
            self._fail(sequence, error)

    def _begin(self, sequence: SequenceRequest) -> Stream:
        prompt = tuple(sequence.prompt)
        start = time.perf_counter()
        if self._logits is None or self._prompts.ids != prompt:
            self._logits = None  # where the run fails, these are of another prompt
            self._logits = self._prompts.advance(prompt)
        stream = self._stream(self._prompts.fork_ahead(self._logits), sequence)
        stream.add_seconds(time.perf_counter() - start)
        self._metrics.tokens.labels(self._name, "prompt").inc(len(prompt))
        return stream

    def _stream(self, decoder: object, sequence: SequenceRequest) -> Stream:
        from narrowpass_generate import stream

        return stream(
            decoder,  # type: ignore[arg-type]
            sequence.prompt,
            sequence.sampling,
            tokens=sequence.tokens,
            tokenizer=self._tokenizer,
            stop=sequence.stop,
        )

    def _step(self) -> None:
        """Take a token of each sequence, then run these tokens at once."""
        generated = self._metrics.tokens.labels(self._name, "generated")
        for sequence, stream in list(self._running.items()):
            if sequence.left.is_set():
                self._drop(sequence)
                continue
            try:
                piece = next(stream)
            except BaseException as error:  # noqa: BLE001  # it is the sequence's, whatever it is
                self._fail(sequence, error)
                continue
            generated.inc()
            ended = stream.last is None
            if ended:
                self._drop(sequence)
            sequence.report(Event(piece.text, stream.result if ended else None))
        streams = list(self._running.values())
        if len(streams) > 1:  # a single one runs its own token
            self._run_ahead(streams)

    def _run_ahead(self, streams: Sequence[Stream]) -> None:
        tokens = [stream.last for stream in streams if stream.last is not None]
        first, *others = [stream.decoder for stream in streams]
        start = time.perf_counter()
        try:
            first.run_ahead(others, tokens)
        except Exception:  # noqa: BLE001  # none has run: each runs its own, and finds its error
            return
        seconds = time.perf_counter() - start
        for stream in streams:
            stream.add_seconds(seconds)

    def _drop(self, sequence: SequenceRequest) -> None:
        stream = self._running.pop(sequence, None)
        if stream is not None:
            stream.decoder.close()

    def _fail(self, sequence: SequenceRequest, error: BaseException) -> None:
        self._drop(sequence)
        sequence.report(Event(error=error))

    def _count(self) -> None:
        gauge = self._metrics.sequences
        gauge.labels(self._name, "running").set(len(self._running))
        gauge.labels(self._name, "waiting").set(len(self._waiting))
