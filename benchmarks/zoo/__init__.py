"""Well-known models for the benchmarks, exported to ONNX by torch.

The weights are random and seeded, except for MiniLM, whose trained ones come as a package. Batch
normalization has statistics and factors that are not trivial. Needs the dependency group
``models``.
"""

from __future__ import annotations

from zoo.export import MODELS, build, export, feeds

__all__ = ["MODELS", "build", "export", "feeds"]
