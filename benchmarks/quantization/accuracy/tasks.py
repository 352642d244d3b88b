"""What is computed with a model, and how good it is compared with float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Outputs = Mapping[str, Array]
Run = Callable[[Feeds], Outputs]


@dataclass(frozen=True)
class Task:
    """A model with data.

    Attributes:
        model: the ONNX file.
        calibration: samples that are quantized with.
        samples: what is computed.
        judge: returns the accuracy of outputs, given those of the float model, both of all samples.
        goal: what is asked for, as text.
        transformer: whether the model is one, which some tools have an option for.
    """

    model: Path
    calibration: Sequence[Feeds]
    samples: Sequence[Feeds]
    judge: Callable[[Sequence[Outputs], Sequence[Outputs]], dict[str, float]]
    goal: str
    transformer: bool = False


def digits(folder: Path, _data: Path) -> Task:
    """The digit classifier of the demo: accuracy on its 450 images, of which 64 calibrate."""
    from importlib import resources

    from narrowpass_demo.run import load_images

    path = folder / "digits.onnx"
    path.write_bytes((resources.files("narrowpass_demo") / "digits.onnx").read_bytes())
    images, labels = load_images()
    samples = [{"image": images[number : number + 1]} for number in range(len(images))]

    def judge(got: Sequence[Outputs], right: Sequence[Outputs]) -> dict[str, float]:
        def accuracy(found: Sequence[Outputs]) -> float:
            guesses = [int(next(iter(out.values())).argmax()) for out in found]
            return 100 * float(np.mean(np.array(guesses) == labels))

        return {"accuracy %": accuracy(got), "lost %": accuracy(right) - accuracy(got)}

    return Task(path, samples[:64], samples, judge, "0.5 % lost at most")


def minilm(folder: Path, _data: Path) -> Task:
    """MiniLM: cosines of embeddings to those of float32, the least and the mean of 96 sentences."""
    import zoo
    from transformers import AutoTokenizer
    from zoo.transformers import minilm_folder

    from accuracy.sentences import CALIBRATION, PAIRS

    tokenizer = AutoTokenizer.from_pretrained(str(minilm_folder()), local_files_only=True)

    def encoded(text: str) -> Feeds:
        found = tokenizer(text, return_tensors="np")
        return {name: np.asarray(array, np.int64) for name, array in found.items()}

    samples = [encoded(text) for pair in PAIRS for text in pair]

    def embedding(out: Outputs) -> Array:
        mean = next(iter(out.values()))[0].astype(np.float64).mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean))

    def judge(got: Sequence[Outputs], right: Sequence[Outputs]) -> dict[str, float]:
        cosines = [
            float(embedding(one) @ embedding(other)) for one, other in zip(got, right, strict=True)
        ]
        return {"least cosine": min(cosines), "mean cosine": float(np.mean(cosines))}

    path = zoo.export("minilm", folder)
    calibration = [encoded(text) for text in CALIBRATION]
    goal = "least cosine 0.99 static, 0.995 dynamic"
    return Task(path, calibration, samples, judge, goal, transformer=True)


def ultraface(_folder: Path, data: Path) -> Task:
    """ultraface: overlaps of boxes with those of float32; every other photograph calibrates."""
    from accuracy.boxes import faces, overlaps, photographs

    samples = [{"input": image} for image in photographs(data / "photos")]

    def found(out: Outputs) -> Array:
        scores, boxes = sorted(out.values(), key=lambda array: array.shape[-1])
        return faces(scores[0, :, 1], boxes[0])

    def judge(got: Sequence[Outputs], right: Sequence[Outputs]) -> dict[str, float]:
        pairs = [(found(one), found(other)) for one, other in zip(got, right, strict=True)]
        best = [
            float(overlaps(box, boxes).max()) if len(boxes) else 0.0
            for boxes, wanted in pairs
            for box in wanted
        ]
        return {
            "least overlap": min(best, default=1.0),
            "boxes": float(sum(len(boxes) for boxes, _ in pairs)),
            "of float": float(len(best)),
        }

    goal = "overlaps of 0.9 at least"
    return Task(data / "ultraface-rfb-320.onnx", samples[::2], samples, judge, goal)


TASKS: Mapping[str, Callable[[Path, Path], Task]] = {
    "digits": digits,
    "minilm": minilm,
    "ultraface": ultraface,
}
"""By name; each gets a folder for its files, and the one of the data."""
