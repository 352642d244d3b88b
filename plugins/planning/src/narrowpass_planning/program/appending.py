"""The methods of a bundle with state, compiled so that sessions append to caches in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from narrowpass.state.plain import states_of
from narrowpass_ir.data.feeds import FeedChecker
from narrowpass_ir.garbage import pause_collection
from narrowpass_ir.verify import Signature
from narrowpass_planning.program.compiler import MethodCompiler
from narrowpass_planning.program.document import Appends
from narrowpass_planning.program.models import forget_weights, inferred
from narrowpass_planning.program.sources import Sources
from narrowpass_planning.state.appending import append_in_place
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.group_query import mark_appended
from narrowpass_planning.state.method import AppendingMethod
from narrowpass_planning.weights import names
from narrowpass_planning.weights.packing import packing
from narrowpass_planning.weights.session import Session

if TYPE_CHECKING:
    from narrowpass_ir.state import State
    from narrowpass_planning.program.method import Method


class AppendingMethods:
    """Methods that append to caches, compiled when a session first asks for a type of elements.

    Not safe for several threads: the caller holds a lock.

    Args:
        sources: of the program.
        signatures: of the bundle's methods, by name.
        compiler: of the program.
    """

    def __init__(
        self, sources: Sources, signatures: Mapping[str, Signature], compiler: MethodCompiler
    ) -> None:
        self._sources, self._signatures, self._compiler = sources, signatures, compiler
        self._compiled: dict[str, dict[str, AppendingMethod] | AppendError] = {}
        self._sessions: list[Session] = []  # weights stay as long as their session

    @property
    def compiled(self) -> list[Method]:
        """The methods that are compiled, for each type of elements."""
        groups = [found for found in self._compiled.values() if not isinstance(found, AppendError)]
        return [each.method for found in groups for each in found.values()]

    @property
    def sessions(self) -> Sequence[Session]:
        """The sessions of the weights cache that hold their weights."""
        return self._sessions

    def stored_as(self, dtype: str) -> dict[str, AppendingMethod] | AppendError:
        """Return the methods that append to caches with elements of type `dtype`, by their names.

        Returns:
            Nothing where no state grows; the reason where caches cannot be appended to in place.

        Raises:
            BackendError: a method that cannot be compiled.
        """
        if dtype not in self._compiled:
            try:
                self._compiled[dtype] = self._compile(dtype)
            except AppendError as error:
                self._compiled[dtype] = error
        return self._compiled[dtype]

    def _compile(self, dtype: str) -> dict[str, AppendingMethod]:
        found: dict[str, AppendingMethod] = {}
        sources, bundle = self._sources, self._sources.bundle
        packed = packing(bundle, sources.options, sources.cache, sources.packer)
        with pause_collection(), packed as session:
            for name, signature in self._signatures.items():
                method = self._method(name, signature, dtype, session)
                if method is not None:
                    found[name] = method
        if session is not None:
            self._sessions.append(session)
        if not found:
            self._check_fixed()
        if len({frozenset(method.caches) for method in found.values()}) > 1:
            raise AppendError("its methods append to different caches")
        return found

    def _check_fixed(self) -> None:
        """Say of caches of fixed size, which do not grow, why they are fed to each run.

        Raises:
            AppendError: a method has one.
        """
        bundle = self._sources.bundle
        for name, model in bundle.methods.items():
            states = {state.output: state for state in bundle.states}
            for output in model.graph.outputs:
                state, node = states.get(output.name or ""), output.producer()
                if state is not None and node is not None and node.op_type == "TensorScatter":
                    raise AppendError(
                        f"method {name!r}: cache {state.input!r} has a fixed size, and node "
                        f"{node.name or output.name!r} (TensorScatter) writes rows into a copy"
                    )

    def _method(
        self, name: str, signature: Signature, dtype: str, session: Session | None
    ) -> AppendingMethod | None:
        """Restore or compile one method; None where it reads no state that grows."""
        given, updated = states_of(signature, self._sources.bundle.states)
        taken = [state for state, _ in given]
        grown = [state for state in taken if state.axis is not None]
        if not grown:
            return None
        outputs = {state.output for state in updated}
        if lost := [state.input for state in grown if state.output not in outputs]:
            raise AppendError(f"method {name!r} reads cache {lost[0]!r} and appends nothing")
        method, appends = self._compiler.restore(name, session, dtype) or (None, None)
        if method is None or appends is None:
            method, appends = self._compile_method(name, taken, dtype, session)
            self._compiler.store(method, session, dtype, appends)
        fixed = [state for state in updated if state.axis is None]
        checker, fed = appends
        return AppendingMethod(method, checker, taken, fixed, fed)

    def _compile_method(
        self, name: str, taken: Sequence[State], dtype: str, session: Session | None
    ) -> tuple[Method, Appends]:
        bundle, grown = self._sources.bundle, [s for s in taken if s.axis is not None]
        clone = bundle.methods[name].clone()
        counted = mark_appended(clone.graph, grown)
        prepared = inferred(clone, self._compiler.lowering)
        checker = FeedChecker.of(prepared.graph, name).without({state.input for state in taken})
        fed = append_in_place(prepared, grown, dtype).joined(counted)
        contents = {} if session is None else names.identities(bundle)
        method = self._compiler.compile(name, prepared, session, contents)
        if method.decided:
            raise AppendError(f"branches of method {name!r} depend on shapes")
        forget_weights(prepared)
        return method, (checker, fed)
