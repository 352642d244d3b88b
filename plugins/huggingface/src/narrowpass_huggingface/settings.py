"""``config.json``: fields with their types, and what they are where a file leaves them out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from narrowpass_decoders import Rotary, rotary
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.errors import ModelError

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""The activations of `narrowpass_decoders` by the names that transformers has."""


@dataclass(frozen=True)
class Settings:
    """The fields of a ``config.json``.

    Attributes:
        kind: ``model_type``.
        fields: all fields.
    """

    kind: str
    fields: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> Settings:
        """Read the file.

        Raises:
            ModelError: it is missing or damaged, or says of weights that they are quantized.
        """
        try:
            raw = parse_json(file.read_bytes())
        except OSError as error:
            raise ModelError(f"config.json cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelError(f"config.json is no JSON: {error}") from error
        if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
            raise ModelError("config.json has no model_type; it is not the one of a model")
        if raw.get("quantization_config"):
            raise ModelError(
                "its weights are quantized (quantization_config), which is not supported; use the "
                "model that they were quantized from, and a pass such as int4"
            )
        return cls(raw["model_type"], raw)

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first of some fields that there is, a whole number from 1 on.

        Raises:
            ModelError: there is none and no default, or it is something else.
        """
        value = self._first(names, default)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise ModelError(f"config.json: {names[0]} is {value!r:.60}, and no number from 1 on")
        return value

    def layers(self, *names: str, tensors: Collection[str]) -> int:
        """Return a number of layers; each has several of the tensors. Raises as `count` does."""
        value = self.count(*names)
        if value > len(tensors):
            raise ModelError(
                f"config.json: {names[0]} is {value}, and there are no more than {len(tensors)} "
                "tensors"
            )
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """Return a field that is a number. Raises as `count` does."""
        value = self._first(names, default)
        if type(value) not in (int, float):
            raise ModelError(f"config.json: {names[0]} is {value!r:.60}, and no number")
        return _float(value, names[0])

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a field that is true or false. Raises as `count` does."""
        value = self._first([name], default)
        if not isinstance(value, bool):
            raise ModelError(f"config.json: {name} is {value!r:.60}, and neither true nor false")
        return value

    def activation(self, *names: str, default: str | None = None) -> str:
        """Return the name of an activation. Raises as `count` does."""
        value = self._first(names, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(
                f"config.json: the activation {value!r:.60} is not supported; supported are "
                f"{', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[value]

    def refuse(self, name: str) -> None:
        """Refuse a setting that changes what the model computes.

        Raises:
            ModelError: it is set.
        """
        if self.fields.get(name):
            raise ModelError(f"config.json: {name} is set, which is not supported")

    def _first(self, names: Any, default: Any) -> Any:
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        if default is None:
            raise ModelError(f"config.json lacks {names[0]}")
        return default

    @property
    def head(self) -> int:
        """Elements of a head."""
        width = self.count("hidden_size", "n_embd")
        heads = self.count("num_attention_heads", "n_head")
        return self.count("head_dim", default=max(1, width // heads))

    def rotary(self, layer_type: str, *, partial: float = 1.0) -> Rotary:
        """Return the rotary embedding of layers of a type.

        Args:
            layer_type: ``full_attention`` or ``sliding_attention``.
            partial: which share of a head is rotated where the file does not say it.

        Raises:
            ModelError: a kind of scaling that is not supported.
        """
        found = self.fields.get("rope_parameters")
        given = dict(found) if isinstance(found, dict) else {}
        if isinstance(given.get(layer_type), dict):
            given = dict(given[layer_type])
        elif not given:
            older = self.fields.get("rope_scaling")
            given = dict(older) if isinstance(older, dict) else {}
            local = self.fields.get("rope_local_base_freq")
            if local is not None and layer_type == "sliding_attention":
                given = {"rope_theta": local}
        base = given.get("rope_theta", self.fields.get("rope_theta"))
        base = self.number("rotary_emb_base", default=10_000.0) if base is None else base
        if type(base) not in (int, float):
            raise ModelError(f"config.json: rope_theta is {base!r:.60}, and no number")
        share = given.get("partial_rotary_factor")
        if share is None:
            share = self.number("partial_rotary_factor", "rotary_pct", default=partial)
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise ModelError(f"config.json: partial_rotary_factor is {share!r:.60}, not 0 to 1")
        context = self.number("max_position_embeddings", default=0.0)
        given.setdefault(
            "original_max_position_embeddings",
            self.fields.get("original_max_position_embeddings") or context,
        )
        size = int(self.head * float(share))
        return rotary(size, _float(base, "rope_theta"), scaling=given, positions=int(context))


def _float(value: float, name: str) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise ModelError(f"config.json: {name} is larger than a float") from error
