"""The partitioner: which operations the backend executes, and in what order."""

from narrowpass_planning.partitioner.assign import assign
from narrowpass_planning.partitioner.assignment import Assignment, Target, Unit
from narrowpass_planning.partitioner.schedule import schedule

__all__ = [
    "Assignment",
    "Target",
    "Unit",
    "assign",
    "schedule",
]
