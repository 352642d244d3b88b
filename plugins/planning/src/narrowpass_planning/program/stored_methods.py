"""The stored methods of a bundle: found by what they were planned from."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from narrowpass_ir.verify import Signature, ValueSpec
from narrowpass_planning.program.document import Appends, document_of, restored
from narrowpass_planning.stored import file
from narrowpass_planning.stored.storage import NotStorableError, StaleError
from narrowpass_planning.stored.tensors import NamedTensors
from narrowpass_planning.weights import names
from narrowpass_planning.weights.folder import METHOD, chosen_folder
from narrowpass_planning.weights.weight import digest

if TYPE_CHECKING:
    from narrowpass.bundle import Manifest
    from narrowpass_planning.program.compiled_graph import CompileContext
    from narrowpass_planning.program.method import Method
    from narrowpass_planning.program.sources import Sources
    from narrowpass_planning.stored.storage import StepStorage

_PACKAGES = ("narrowpass", "narrowpass_ir", "narrowpass_planning", "narrowpass_reference")
"""Packages whose code decides plans, beside those of the backend."""

_SIGNATURES = "/signatures"
"""What stands for the name of a method, and is none, in the name of the file of signatures."""

_log = logging.getLogger("narrowpass.planning")


class StoredMethods:
    """The stored methods of one bundle on disk for one backend.

    Args:
        sources: of the program.
        manifest: of the bundle.
        storage: of the backend's steps.
    """

    def __init__(self, sources: Sources, manifest: Manifest, storage: StepStorage) -> None:
        self._sources, self._manifest, self._storage = sources, manifest, storage

    @classmethod
    def of(cls, sources: Sources, storage: StepStorage | None) -> StoredMethods | None:
        """Return the stored methods of a program; None where its methods are not stored.

        They are for a bundle on disk whose models nobody has changed, and whose weights are cached
        there; without values to keep.
        """
        options, manifest = sources.options, sources.bundle.manifest
        if manifest is None or not manifest.tensors or not sources.bundle.unread:
            return None
        if storage is None or options.cache is not True or options.keep or options.observe:
            return None
        return cls(sources, manifest, storage)

    @functools.cached_property
    def _tensors(self) -> NamedTensors:
        return NamedTensors(self._sources.bundle.data)

    def signatures(self) -> dict[str, Signature] | None:
        """Return the signatures of all methods by name, if it is noted that all of them compile."""
        stored = self._read(_SIGNATURES)
        if stored is None:
            return None
        try:
            return {name: _signature(*specs) for name, specs in stored.items()}
        except Exception as error:  # noqa: BLE001  # a document may be wrong in any way
            _log.warning("methods are compiled again: their file is damaged: %r", error)
            return None

    def note(self, signatures: Mapping[str, Signature]) -> None:
        """Note that all methods have been compiled, and their signatures."""
        document = {
            name: [list(map(dataclasses.astuple, each)) for each in (known.inputs, known.outputs)]
            for name, known in signatures.items()
        }
        self._write(document, _SIGNATURES)

    def load(
        self, name: str, form: str, context: CompileContext
    ) -> tuple[Method, Appends | None] | None:
        """Return a method that was stored, and `Appends`; None where there is none.

        Args:
            name: the method's.
            form: how it was compiled: for which caches.
            context: of the program, with an open session of the weights cache.
        """
        document = self._read(name, form)
        if document is None:
            return None
        try:
            return restored(document, self._storage, self._tensors, context)
        except StaleError as error:
            _log.info("method %r is planned again: %s", name, str(error))
        except Exception as error:  # noqa: BLE001  # a document may be wrong in any way
            _log.warning("method %r is planned again: its file is damaged: %r", name, error)
        return None

    def save(
        self, method: Method, form: str, appends: Appends | None, context: CompileContext
    ) -> None:
        """Store a method that was compiled, if a process that finds its weights can restore it.

        Args:
            method: compiled with the context.
            form: as for `load`.
            appends: see `document_of`.
            context: of the program, with the session that its weights were packed in, open; it
                counts the weights of the trial.
        """
        try:
            document = document_of(method, appends, self._storage, self._tensors)
            restored(document, self._storage, self._tensors, context)
        except (NotStorableError, StaleError) as error:
            _log.info("method %r is planned in each process: %s", method.name, str(error))
            return
        self._write(document, method.name, form)

    def _read(self, name: str, form: str = "") -> Any:
        path = self._path(name, form)
        return file.read(path, f"{path.name} {self._key}")

    def _write(self, document: Any, name: str, form: str = "") -> None:
        path = self._path(name, form)
        file.write(path, f"{path.name} {self._key}", document)
        file.delete_unused(path, path.name.partition("-")[0])

    def _path(self, name: str, form: str) -> Path:
        """Return the file of a method; other models with the same weights have others.

        So has other code, in the part behind the dash: versions that use a folder in turns do not
        replace each other's.
        """
        models = [(method.name, method.file.sha256) for method in self._manifest.methods]
        chosen = digest(models, name, form, self._storage.planned_for())[:16]
        folder = chosen_folder(self._sources.options.cache_dir)
        return folder / f"{names.key_of(self._sources.bundle)}.{chosen}-{self._code[:8]}{METHOD}"

    @functools.cached_property
    def _key(self) -> str:
        """All that a plan follows from, beside its path's: tensors, states, and the code."""
        tensors = [(key, info.sha256) for key, info in self._manifest.tensors.items()]
        return digest(sorted(tensors), self._sources.bundle.states, self._code)

    @functools.cached_property
    def _code(self) -> str:
        """The code that plans, and the version of its files."""
        return digest(file.VERSION, *code_of((*_PACKAGES, *self._storage.packages)))


def _signature(*specs: Sequence[Sequence[Any]]) -> Signature:
    """Return the signature of the fields of its inputs, and of its outputs."""
    inputs, outputs = (
        tuple(
            ValueSpec(name, dtype, None if shape is None else tuple(shape), has_default)
            for name, dtype, shape, has_default in each
        )
        for each in specs
    )
    return Signature(inputs, outputs)


@functools.cache
def code_of(packages: tuple[str, ...]) -> tuple[str, ...]:
    """Return what identifies the code that plans: versions, and the status of each source file.

    Asked for once: a process goes on with the code that it has, whatever becomes of the files.
    """
    return tuple(_code_of(packages))


def _code_of(packages: Iterable[str]) -> Iterator[str]:
    yield f"{sys.version} numpy {np.__version__} onnx {onnx.__version__} ir {ir.__version__}"
    for name in packages:
        spec = importlib.util.find_spec(name)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".py", ".so"):
                    status = path.stat()
                    yield f"{path} {status.st_size} {status.st_mtime_ns}"
