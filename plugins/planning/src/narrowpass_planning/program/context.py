"""State that the methods of a program share with the bodies of their control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from narrowpass_planning.host.bodies import Compiled
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.program.lowering import Lowering
from narrowpass_planning.weights.session import Session
from narrowpass_planning.weights.weight import Weight


@dataclass(frozen=True)
class CompileContext:
    """The lowering, workspace and weights cache with which a program compiles a method.

    Attributes:
        lowering: of the backend.
        workspace: memory of intermediate values.
        session: of the weights cache; None to pack for this method alone.
        identities: names of the contents of tensors, by their ``id``, or weights of outer scopes;
            see `Weight.identity`.
        compile: compiles the body of a control flow operator.
    """

    lowering: Lowering[Any]
    workspace: Workspace
    compile: Callable[[str, ir.Model, CompileContext], Compiled]
    session: Session | None = None
    identities: Mapping[int, str | Weight] = field(default_factory=dict)
