"""Compiled partitions: steps over slots, specialized for shapes, bound to memory, and executed."""

from narrowpass_planning.plan.executor import Entry, Executor, NativeCall, Pool, Tape
from narrowpass_planning.plan.loop import LoopSignature, NativeLoop, NativeLoopFactory, ScanInput
from narrowpass_planning.plan.partition import Partition, ValueLayout
from narrowpass_planning.plan.prepared import PreparedRun, Replay, ReplayFeed, ReplayResult
from narrowpass_planning.plan.python_executor import OneThread, PythonExecutor, python_run
from narrowpass_planning.plan.shapes import ShapeNode, Shapes
from narrowpass_planning.plan.step import Run, Sizing, Slot, Step

__all__ = [
    "Entry",
    "Executor",
    "LoopSignature",
    "NativeCall",
    "NativeLoop",
    "NativeLoopFactory",
    "OneThread",
    "Partition",
    "Pool",
    "PreparedRun",
    "PythonExecutor",
    "Replay",
    "ReplayFeed",
    "ReplayResult",
    "Run",
    "ScanInput",
    "ShapeNode",
    "Shapes",
    "Sizing",
    "Slot",
    "Step",
    "Tape",
    "ValueLayout",
    "python_run",
]
