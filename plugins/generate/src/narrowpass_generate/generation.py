"""The calls that most programs need: `generate`, `generate_all` and `stream`.

`generate_all` runs several sequences at once, so that the weights are read once for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from narrowpass.errors import DataError, UsageError
from narrowpass_generate.decoder import Decoder
from narrowpass_generate.results import Generation
from narrowpass_generate.sampling import Sampler, Sampling
from narrowpass_generate.speculation import Drafter, DraftModel, Lookup
from narrowpass_generate.streams import Stream
from narrowpass_generate.tokenizer import Tokenizer
from narrowpass_ir.arguments import count_of, instance_of, names_of

if TYPE_CHECKING:
    import numpy as np

    from narrowpass import Program


DEFAULT_TOKENS = 256
"""Tokens at most, where no number is given."""


def generate(
    program: Program | Decoder,
    prompt: Sequence[int] | np.ndarray[Any, Any] | str,
    sampling: Sampling | None = None,
    *,
    tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
    ends: Sequence[int] | None = None,
    stop: Sequence[str] = (),
    context: int | None = None,
    lookup: int = 0,
    draft: Program | Decoder | None = None,
    drafted: int = 4,
) -> Generation:
    """Generate the continuation of a prompt.

    Args:
        program: a decoder with state; a `Decoder` runs only what it has not run before.
        prompt: token ids, int[S] or [1, S]; text is encoded with the tokenizer.
        sampling: how tokens are chosen; None for the largest logit.
        tokens: at most so many; None for 256, or as many as the context has room for.
        tokenizer: for texts; it also has the ids that end a text, and the size of the context.
        ends: ids that end the text; None for those of the tokenizer.
        stop: strings that end the text, and are not part of it; they need a tokenizer.
        context: positions that the model has; None for what the tokenizer's files say.
        lookup: tokens to draft in each run from what followed the last few tokens where they came
            before; 0 for none.
        draft: a smaller model of the same vocabulary that drafts tokens; None for none. Drafts
            change no distribution, and no greedy result but where two logits are equal within the
            rounding of runs with other numbers of rows.
        drafted: tokens that `draft` drafts in each run.

    Raises:
        UsageError: an empty prompt, a prompt or a number of tokens that exceeds the context, or
            drafts for a method that takes one token in each run.
        DataError: ids that the vocabulary does not have, a tokenizer of another vocabulary, or
            logits that are no numbers.
        ModelError: a model that is no decoder.
        BackendError: a run failed.
    """
    pieces = stream(
        program,
        prompt,
        sampling,
        tokens=tokens,
        tokenizer=tokenizer,
        ends=ends,
        stop=stop,
        context=context,
        lookup=lookup,
        draft=draft,
        drafted=drafted,
    )
    return _finished(pieces)


def generate_all(
    program: Program | Decoder,
    prompts: Sequence[Sequence[int] | np.ndarray[Any, Any] | str],
    sampling: Sampling | None = None,
    *,
    n: int = 1,
    together: int = 8,
    **options: Any,
) -> list[list[Generation]]:
    """Generate several continuations of each of several prompts.

    A prompt is run once: its continuations share its caches. Tokens of several sequences are run
    at once, see `Program.run_sessions`; those with drafts one sequence after the other. The i-th of
    all continuations is that of `generate` with the seed ``sampling.seed + i``, but where rounding
    decides: logits of several rows at once may differ in the last bits.

    Args:
        program: as for `generate`.
        prompts: as for `generate`.
        sampling: as for `generate`.
        n: continuations of each prompt.
        together: sequences that run at once at most; each has caches of its own.
        options: as for `generate`.

    Returns:
        `n` for each prompt.

    Raises:
        NarrowpassError: as `generate`; prompts are checked before the first is run.
    """
    n, together = count_of(n, "`n`"), count_of(together, "`together`")
    if isinstance(prompts, str | bytes):
        raise UsageError("`prompts` must be a list of prompts, not one: pass [prompt]")
    sampling = _sampling(sampling)
    shared = _decoder(program)
    for prompt in prompts:  # what is wrong with the last one is said before the first one runs
        stream(shared, prompt, sampling, **options)

    def begin(place: int, decoder: Decoder) -> Stream:
        seed = sampling.seed
        each = sampling if seed is None else replace(sampling, seed=seed + place)
        return stream(decoder, prompts[place // n], each, **options)

    begins = [partial(begin, place) for place in range(len(prompts) * n)]
    if options.get("lookup") or options.get("draft") is not None:
        found = [_finished(each(shared)) for each in begins]
    else:
        found = list(run_together(shared, begins, together))
    return [found[place : place + n] for place in range(0, len(found), n)]


def _finished(pieces: Stream) -> Generation:
    """Return what a stream generates until its end."""
    for _ in pieces:
        pass
    return pieces.result


def stream(
    program: Program | Decoder,
    prompt: Sequence[int] | np.ndarray[Any, Any] | str,
    sampling: Sampling | None = None,
    *,
    tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
    ends: Sequence[int] | None = None,
    stop: Sequence[str] = (),
    context: int | None = None,
    lookup: int = 0,
    draft: Program | Decoder | None = None,
    drafted: int = 4,
) -> Stream:
    """Generate token by token: an iterator of `Piece`, whose `result` is what came so far.

    Arguments and errors are those of `generate`. Nothing runs before the first token is asked for;
    arguments are checked at once.
    """
    sampling = _sampling(sampling)
    decoder = _decoder(program)
    if tokenizer is not None:
        instance_of(tokenizer, Tokenizer, "`tokenizer`", "a narrowpass_generate.Tokenizer or None")
        _check_vocabulary(decoder, tokenizer)
        ends = tokenizer.ends if ends is None else ends
        context = tokenizer.context if context is None else context
    if isinstance(prompt, str):
        if tokenizer is None:
            raise UsageError("a prompt of text needs a tokenizer; pass `tokenizer`, or token ids")
        prompt = tokenizer.encode(prompt)
    ids = decoder.check_ids(prompt)
    limit = _limit(tokens, len(ids), context)
    stops = names_of(stop, "`stop`")
    if "" in stops:
        raise UsageError("a stop string is empty; leave it out")
    if stops and tokenizer is None:
        raise UsageError("stop strings need a tokenizer; pass `tokenizer`, or `ends` for token ids")
    return Stream(
        decoder,
        ids,
        Sampler(sampling, ids),
        limit=limit,
        ends=[count_of(end, "an id of `ends`", least=0) for end in ends or ()],
        stops=stops,
        tokenizer=tokenizer,
        drafter=_drafter(decoder, sampling, lookup, draft, drafted),
    )


def _sampling(given: Sampling | None) -> Sampling:
    if given is None:
        return Sampling()
    checked: Sampling = instance_of(
        given, Sampling, "`sampling`", "a narrowpass_generate.Sampling or None"
    )
    return checked


def _decoder(program: Program | Decoder) -> Decoder:
    return program if isinstance(program, Decoder) else Decoder(program)


def _limit(tokens: int | None, prompt: int, context: int | None) -> int:
    """Return how many tokens may be generated.

    Raises:
        UsageError: the context has no room for the prompt and these.
    """
    wanted = DEFAULT_TOKENS if tokens is None else count_of(tokens, "`tokens`")
    if context is None:
        return wanted
    context = count_of(context, "`context`")
    room = context - prompt
    if room < 1:
        raise UsageError(
            f"the prompt has {prompt} tokens, which leaves no room in the context of {context}; "
            "shorten it"
        )
    if tokens is not None and wanted > room:
        raise UsageError(
            f"{prompt} tokens of the prompt and {wanted} more exceed the context of {context}; "
            f"ask for at most {room}"
        )
    return min(wanted, room)


def _check_vocabulary(decoder: Decoder, tokenizer: Tokenizer) -> None:
    if decoder.vocabulary and tokenizer.vocabulary > decoder.vocabulary:
        raise DataError(
            f"the tokenizer has {tokenizer.vocabulary} tokens and the model {decoder.vocabulary} "
            "logits: it is not the model's own; take tokenizer.json from where the model is from"
        )


def _drafter(
    decoder: Decoder, sampling: Sampling, lookup: int, draft: Program | Decoder | None, drafted: int
) -> Drafter | None:
    lookup = count_of(lookup, "`lookup`", least=0)
    drafted = count_of(drafted, "`drafted`")
    if not lookup and draft is None:
        return None
    if lookup and draft is not None:
        raise UsageError("tokens are drafted by `lookup` or by `draft`, not by both; leave one out")
    decoder.check_verifies()
    if draft is None:
        return Lookup(lookup)
    other = _decoder(draft)
    if other.vocabulary != decoder.vocabulary:
        raise DataError(
            f"the draft model has {other.vocabulary} logits and the model {decoder.vocabulary}: "
            "both must have the same tokenizer"
        )
    seed = None if sampling.seed is None else sampling.seed + _APART
    return DraftModel(other, Sampler(replace(sampling, seed=seed)), drafted)


_APART = 1 << 32
"""Distance of the draft's seed: its draws are independent of those that verify them."""


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
