"""Convolutional image classifiers, after the papers that introduced them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    """A convolution without bias, batch normalization, and an activation function if any."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.Module] | None = None,
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            *([activation()] if activation else []),
        )


class Bottleneck(nn.Module):
    """A residual block of ResNet-50 (He et al., 2015), with the stride in the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(inputs, width, activation=nn.ReLU),
            ConvNorm(width, width, 3, stride, activation=nn.ReLU),
            ConvNorm(width, 4 * width),
        )
        shortcut = stride != 1 or inputs != 4 * width
        self.shortcut = ConvNorm(inputs, 4 * width, 1, stride) if shortcut else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of a batch of images or features, NCHW."""
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


class Classifier(nn.Module):
    """Features, global average pooling, and a head of linear layers."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of a batch of images or features, NCHW."""
        out: Tensor = self.head(torch.flatten(self.pool(self.features(x)), 1))
        return out


def resnet50() -> nn.Module:
    """Return ResNet-50."""
    layers: list[nn.Module] = [ConvNorm(3, 64, 7, 2, activation=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Bottleneck(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    return Classifier(nn.Sequential(*layers), nn.Linear(channels, 1000))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection (Sandler et al., 2018)."""

    def __init__(
        self,
        inputs: int,
        expanded: int,
        outputs: int,
        kernel: int,
        stride: int,
        activation: type[nn.Module],
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(ConvNorm(inputs, expanded, activation=activation))
        layers.append(ConvNorm(expanded, expanded, kernel, stride, expanded, activation))
        layers.append(ConvNorm(expanded, outputs))
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of a batch of images or features, NCHW."""
        out: Tensor = self.body(x)
        return x + out if self.residual else out


def mobilenet_v2() -> nn.Module:
    """Return MobileNetV2 (Sandler et al., 2018)."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=nn.ReLU6)]
    channels = 32
    settings = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for factor, outputs, count, stride in settings:
        for index in range(count):
            step = stride if index == 0 else 1
            expanded = factor * channels
            layers.append(InvertedResidual(channels, expanded, outputs, 3, step, nn.ReLU6))
            channels = outputs
    layers.append(ConvNorm(channels, 1280, activation=nn.ReLU6))
    return Classifier(nn.Sequential(*layers), nn.Linear(1280, 1000))


def condition(model: nn.Module) -> nn.Module:
    """Return every normalization factors and statistics that keep the outputs well conditioned.

    One forward pass in training mode takes the statistics of random images, so that each layer's
    outputs have about unit variance; the factors are drawn near one.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 224, 224))
    return model.eval()
