"""What tests run in processes of their own: builds that are killed, raced, or out of space.

Usage: ``python bundle_process.py ACTION PATH SEED [MORE]``
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
from bundle_models import linear, read

from narrowpass.bundle import Bundle, publish
from narrowpass.errors import OutputError

SIZE = 640
"""Rows and columns of the weights: a build takes tens of milliseconds, not one."""


def bundle(seed: int) -> Bundle:
    """Return a bundle of two methods whose every part has its seed."""
    models = {"main": read(linear(seed)), "two": read(linear(seed + 1))}
    for number, model in enumerate(models.values()):
        model.doc_string = str(seed)
        for index in range(4):
            array = np.full((SIZE, SIZE), seed + index / 8 + number / 64, np.float32)
            name = f"big{index}"
            value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
            model.graph.register_initializer(value)
    return Bundle(models, pipeline=str(seed))


def check(loaded: Bundle) -> int:
    """Raise unless all parts of a bundle have the same seed, which is returned."""
    seed = int(loaded.pipeline)
    for number, model in enumerate(loaded.methods.values()):
        if model.doc_string != str(seed):
            raise AssertionError(f"{model.doc_string} in the model, {seed} in the manifest")
        for index in range(4):
            tensor = model.graph.initializers[f"big{index}"].const_value
            array = tensor.numpy()
            if not (array == seed + index / 8 + number / 64).all():
                raise AssertionError(f"weights of {array[0, 0]} with a manifest of {seed}")
    return seed


def no_exchange() -> None:
    publish.exchange = lambda first, second: False


def main(action: str, path: str, seed: int, *more: str) -> None:
    """Do one of the actions."""
    if "aside" in more:
        no_exchange()
    if action == "save":
        built = bundle(seed)
        print("ready", flush=True)
        sys.stdin.readline()
        built.save(path, threads=2)
        print("saved", flush=True)
    elif action == "loop":
        built = [bundle(seed), bundle(seed + 1)]
        end = time.monotonic() + float(more[0])
        count = 0
        while time.monotonic() < end:
            built[count % 2].save(path)
            count += 1
        print(count)
    elif action == "count":
        counter = Path(more[0])
        for _ in range(seed):
            with publish.locked(Path(path)):
                counter.write_text(str(int(counter.read_text()) + 1))
    elif action == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        built = bundle(seed)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(more[0]), int(more[0])))
        try:
            built.save(path)
        except OutputError as error:
            print(error)
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
