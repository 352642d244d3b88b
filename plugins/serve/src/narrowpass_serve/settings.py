"""What a server is run with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How models are loaded, batched and guarded.

    Attributes:
        backend: what runs the models; None for the available one of highest priority.
        threads: of a run; None for all processors that it may use.
        require_native: whether a node without a native kernel is an error.
        cache: whether packed weights are kept on disk.
        cache_dir: where; None for the user's cache directory.
        instances: programs of each model; each runs one batch at a time.
        max_batch: rows of a batch at most; 1 for no batches.
        max_delay: seconds that a request waits at most for others to join its batch.
        max_queue: requests of a model that wait at most; more are refused with status 503.
        max_body: bytes of a request at most.
        timeout: seconds that a request waits and runs at most; that a sequence waits at most.
        sequences: of a generating model that run at once at most; each has KV caches.
        control: whether clients may load and unload models.
        watch: seconds between looks at the files of the models; 0 for none.
        drain: seconds that requests have left to end in when the server stops.
    """

    backend: str | None = None
    threads: int | None = None
    require_native: bool = False
    cache: bool = True
    cache_dir: str | None = None
    instances: int = 1
    max_batch: int = 32
    max_delay: float = 0.0
    max_queue: int = 1024
    max_body: int = 64 << 20
    timeout: float = 60.0
    sequences: int = 8
    control: bool = False
    watch: float = 1.0
    drain: float = 30.0
