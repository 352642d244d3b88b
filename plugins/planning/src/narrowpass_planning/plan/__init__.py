"""Compiled partitions: steps over slots, sized for the feeds' shapes, bound to memory, and run."""

from narrowpass_planning.plan.executor import Entry, Executor, Pool, Tape
from narrowpass_planning.plan.looping import Repeat, Repeated, Roles, Scanned
from narrowpass_planning.plan.partition import Partition, Place
from narrowpass_planning.plan.prepared import Prepared
from narrowpass_planning.plan.python_executor import OneThread, PythonExecutor, python_run
from narrowpass_planning.plan.shapes import ShapeNode, Shapes
from narrowpass_planning.plan.step import Run, Sizing, Slot, Step

__all__ = [
    "Entry",
    "Executor",
    "OneThread",
    "Partition",
    "Place",
    "Pool",
    "Prepared",
    "PythonExecutor",
    "Repeat",
    "Repeated",
    "Roles",
    "Run",
    "Scanned",
    "ShapeNode",
    "Shapes",
    "Sizing",
    "Slot",
    "Step",
    "Tape",
    "python_run",
]
