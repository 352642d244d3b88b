"""What is needed to see a pass fail again: its input, its text, and the versions."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from narrowpass.errors import UsageError
from narrowpass.framework.instruments import Instrument
from narrowpass_ir.data.documents import parse_json

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass

FORMAT = 1
MODEL_FILE = "model.onnx"
DESCRIPTION_FILE = "reproducer.json"


@dataclass(frozen=True)
class Reproduction:
    """A reproducer folder, read back.

    Attributes:
        model: path of the model that the pass was given.
        pipeline: the text of the pass.
        target: the backend with its options; empty for none.
        calibration: where the calibration data came from; empty for none.
        error: what the pass raised.
    """

    model: Path
    pipeline: str
    target: str
    calibration: str
    error: str

    @classmethod
    def read(cls, folder: Path) -> Reproduction:
        """Read a folder that `Reproducer` wrote.

        Raises:
            UsageError: it is not such a folder.
        """
        try:
            content: dict[str, Any] = parse_json((folder / DESCRIPTION_FILE).read_bytes())
            if content["format"] != FORMAT:
                raise UsageError(f"{folder} was written by another version of narrowpass")
            fields = (str(content[key]) for key in ("pipeline", "target", "calibration", "error"))
            return cls(folder / MODEL_FILE, *fields)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{folder} is not a reproducer folder: {error}; "
                "`narrowpass build --reproducer DIR` writes one when a pass fails"
            ) from error


@dataclass
class Reproducer(Instrument):
    """Writes a folder when a pass fails; ``narrowpass replay DIR`` runs it again."""

    name: ClassVar[str] = "reproducer"

    dir: str = "narrowpass-reproducer"

    _model: ir.Model | None = field(default=None, init=False)
    _description: dict[str, Any] = field(default_factory=dict, init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:  # noqa: D102
        # A pass may change the model before it fails: its input must be set aside now.
        self._model = model.clone()
        self._description = {
            "format": FORMAT,
            "pipeline": str(pass_),
            "target": str(ctx.target) if ctx.target else "",
            "calibration": ctx.samples.source if ctx.samples else "",
        }

    def failed(self, pass_: Pass, error: Exception) -> None:  # noqa: D102
        from narrowpass_ir.files import create_folder
        from narrowpass_ir.io import save_model

        if self._model is None:
            return
        folder = Path(self.dir)
        create_folder(folder)
        save_model(self._model, folder / MODEL_FILE)
        self._description["error"] = f"{type(error).__name__}: {error}"
        self._description["versions"] = {
            name: version(name) for name in ("narrowpass", "onnx", "onnx-ir", "numpy")
        } | {"python": platform.python_version()}
        text = json.dumps(self._description, indent=1, sort_keys=True)
        (folder / DESCRIPTION_FILE).write_text(text + "\n", "utf-8")
