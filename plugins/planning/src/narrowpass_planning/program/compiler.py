"""The compilation of a program's methods, with what all of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.program.compiled_graph import CompileContext
from narrowpass_planning.program.document import Appends
from narrowpass_planning.program.lowering import Lowering
from narrowpass_planning.program.method import Method, compile_body, compile_method
from narrowpass_planning.program.stored_methods import StoredMethods
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.weights.session import Session


class MethodCompiler:
    """Compiles methods of one program.

    Args:
        lowering: of the backend.
        options: of the program.
        share_workspace: whether all methods share one workspace.
        stored: its methods that were stored; None where they are not.

    Attributes:
        lowering: of the backend.
    """

    def __init__(
        self,
        lowering: Lowering[Any],
        options: CompileOptions,
        *,
        share_workspace: bool,
        stored: StoredMethods | None = None,
    ) -> None:
        self.lowering = lowering
        self._stored = stored
        self._keep, self._observe = options.keep, options.observe
        self._shared = self._new_workspace() if share_workspace else None

    def compile(
        self,
        name: str,
        model: ir.Model,
        session: Session | None,
        identities: Mapping[int, str],
        overridden: frozenset[str] = frozenset(),
    ) -> Method:
        """Compile a method.

        Args:
            name: of the method.
            model: from `inferred`.
            session: of the weights cache; None to pack for this method alone.
            identities: see `CompileContext.identities`.
            overridden: inputs with defaults that are fed.

        Raises:
            AppendError: a cache that cannot be appended to in place.
            BackendError: a method that cannot be compiled.
        """
        context = self._context(name, session, identities)
        try:
            return compile_method(
                name, model, self._keep, overridden, context, observe=self._observe
            )
        except AppendError as error:
            raise AppendError(f"method {name!r}: {error}") from error
        except BackendError as error:
            raise BackendError(f"method {name!r}: {error}") from error

    def restore(
        self, name: str, session: Session | None, form: str = ""
    ) -> tuple[Method, Appends | None] | None:
        """Return a method that was stored; None where it is to be compiled.

        Args:
            name: of the method.
            session: of the weights cache.
            form: the type of the caches that it appends to; empty where these are fed.
        """
        if self._stored is None or session is None:
            return None
        return self._stored.load(name, form, self._context(name, session, {}))

    def store(
        self,
        method: Method,
        session: Session | None,
        form: str = "",
        appends: Appends | None = None,
    ) -> None:
        """Store a method that was compiled; see `StoredMethods.save`."""
        if self._stored is None or session is None:
            return
        counts = dataclasses.replace(session.counts)
        self._stored.save(method, form, appends, self._context(method.name, session, {}))
        session.counts = counts  # each weight of it was counted when it was packed

    def forget_stored(self) -> None:
        """Let go of the bundle, once all methods are there."""
        self._stored = None

    def _context(
        self, name: str, session: Session | None, identities: Mapping[int, str]
    ) -> CompileContext:
        if session is not None:
            session.label = name
        workspace = self._shared or self._new_workspace()
        return CompileContext(self.lowering, workspace, compile_body, session, identities)

    def _new_workspace(self) -> Workspace:
        return Workspace(self.lowering.executor.extra_bytes)
