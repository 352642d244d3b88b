"""One loaded version of a model: its programs, the threads that run them, its tokenizer."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import NarrowpassError, UsageError
from narrowpass_serve.completions.engine import Engine
from narrowpass_serve.errors import RequestError
from narrowpass_serve.models.instance import Instance, run_batch
from narrowpass_serve.models.methods import Method
from narrowpass_serve.models.queueing import Arrays, Job, JobQueue
from narrowpass_serve.models.sources import Source
from narrowpass_serve.settings import Settings
from narrowpass_serve.threads import join, start

if TYPE_CHECKING:
    from narrowpass import Bundle, Plugins, Program
    from narrowpass_generate import Tokenizer
    from narrowpass_serve.metrics import Metrics


class Served:
    """A version of a model that runs requests until it is closed.

    Compiling it, and a few runs, take as long as they take: not for the event loop.

    Args:
        source: where it is.
        version: its number: how often the model was loaded.
        settings: of the server.
        metrics: of the server.
        plugins: that are used; None for the installed ones.

    Attributes:
        name: of the model.
        version: as text, as the protocol has it.
        methods: by name.
        default: the method that the model's name alone stands for.
        tokenizer: of a bundle that generates; None for others.
        engine: generates; None where the bundle does not.
        stateful: whether it has state, so that it may be meant to generate.
        silent: why it does not generate; empty where it does.

    Raises:
        NarrowpassError: it cannot be loaded.
    """

    def __init__(
        self,
        source: Source,
        version: int,
        settings: Settings,
        metrics: Metrics,
        plugins: Plugins | None = None,
    ) -> None:
        self.name, self.version = source.name, str(version)
        self._metrics = metrics
        bundle = _open(source, settings, plugins)
        load = functools.partial(_load, bundle, settings, plugins)
        self._instances = [Instance(load) for _ in range(settings.instances)]
        first = self._instances[0].program
        join = settings.max_batch > 1
        self.methods = {name: Method.of(first, name, join=join) for name in first.methods}
        if not all(method.unjoined for method in self.methods.values()):
            for instance in self._instances:
                instance.prepare(settings.max_batch)
        self.default = "main" if "main" in self.methods else next(iter(self.methods))
        self.stateful = bool(bundle.states)
        self.tokenizer: Tokenizer | None = None
        self.engine: Engine | None = None
        self.silent = ""
        try:
            self.tokenizer = _tokenizer(source, bundle)
            self.engine = Engine(source.name, first, self.tokenizer, settings, metrics)
        except NarrowpassError as error:
            self.silent = str(error)
        self._jobs = JobQueue(settings.max_queue, settings.max_batch, settings.max_delay)
        self._workers = [
            threading.Thread(target=self._work, args=(instance,), name=f"serve-{source.name}")
            for instance in self._instances
        ]
        try:
            if self.engine is not None:
                self.engine.start()
            for worker in self._workers:
                worker.daemon = True  # the second signal does not wait for a run
                start(worker)
        except NarrowpassError:
            self.close()
            raise

    def method(self, name: str) -> Method:
        """Return a method; the empty name stands for the default one.

        Raises:
            RequestError: there is none of that name.
        """
        found = self.methods.get(name or self.default)
        if found is None:
            listing = ", ".join(self.methods)
            raise RequestError(
                f"model {self.name!r} has no method {name!r}; its methods: {listing}", 404
            )
        return found

    def submit(
        self, method: Method, feeds: Arrays, outputs: tuple[str, ...] | None = None
    ) -> Future[Arrays]:
        """Let a method run soon, with the rows of others where these may be joined.

        Args:
            method: of this version.
            feeds: arrays by input name.
            outputs: names of the outputs to return; None for all.

        Raises:
            RequestError: too many requests wait.
        """
        rows = None if method.unjoined else _rows(feeds)
        kind = None if rows is None else (method.name, outputs, _kinds(feeds))
        job = Job(method.name, feeds, outputs, rows or 1, kind)
        self._jobs.put(job)
        self._metrics.waiting.labels(self.name).set(len(self._jobs))
        return job.future

    def close(self) -> None:
        """Let what waits run, then free the programs."""
        if self.engine is not None:
            self.engine.close()
        self._jobs.close()
        for worker in self._workers:
            join(worker)
        for instance in self._instances:
            instance.close()

    def _work(self, instance: Instance) -> None:
        """Run batches until the queue is closed and empty."""
        rows, compute = (m.labels(self.name) for m in (self._metrics.rows, self._metrics.compute))
        waiting = self._metrics.waiting.labels(self.name)
        while jobs := self._jobs.take():
            waiting.set(len(self._jobs))
            start = time.perf_counter()
            count = run_batch(instance, jobs)
            if count:
                compute.observe(time.perf_counter() - start)
                rows.observe(count)


def _open(source: Source, settings: Settings, plugins: Plugins | None) -> Bundle:
    """Open the bundle that all programs of a version are compiled from.

    Once: what replaces the files meanwhile is another version.
    """
    from narrowpass.driver import check_source, open_bundle

    check_source(source.path)
    return open_bundle(source.path, settings.backend, plugins=plugins, unread=True)


def _load(bundle: Bundle, settings: Settings, plugins: Plugins | None) -> Program:
    from narrowpass import load

    return load(
        bundle,
        settings.backend,
        threads=settings.threads,
        require_native=settings.require_native,
        cache=settings.cache or "memory",  # a model has several programs: one copy of its weights
        cache_dir=settings.cache_dir,
        plugins=plugins,
    )


def _tokenizer(source: Source, bundle: Bundle) -> Tokenizer:
    """Return the tokenizer of a bundle that generates: one of its files, or one beside them.

    Raises:
        UsageError: it has no state, or no tokenizer.
        DataError: a file of the tokenizer is damaged.
    """
    from narrowpass_generate import Tokenizer

    if not bundle.states:
        raise UsageError("the bundle has no state, such as KV caches")
    if "tokenizer.json" in bundle.assets:
        return Tokenizer(bundle.assets, str(source.path))
    return Tokenizer.load(source.path)


def _rows(feeds: Arrays) -> int | None:
    """Return the rows of all arrays; None where they do not agree, or there are none."""
    counts = {len(value) if value.ndim else -1 for value in feeds.values()}
    rows = counts.pop() if len(counts) == 1 else 0
    return rows if rows > 0 else None


def _kinds(feeds: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Any, ...]:
    """Return what arrays must have alike to be joined: names, dtypes, shapes of a row."""
    return tuple(sorted((name, str(v.dtype), v.shape[1:]) for name, v in feeds.items()))
