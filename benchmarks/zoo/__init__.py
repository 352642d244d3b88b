"""Well-known models for the benchmarks, exported to ONNX by either of torch's exporters.

The weights are random and seeded, except for MiniLM, whose trained ones come as a package. Batch
normalization has statistics and factors that are not trivial. Needs the dependency group
``models``; ``python benchmarks/export.py`` is the command.
"""

from __future__ import annotations

from zoo.export import EXPORTERS, MODELS, build, export, feeds

__all__ = ["EXPORTERS", "MODELS", "build", "export", "feeds"]
