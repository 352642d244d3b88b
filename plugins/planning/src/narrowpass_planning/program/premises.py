"""What the methods of a program, and the bodies of their control flow, have in common."""

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
class Premises:
    """What a method has from its program.

    Attributes:
        lowering: of the backend.
        workspace: the memory that it computes in.
        session: of the weights cache; None to pack for this method alone.
        identities: names of the contents of tensors, by their ``id``, or what is known of them
            outside of a subgraph; see `Weight.identity`.
        compile: compiles the body of a control flow operator.
    """

    lowering: Lowering[Any]
    workspace: Workspace
    compile: Callable[[str, ir.Model, Premises], Compiled]
    session: Session | None = None
    identities: Mapping[int, str | Weight] = field(default_factory=dict)
