"""Options that both commands have, and what they lead to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from narrowpass.cli.options import (
    backend_option,
    cache_dir_option,
    cache_option,
    native_option,
    threads_option,
)
from narrowpass.errors import UsageError

if TYPE_CHECKING:
    from narrowpass import Program
    from narrowpass.cli.state import State
    from narrowpass_generate.sampling import Sampling
    from narrowpass_generate.tokenizer import Tokenizer

F = TypeVar("F", bound=Callable[..., Any])

_SAMPLING = (
    click.option("--greedy", is_flag=True, help="Take the token of the largest logit."),
    click.option(
        "--temperature",
        type=float,
        metavar="T",
        help="Divide logits by it: above 1 more varied, below 1 less; 0 is --greedy.  [default: "
        "the model's generation_config.json, or 0]",
    ),
    click.option("--top-k", type=int, metavar="K", help="Only the K likeliest tokens; 0 for all."),
    click.option(
        "--top-p",
        type=float,
        metavar="P",
        help="Only the likeliest tokens whose probabilities add up to P.",
    ),
    click.option(
        "--min-p",
        type=float,
        metavar="P",
        help="Only tokens of at least the share P of the largest probability.",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="Divide logits of tokens that came before by X; 1 for none.",
    ),
    click.option(
        "--seed",
        type=int,
        metavar="N",
        help="Seed of the random numbers.  [default: another each time]",
    ),
)

_RUNNING = (
    click.option(
        "--lookup",
        type=int,
        default=0,
        metavar="N",
        help="Draft N tokens in each run from what followed the last few where they came before.",
    ),
    click.option(
        "--draft",
        metavar="BUNDLE",
        help="A smaller model with the same tokenizer that drafts tokens.",
    ),
    click.option(
        "--tokenizer",
        metavar="FOLDER",
        help="Where tokenizer.json is.  [default: the bundle's folder]",
    ),
    backend_option,
    threads_option,
    native_option,
    cache_option,
    cache_dir_option,
)


def model_options(function: F) -> F:
    """Add the options of sampling and of running."""
    for option in reversed((*_SAMPLING, *_RUNNING)):
        function = option(function)
    return function


@dataclass
class Model:
    """What the options lead to.

    Attributes:
        program: the compiled bundle.
        tokenizer: of the model.
        sampling: as the model's files say, where options do not.
        options: of `narrowpass_generate.generate`, beside the number of tokens and stop strings.
        seconds: that loading took.
    """

    program: Program
    tokenizer: Tokenizer
    sampling: Sampling
    options: dict[str, Any]
    seconds: float


def open_model(
    state: State,
    path: str,
    *,
    tokenizer: str | None,
    draft: str | None,
    lookup: int,
    backend: str | None,
    threads: int | None,
    require_native: bool,
    cache: bool,
    cache_dir: str | None,
    **sampling: Any,
) -> Model:
    """Load what the options name.

    Raises:
        NarrowpassError: as `narrowpass.load` and `Tokenizer.load`, or options that contradict.
    """
    from narrowpass.bundle import is_bundle
    from narrowpass.driver import check_source, load, open_bundle
    from narrowpass_generate.decoder import Decoder
    from narrowpass_generate.tokenizer import Tokenizer

    start = time.perf_counter()
    check_source(path)
    bundle = None if is_bundle(path) else open_bundle(path, backend, plugins=state.plugins)
    if tokenizer is None and bundle is not None and "tokenizer.json" in bundle.assets:
        files = Tokenizer(bundle.assets, path)  # a file of a model that brings its tokenizer
    else:
        files = Tokenizer.load(path if tokenizer is None else tokenizer)
    chosen = _sampling(files.sampling, **sampling)
    settings: dict[str, Any] = {
        "backend": backend,
        "threads": threads,
        "require_native": require_native,
        "cache": cache,
        "cache_dir": cache_dir,
        "plugins": state.plugins,
    }
    options: dict[str, Any] = {"lookup": lookup}
    program = load(path if bundle is None else bundle, **settings)
    if draft is not None:
        check_source(draft)
        options["draft"] = Decoder(load(draft, **settings))
    return Model(program, files, chosen, options, time.perf_counter() - start)


def _sampling(sampling: Sampling, *, greedy: bool, **given: Any) -> Sampling:
    if greedy:
        if given["temperature"]:
            raise UsageError("--greedy and --temperature contradict each other; pass one")
        given["temperature"] = 0.0
    return replace(sampling, **{name: x for name, x in given.items() if x is not None})
