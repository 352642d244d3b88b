"""Several sequences that are generated at once, so that the weights are read once for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from narrowpass_generate.decoder import Decoder
from narrowpass_generate.results import Generation
from narrowpass_generate.streams import Stream

Begin = Callable[[Decoder], Stream]
"""Returns a stream that runs on a decoder."""


def run_together(shared: Decoder, begins: Iterable[Begin], most: int) -> Iterator[Generation]:
    """Generate sequences, and yield them in order.

    A prompt is run where the one before was another. Then all sequences run a token at once. Where
    one ends, the next one begins; so at most `most` sequences have caches at a time.

    Args:
        shared: runs the prompts.
        begins: for each sequence.
        most: sequences that run at once.
    """
    waiting = enumerate(_begun(shared, begins))
    done: dict[int, Generation] = {}
    running = dict(islice(waiting, most))
    place = 0
    while running:
        for index, stream in list(running.items()):
            next(stream)
            if stream.last is None:
                done[index] = running.pop(index).result
                stream.decoder.close()
                running.update(islice(waiting, 1))
        while place in done:
            yield done.pop(place)
            place += 1
        _run_ahead([stream for stream in running.values() if stream.last is not None])


def _begun(shared: Decoder, begins: Iterable[Begin]) -> Iterator[Stream]:
    """Yield a stream for each sequence, on a decoder that has run the prompt."""
    logits, seconds = None, 0.0
    for begin in begins:
        prompt = begin(shared).prompt
        if logits is None or shared.ids != prompt:
            start = time.perf_counter()
            logits = shared.advance(prompt)
            seconds = time.perf_counter() - start
        stream = begin(shared.fork_ahead(logits))
        stream.add_seconds(seconds)
        yield stream


def _run_ahead(streams: Sequence[Stream]) -> None:
    """Run the last token of each sequence."""
    if len(streams) < 2:
        return  # it runs its own
    start = time.perf_counter()
    first, *others = [stream.decoder for stream in streams]
    first.run_ahead(others, [stream.last for stream in streams if stream.last is not None])
    seconds = time.perf_counter() - start
    for stream in streams:
        stream.add_seconds(seconds)
