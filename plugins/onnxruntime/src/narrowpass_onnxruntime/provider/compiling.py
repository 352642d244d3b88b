"""Compilation of groups, and the bundles that later sessions and processes compile from.

A group with large weights is written as a bundle under a name that follows from its nodes, and from
the content of its constants or their places in files. The weights of all sessions and processes
that have the group are then one mapping of one file, raw and packed, and a session that finds the
bundle runs no pass and packs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

import narrowpass
from narrowpass.bundle import Bundle, is_bundle
from narrowpass.calibration.samples import Samples
from narrowpass.errors import NarrowpassError
from narrowpass.framework.pipeline import Pipeline
from narrowpass.framework.plugins import installed_plugins
from narrowpass.runtime.processors import usable_processors
from narrowpass_ir.data.trust import create_own_folder, distrust_folder
from narrowpass_onnxruntime.files import LOCK, turn
from narrowpass_onnxruntime.narrowing import (
    is_repeatable,
    processor,
    sample_status,
    with_auto,
)
from narrowpass_onnxruntime.provider.graph import Graph, Node
from narrowpass_onnxruntime.provider.identities import Identities, secret_of
from narrowpass_onnxruntime.provider.models import constants_of, model_of, samples_of
from narrowpass_planning.weights import chosen_folder

if TYPE_CHECKING:
    from narrowpass import Backend, Program
    from narrowpass_onnxruntime.provider.library import Log
    from narrowpass_onnxruntime.provider.options import Options


_SMALL = 1 << 20
"""Bytes of weights up to which a group is compiled in memory: a file would not pay."""

_FORMAT = "2"
"""Of what a bundle's name is computed from."""


class GroupCompiler:
    """Compiles groups of one session.

    Args:
        backend: that runs them.
        options: of the provider.
        log: of the session.

    Raises:
        UsageError: an option names what is not installed, or samples that are not there.
        PipelineError: text of a pipeline that does not parse.
    """

    def __init__(self, backend: Backend, options: Options, log: Log) -> None:
        self._backend, self._options, self._log = backend, options, log
        # Errors come here, and not for each group.
        plugins = installed_plugins()
        registry = plugins.registry
        asked = with_auto(options.pipeline, options.max_error, options.objective, registry)
        self._pipeline = str(Pipeline.parse(asked, registry))
        self._samples = Samples.of(options.calibration)
        self._versions = [f"{info.distribution} {info.status}" for info in plugins.infos]

    def compile(self, graph: Graph, nodes: Sequence[Node], outputs: Sequence[str]) -> Program:
        """Return the program of some nodes.

        Args:
            graph: that the nodes belong to.
            nodes: in topological order.
            outputs: names of the values that are computed for others.

        Raises:
            NarrowpassError: the group cannot be compiled.
        """
        path = self._stored(graph, nodes, outputs)
        if path is not None:
            try:
                return self._load(path)
            except NarrowpassError as error:  # another process may have deleted it just now
                self._log.info(f"a group is compiled in memory: {error}")
        return self._load(self._build(graph, nodes, outputs, copy=True))

    def _load(self, source: Path | Bundle) -> Program:
        return narrowpass.load(
            source,
            self._backend,
            threads=self._options.threads,
            cache=True if isinstance(source, Path) else "memory",
            cache_dir=self._options.cache_dir,
        )

    def _stored(self, graph: Graph, nodes: Sequence[Node], outputs: Sequence[str]) -> Path | None:
        """Return the bundle of a group, written now or by a process before; None without one."""
        if not is_repeatable(self._options.calibration):
            return None
        # What was searched for is kept, whatever its size.
        if self._options.max_error is None and _bytes_of(graph, nodes) < _SMALL:
            return None
        try:
            kept = KeptBundles(self._options.cache_dir)
            name = self._name(graph, nodes, outputs, kept.secret)
            found = kept.find(name)
            if found is not None:
                return found
            with turn(kept.place(name)):
                found = kept.find(name)  # whoever had the turn before has written it
                if found is not None:
                    return found
                self._build(graph, nodes, outputs, copy=False).save(kept.place(name))
                if self._name(graph, nodes, outputs, kept.secret) != name:
                    kept.discard(name)  # its file was written to meanwhile
                    return None
        except (OSError, NarrowpassError) as error:
            self._log.info(f"a group is compiled in memory: {error}")
            return None
        kept.delete_unused()
        return kept.find(name)

    def _build(
        self, graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], *, copy: bool
    ) -> Bundle:
        model = model_of(graph, nodes, outputs, copy=copy)
        if not self._pipeline:
            return Bundle({"main": model}, states=())
        given = self._samples
        samples = None if given is None else samples_of(graph, nodes, given)
        return narrowpass.build(
            model, self._pipeline, target=self._backend, calibration=samples, states=()
        )

    def _name(
        self, graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], secret: bytes
    ) -> str:
        """Name a group by all that its bundle follows from; see `Identities`."""
        content = hashlib.sha256()
        identities = Identities(secret, self._options.threads or usable_processors())

        def add(*parts: object) -> None:
            for part in parts:
                data = part if isinstance(part, bytes) else str(part).encode()
                content.update(len(data).to_bytes(8, "little") + data)

        add(_FORMAT, narrowpass.__version__, self._backend, self._pipeline, *outputs)
        if self._pipeline:
            add(*self._versions, *sample_status(self._options.calibration))
        if self._options.max_error is not None:
            add(processor(self._backend))  # types are chosen by times on it
        add(sorted(graph.opsets.items()))
        for node in nodes:
            add(node.domain, node.op_type, node.version, node.name, node.inputs, node.outputs)
            for attribute in node.attributes or ():
                proto = ir.serde.serialize_attribute(attribute)
                add(proto.SerializeToString(deterministic=True))
            for name in (*node.inputs, *node.outputs):
                add(graph.types.get(name), graph.shapes.get(name))
        for name in constants_of(graph, nodes):
            add(name, identities.of(graph.constants[name]))
        return content.hexdigest()


def _bytes_of(graph: Graph, nodes: Sequence[Node]) -> int:
    return sum(graph.constants[name].size for name in constants_of(graph, nodes))


_FOLDER = "onnxruntime"
_BUNDLE = ".narrow"
_UNUSED = 30 * 24 * 3600
"""Seconds without use after which a bundle is deleted, when another is written."""


class KeptBundles:
    """Bundles on disk, by name.

    Args:
        cache_dir: that their folder is in; None for the user's.

    Attributes:
        secret: that names of contents depend on; see `secret_of`.

    Raises:
        OSError: the folder cannot be created, read or written, or other users can write to it.
    """

    def __init__(self, cache_dir: Path | None) -> None:
        self._folder = chosen_folder(cache_dir) / _FOLDER
        create_own_folder(self._folder)
        if reason := distrust_folder(self._folder):
            raise PermissionError(reason)
        self.secret = secret_of(self._folder)

    def place(self, name: str) -> Path:
        """Return where a bundle is, or would be."""
        return self._folder / f"{name}{_BUNDLE}"

    def find(self, name: str) -> Path | None:
        """Return the bundle of a name, which is used now; None where there is none."""
        path = self.place(name)
        if not is_bundle(path):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # when it was used last
        return path

    def discard(self, name: str) -> None:
        """Delete the bundle of a name. Programs that have it mapped keep it."""
        shutil.rmtree(self.place(name), ignore_errors=True)

    def delete_unused(self) -> None:
        """Delete bundles that nobody has used for 30 days."""
        for path in self._folder.glob(f"*{_BUNDLE}"):
            with contextlib.suppress(OSError):  # another process has just deleted it
                if time.time() - path.stat().st_mtime > _UNUSED:
                    shutil.rmtree(path, ignore_errors=True)
                    path.with_name(path.name + LOCK).unlink(missing_ok=True)
