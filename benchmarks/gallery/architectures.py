"""Two layers of architectures of the package ``transformers``, of real widths, drawn weights."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery.model import Model

_TEXT = {"input_ids": (1, 128)}
_PAIR = {"input_ids": (1, 128), "attention_mask": (1, 128)}
_IMAGE = {"pixel_values": (1, 3, 224, 224)}


@dataclass(frozen=True)
class Architecture:
    """What is exported.

    Attributes:
        config: the class of the configuration.
        model: the class of the model.
        inputs: shapes by name, in the order of ``forward``.
        options: of the configuration, beside those of its defaults.
    """

    config: str
    model: str
    inputs: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)


_TWO = {"num_hidden_layers": 2}
_DECODER = {**_TWO, "vocab_size": 4096, "use_cache": False, "pad_token_id": 0}

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": Architecture("BertConfig", "BertModel", _PAIR, _TWO),
    "roberta": Architecture("RobertaConfig", "RobertaModel", _PAIR, _TWO),
    "distilbert": Architecture("DistilBertConfig", "DistilBertModel", _PAIR, {"n_layers": 2}),
    "albert": Architecture(
        "AlbertConfig",
        "AlbertModel",
        _PAIR,
        {**_TWO, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "electra": Architecture("ElectraConfig", "ElectraModel", _PAIR, _TWO),
    "mpnet": Architecture("MPNetConfig", "MPNetModel", _PAIR, _TWO),
    "deberta-v2": Architecture(
        "DebertaV2Config",
        "DebertaV2Model",
        _PAIR,
        {
            **_TWO,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": -1,
            "position_buckets": 256,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "t5-encoder": Architecture("T5Config", "T5EncoderModel", _PAIR, {"num_layers": 2}),
    "bart": Architecture(
        "BartConfig",
        "BartModel",
        {"input_ids": (1, 64), "attention_mask": (1, 64), "decoder_input_ids": (1, 32)},
        {
            "encoder_layers": 2,
            "decoder_layers": 2,
            "d_model": 768,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "use_cache": False,
        },
    ),
    "gpt2": Architecture("GPT2Config", "GPT2Model", _TEXT, {"n_layer": 2, "use_cache": False}),
    "gpt-neox": Architecture(
        "GPTNeoXConfig",
        "GPTNeoXModel",
        _TEXT,
        {**_DECODER, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "opt": Architecture("OPTConfig", "OPTModel", _PAIR, _DECODER),
    "llama": Architecture(
        "LlamaConfig",
        "LlamaModel",
        _TEXT,
        {
            **_DECODER,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "intermediate_size": 2816,
        },
    ),
    "qwen2": Architecture(
        "Qwen2Config",
        "Qwen2Model",
        _TEXT,
        {
            **_DECODER,
            "hidden_size": 896,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
        },
    ),
    "qwen3": Architecture(
        "Qwen3Config",
        "Qwen3Model",
        _TEXT,
        {
            **_DECODER,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 3072,
        },
    ),
    "gemma": Architecture(
        "GemmaConfig",
        "GemmaModel",
        _TEXT,
        {
            **_DECODER,
            "hidden_size": 1024,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 128,
            "intermediate_size": 4096,
        },
    ),
    "phi": Architecture(
        "PhiConfig",
        "PhiModel",
        _TEXT,
        {**_DECODER, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "mamba": Architecture(
        "MambaConfig",
        "MambaModel",
        {"input_ids": (1, 32)},
        {**_TWO, "hidden_size": 512, "vocab_size": 4096, "use_cache": False},
    ),
    "vit": Architecture("ViTConfig", "ViTModel", _IMAGE, _TWO),
    "deit": Architecture("DeiTConfig", "DeiTModel", _IMAGE, _TWO),
    "dinov2": Architecture("Dinov2Config", "Dinov2Model", _IMAGE, {**_TWO, "image_size": 224}),
    "beit": Architecture("BeitConfig", "BeitModel", _IMAGE, _TWO),
    "yolos": Architecture("YolosConfig", "YolosModel", _IMAGE, {**_TWO, "image_size": [224, 224]}),
    "swin": Architecture(
        "SwinConfig", "SwinModel", _IMAGE, {"depths": [2, 2], "num_heads": [3, 6]}
    ),
    "segformer": Architecture(
        "SegformerConfig", "SegformerModel", _IMAGE, {"depths": [1, 1, 1, 1]}
    ),
    "convnext": Architecture("ConvNextConfig", "ConvNextModel", _IMAGE, {"depths": [1, 1, 2, 1]}),
    "convnextv2": Architecture(
        "ConvNextV2Config", "ConvNextV2Model", _IMAGE, {"depths": [1, 1, 2, 1]}
    ),
    "resnet": Architecture("ResNetConfig", "ResNetModel", _IMAGE, {"depths": [1, 1, 1, 1]}),
    "regnet": Architecture("RegNetConfig", "RegNetModel", _IMAGE, {"depths": [1, 1, 1, 1]}),
    "mobilenet-v1": Architecture("MobileNetV1Config", "MobileNetV1Model", _IMAGE),
    "mobilenet-v2": Architecture("MobileNetV2Config", "MobileNetV2Model", _IMAGE),
    "efficientnet": Architecture(
        "EfficientNetConfig",
        "EfficientNetModel",
        _IMAGE,
        {"width_coefficient": 1.0, "depth_coefficient": 0.5, "hidden_dim": 1280},
    ),
    "poolformer": Architecture(
        "PoolFormerConfig", "PoolFormerModel", _IMAGE, {"depths": [1, 1, 1, 1]}
    ),
    "mobilevit": Architecture(
        "MobileViTConfig", "MobileViTModel", {"pixel_values": (1, 3, 256, 256)}
    ),
    "clip-text": Architecture("CLIPTextConfig", "CLIPTextModel", {"input_ids": (1, 77)}, _TWO),
    "clip-vision": Architecture("CLIPVisionConfig", "CLIPVisionModel", _IMAGE, _TWO),
    "siglip-vision": Architecture("SiglipVisionConfig", "SiglipVisionModel", _IMAGE, _TWO),
    "wav2vec2": Architecture("Wav2Vec2Config", "Wav2Vec2Model", {"input_values": (1, 16000)}, _TWO),
    "hubert": Architecture("HubertConfig", "HubertModel", {"input_values": (1, 16000)}, _TWO),
    "whisper-encoder": Architecture(
        "WhisperConfig",
        "WhisperModel.encoder",
        {"input_features": (1, 80, 3000)},
        {"encoder_layers": 2, "decoder_layers": 2},
    ),
    "mixtral": Architecture(
        "MixtralConfig",
        "MixtralModel",
        {"input_ids": (1, 32)},
        {
            **_DECODER,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 1024,
            "num_local_experts": 4,
        },
    ),
}


def models() -> list[Model]:
    """Return all architectures, where torch and transformers are installed."""
    if (
        importlib.util.find_spec("transformers") is None
        or importlib.util.find_spec("torch") is None
    ):
        return []
    return [
        Model(name, "transformers", lambda folder, name=name: export(name, folder))
        for name in ARCHITECTURES
    ]


def export(name: str, folder: Path) -> Path:
    """Write an architecture as an ONNX file, unless it is there."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    import torch
    import transformers

    entry = ARCHITECTURES[name]
    torch.manual_seed(0)
    config = getattr(transformers, entry.config)(**entry.options)
    config._attn_implementation = "eager"  # noqa: SLF001  # the public way is an argument of some
    config._experts_implementation = "batched_mm"  # noqa: SLF001  # the others have no export
    first, *rest = entry.model.split(".")
    model = getattr(transformers, first)(config).eval()
    for part in rest:
        model = getattr(model, part)
    names = list(entry.inputs)

    class First(torch.nn.Module):
        """Returns the first tensor alone."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *given: Any) -> Any:
            """Run the model."""
            return self.inner(**dict(zip(names, given, strict=True)), return_dict=False)[0]

    feeds = []
    for key, shape in entry.inputs.items():
        if key.endswith("ids"):
            feeds.append(torch.randint(5, 1000, shape))
        elif key.endswith("mask"):
            feeds.append(torch.ones(shape, dtype=torch.int64))
        else:
            feeds.append(torch.randn(shape))
    write(First().eval(), tuple(feeds), path, names)
    return path


def write(
    model: Any,
    feeds: tuple[Any, ...],
    path: Path,
    names: list[str],
    axes: Mapping[str, Mapping[int, str]] | None = None,
) -> None:
    """Export with torch.onnx: by a trace, or where that lacks an operator, from torch.export.

    Args:
        model: of torch.
        feeds: its arguments.
        path: of the file.
        names: of the inputs.
        axes: names of dimensions that are not fixed, by input; a trace has them, the other not.
    """
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    named = {"input_names": names, "output_names": ["y"]}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            traced = {**named, "dynamic_axes": axes, "dynamo": False, "opset_version": 17}
            torch.onnx.export(model, feeds, str(draft), **traced)
        except torch.onnx.errors.UnsupportedOperatorError:
            program = torch.onnx.export(model, feeds, **named, dynamo=True, opset_version=18)
            program.save(str(draft), external_data=False)
    draft.rename(path)
