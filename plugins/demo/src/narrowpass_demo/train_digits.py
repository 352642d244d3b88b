"""Train the demo's digit classifier and set its held-out test images aside.

Writes two files, by default beside this script:

``digits.onnx``
    A small convolutional classifier in float32. Input ``image``: float32
    ``[batch, 1, 8, 8]``, pixel values 0..1 (the stored pixel divided by 16).
    Output ``logits``: float32 ``[batch, 10]``. The graph is exported unoptimised on
    purpose: batch normalisation is not folded into the convolutions, the input is cast
    to the type it has, its normalisation is computed from constants, and the reshape
    computes its shape with Shape, Gather, Mul and Concat, all as is common in exported
    models.
``digits.npz``
    The test images. ``image``: uint8 ``[n, 8, 8]``, values 0..16. ``label``: uint8
    ``[n]``. Training never sees them, nor are they used to choose anything: the number
    of epochs is fixed and the last weights are kept. They are a stratified random
    quarter of the data, so the same writers occur in both parts.

Data: the 1797 handwritten digits of ``sklearn.datasets.load_digits``, a copy of the
test part of "Optical Recognition of Handwritten Digits" (optdigits) by E. Alpaydin and
C. Kaynak, UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49,
licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/).
``digits.npz`` holds a quarter of those images, their pixels stored as uint8 and
otherwise unchanged.

Needs: scikit-learn, torch 2.13 (the CPU build), onnx. Nothing is downloaded. Takes
less than a minute on one thread. The same versions on the same kind of CPU produce the
same bytes. Another CPU may add in another order; training amplifies that, so the
weights differ and so may a few predictions. ``digits.npz`` does not depend on the CPU.

Usage: ``python train_digits.py [--output-dir DIR] [--epochs N] [--seed N]``. Nothing is
written, and the exit code is 1, if the accuracy on the test images is below
``--min-accuracy``.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

CLASSES = 10
PIXEL_MAX = 16
TEST_IMAGES = 450
BATCH = 64
PEAK_LEARNING_RATE = 4e-3
OPSET = 18


class Split(NamedTuple):
    """The images, uint8 ``[n, 8, 8]``, and labels, uint8 ``[n]``, of both parts."""

    train_image: Bytes
    test_image: Bytes
    train_label: Bytes
    test_label: Bytes


class Normalize(nn.Module):
    """Shift and scale the input to mean 0 and deviation 1.

    The statistics are kept in stored-pixel units, 0..16, and converted in the graph:
    that conversion is a constant expression for a compiler to fold.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([mean]).reshape(1, 1, 1, 1))
        self.register_buffer("std", torch.tensor([std]).reshape(1, 1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """Return the normalised image."""
        # Any pixel type will do in torch; in the exported model this is a no-op.
        image = image.to(torch.float32)
        return (image - self.mean / PIXEL_MAX) / (self.std / PIXEL_MAX)


class ConvNorm(nn.Sequential):
    """Convolution without bias, then batch normalisation."""

    def __init__(self, inputs: int, outputs: int, kernel: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False
        )
        self.norm = nn.BatchNorm2d(outputs)


class Residual(nn.Module):
    """A depthwise-separable convolution with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = ConvNorm(channels, channels, 3, groups=channels)
        self.relu = nn.ReLU()
        self.pointwise = ConvNorm(channels, channels, 1)
        self.relu_out = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations, of the input's shape."""
        y: Tensor = self.pointwise(self.relu(self.depthwise(x)))
        z: Tensor = self.relu_out(x + y)
        return z


class Head(nn.Module):
    """Flatten and classify."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.2)
        self.classes = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        # Spelled out instead of nn.Flatten: exports as shape arithmetic.
        x = x.reshape(x.shape[0], x.shape[1] * x.shape[2] * x.shape[3])
        x = self.dropout(self.relu(self.hidden(x)))
        logits: Tensor = self.classes(x)
        return logits


class DigitNet(nn.Module):
    """About 12,000 parameters: stem, two residual blocks, two poolings, two layers."""

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.stem = nn.Sequential(ConvNorm(1, 16, 3), nn.ReLU())
        self.block1 = Residual(16)
        self.pool1 = nn.MaxPool2d(2)
        self.expand = nn.Sequential(ConvNorm(16, 32, 1), nn.ReLU())
        self.block2 = Residual(32)
        self.pool2 = nn.AvgPool2d(2)
        self.head = Head(32 * 2 * 2, 64)

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits of images with pixels 0..1."""
        x = self.stem(self.normalize(image))
        x = self.pool1(self.block1(x))
        x = self.pool2(self.block2(self.expand(x)))
        logits: Tensor = self.head(x)
        return logits


def split_digits(seed: int) -> Split:
    """Split the digits; each class has the same share in both parts."""
    digits = load_digits()
    image = digits.images.astype(np.uint8)
    label = digits.target.astype(np.uint8)
    return Split(
        *train_test_split(image, label, test_size=TEST_IMAGES, stratify=label, random_state=seed)
    )


def to_input(image: Bytes) -> Tensor:
    """Convert stored pixels, 0..16, to what the model takes."""
    return torch.from_numpy(image).to(torch.float32).unsqueeze(1) / PIXEL_MAX


def jitter(image: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate, scale and shift each image a little, at random."""

    def uniform(limit: float) -> Tensor:
        return (torch.rand(len(image), generator=generator) * 2 - 1) * limit

    angle, scale = uniform(0.15), 1 + uniform(0.1)
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    affine = torch.stack([cos, -sin, uniform(0.2), sin, cos, uniform(0.2)], dim=1).reshape(-1, 2, 3)
    grid = functional.affine_grid(affine, list(image.shape), align_corners=False)
    return functional.grid_sample(image, grid, align_corners=False)


def train(split: Split, epochs: int, seed: int) -> DigitNet:
    """Train on the training part only; the result is in evaluation mode."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    image = to_input(split.train_image)
    label = torch.from_numpy(split.train_label).to(torch.int64)
    model = DigitNet(mean=float(split.train_image.mean()), std=float(split.train_image.std()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.02)
    # Batch statistics of a small remainder would be poor: each epoch drops it.
    steps = len(image) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, total_steps=epochs * steps
    )
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(image), generator=generator)
        for step in range(steps):
            batch = order[step * BATCH : (step + 1) * BATCH]
            logits = model(jitter(image[batch], generator))
            loss = functional.cross_entropy(logits, label[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return model.eval()


def accuracy(model: DigitNet, image: Bytes, label: Bytes) -> float:
    """Return the share of images whose largest logit is the label's."""
    with torch.no_grad():
        predicted = model(to_input(image)).argmax(dim=1).numpy()
    return float((predicted == label).mean())


def export(model: DigitNet) -> bytes:
    """Export without optimisation; nothing in the file says where it was built."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        file = Path(folder) / "digits.onnx"
        # The TorchScript exporter is deprecated, but it is the one that names nodes
        # by module ("/head/hidden/Gemm") and leaves the graph as it was traced.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (torch.zeros(1, 1, 8, 8),),
            file,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
            # EVAL would fold batch normalisation; the model is in eval mode already.
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
        )
        proto = onnx.load(file)
    strip(proto)
    onnx.checker.check_model(proto, full_check=True)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def strip(proto: onnx.ModelProto) -> None:
    """Remove what describes the exporting machine, and the intermediate types."""
    for field in ("producer_name", "producer_version", "doc_string", "metadata_props"):
        proto.ClearField(field)
    graph = proto.graph
    graph.name = "digits"
    graph.ClearField("value_info")
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def pack(arrays: dict[str, Bytes]) -> bytes:
    """Write what ``np.savez_compressed`` would, with a fixed time for each entry."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            archive.writestr(entry, content.getvalue(), compresslevel=9)
    return buffer.getvalue()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Train the demo's digit classifier; write digits.onnx, digits.npz."
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path(__file__).parent,
        help="where to write (default: beside this script)",
    )
    parser.add_argument("--epochs", type=int, default=80, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--min-accuracy",
        type=float,
        default=0.985,
        help="write nothing below this test accuracy (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, check, write; return the exit code."""
    options = parse_arguments(arguments)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)

    split = split_digits(options.seed)
    model = train(split, options.epochs, options.seed)
    reached = accuracy(model, split.test_image, split.test_label)
    sys.stdout.write(f"{reached:.2%} of {len(split.test_label)} test images\n")
    if reached < options.min_accuracy:
        sys.stderr.write(f"below {options.min_accuracy:.2%}: nothing written\n")
        return 1

    files = {
        "digits.onnx": export(model),
        "digits.npz": pack({"image": split.test_image, "label": split.test_label}),
    }
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (options.output_dir / name).write_bytes(content)
        sys.stdout.write(f"{name}: {len(content)} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
