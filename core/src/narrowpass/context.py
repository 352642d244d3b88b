"""What a pass may ask and tell while it runs. No globals: all of it is here."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowpass.backend import Backend
    from narrowpass.calibration import Samples
    from narrowpass.classify import OpClassifier

Number = int | float


@dataclass(frozen=True)
class Decision:
    """What a pass decided about one node, for the report.

    Attributes:
        node: the node's name, or the value's where the decision is about a value.
        op_type: the node's operator, empty for a value.
        decision: what was decided, such as ``folded``, ``green``, ``kept``.
        by: who decided: a classifier, an option, a rule.
        reason: why, as a sentence; empty where the decision says all.
        measured: the value that was compared, where there was one.
        limit: what it was compared with.
        error: how far the node's result was from that of the model as it was, on data: the
            largest difference over the largest magnitude; None where nobody looked.
        open: whether a later run of the pass may decide otherwise, as for a node that was left
            alone. Where passes run to a fixed point, the last word counts.
    """

    node: str
    op_type: str
    decision: str
    by: str
    reason: str = ""
    measured: Number | None = None
    limit: Number | None = None
    error: Number | None = None
    open: bool = False

    def to_json(self) -> dict[str, Any]:
        """Give the fields that say something, for JSON."""
        fields = asdict(self)
        del fields["open"]  # in a finished report nothing is
        return {key: value for key, value in fields.items() if value not in (None, "")}


@dataclass(frozen=True)
class Context:
    """What `Pass.run` may ask and tell.

    Attributes:
        target: the backend that the model is built for; None where there is none.
        classifiers: the installed op classifiers by name.
        samples: calibration data, None where the caller gave none.
        counters: what the pass counts, by name; shown in its summary line.
        decisions: what the pass decided, node by node; written to ``reports/NN-pass.json``.
        log: for warnings and progress notes.
        strict: whether each pass, also one within another, is checked to tell truly whether it
            changed the model. For tests: it costs time.
    """

    target: Backend | None = None
    classifiers: Mapping[str, OpClassifier] = field(default_factory=dict)
    samples: Samples | None = None
    counters: Counter[str] = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)
    log: logging.Logger = logging.getLogger("narrowpass")
    strict: bool = False
