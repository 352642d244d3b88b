"""Small networks of torch: recurrent ones, a detector's blocks, an image to image net."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gallery.architectures import write
from gallery.model import Model


def _recurrent(kind: str, **options: Any) -> tuple[Any, tuple[Any, ...]]:
    import torch

    class Net(torch.nn.Module):
        """A recurrent network and a linear layer."""

        def __init__(self) -> None:
            super().__init__()
            self.cells = getattr(torch.nn, kind)(128, 256, batch_first=False, **options)
            self.head = torch.nn.Linear(512 if options.get("bidirectional") else 256, 32)

        def forward(self, x: Any) -> Any:
            """Return scores of each step."""
            return self.head(self.cells(x)[0])

    return Net(), (torch.randn(64, 1, 128),)


def _detector() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from torch import nn

    def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Sequential:
        layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())

    class Split(nn.Module):
        """Half of the channels goes through two bottlenecks; all parts are joined."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            half = channels // 2
            self.first, self.last = conv(channels, channels, 1), conv(2 * channels, channels, 1)
            self.blocks = nn.ModuleList(
                nn.Sequential(conv(half, half), conv(half, half)) for _ in range(2)
            )

        def forward(self, x: Any) -> Any:
            """Run the blocks one after the other."""
            parts = list(self.first(x).chunk(2, 1))
            for block in self.blocks:
                parts.append(parts[-1] + block(parts[-1]))
            return self.last(torch.cat(parts, 1))

    class Detector(nn.Module):
        """Three scales, pooling by 5 three times, and an upsampling path."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2), Split(32))
            self.down = nn.Sequential(conv(32, 64, 3, 2), Split(64))
            self.deep = nn.Sequential(conv(64, 128, 3, 2), Split(128))
            self.pool, self.mix = nn.MaxPool2d(5, 1, 2), conv(512, 128, 1)
            self.up, self.join = nn.Upsample(scale_factor=2), conv(192, 64, 1)
            self.head = nn.Conv2d(64, 64 + 8, 1)

        def forward(self, x: Any) -> Any:
            """Return boxes as weighted means of 16 bins, and scores."""
            middle = self.down(self.stem(x))
            deep = self.deep(middle)
            pools = [deep]
            for _ in range(3):
                pools.append(self.pool(pools[-1]))
            deep = self.mix(torch.cat(pools, 1))
            found = self.head(self.join(torch.cat([self.up(deep), middle], 1)))
            boxes = found[:, :64].reshape(1, 4, 16, -1).softmax(2)
            bins = torch.arange(16, dtype=torch.float32).reshape(1, 1, 16, 1)
            scores = found[:, 64:].reshape(1, 8, -1).sigmoid()
            return torch.cat([(boxes * bins).sum(2), scores], 1)

    return Detector().eval(), (torch.randn(1, 3, 320, 320),)


def _image_to_image() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from torch import nn

    def double(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.ReLU(),
        )

    class Net(nn.Module):
        """Two scales down and up again with transposed convolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = double(3, 32), double(32, 64), double(64, 128)
            self.up_b, self.up_a = (
                nn.ConvTranspose2d(128, 64, 2, 2),
                nn.ConvTranspose2d(64, 32, 2, 2),
            )
            self.back_b, self.back_a = double(128, 64), double(64, 32)
            self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(32, 2, 1)

        def forward(self, x: Any) -> Any:
            """Return two maps of the image's size."""
            a = self.a(x)
            b = self.b(self.pool(a))
            c = self.c(self.pool(b))
            b = self.back_b(torch.cat([self.up_b(c), b], 1))
            return self.last(self.back_a(torch.cat([self.up_a(b), a], 1)))

    return Net().eval(), (torch.randn(1, 3, 128, 128),)


NETS: Mapping[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "lstm": lambda: _recurrent("LSTM"),
    "bilstm, 2 layers": lambda: _recurrent("LSTM", num_layers=2, bidirectional=True),
    "gru": lambda: _recurrent("GRU"),
    "bigru": lambda: _recurrent("GRU", bidirectional=True),
    "rnn": lambda: _recurrent("RNN"),
    "detector": _detector,
    "image to image": _image_to_image,
}


def models() -> list[Model]:
    """Return all networks, where torch is installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    return [Model(name, "torch", lambda folder, name=name: export(name, folder)) for name in NETS]


def export(name: str, folder: Path) -> Path:
    """Write a network as an ONNX file, unless it is there."""
    import torch

    path = folder / f"{name.replace(', ', '-').replace(' ', '-')}.onnx"
    if not path.exists():
        torch.manual_seed(0)
        model, feeds = NETS[name]()
        write(model.eval(), feeds, path, ["x"])
    return path
