"""Decoders in OpenVINO, with NNCF's 4 bits: caches as states of the model, or as feeds.

OpenVINO chooses how to compute: bfloat16 where the processor has instructions for it, rows of int8
in blocks of 32.
"""

from __future__ import annotations

import argparse

from generators.common import (
    Array,
    Prompt,
    Token,
    caches_of,
    feeds_of,
    folder_of,
    next_caches,
    timed,
)


class Decoder:
    """A phase of the decoder.

    Args:
        options: of the command line.
        phase: ``prefill`` or ``decode``.
        stateful: whether the caches are states, which begin with no row.
    """

    def __init__(self, options: argparse.Namespace, phase: str, *, stateful: bool) -> None:
        import openvino
        from openvino._offline_transformations import (
            apply_make_stateful_transformation as add_states,
        )

        folder, _ = folder_of(options)
        model = openvino.Core().read_model(folder / f"{phase}-4bits.xml")
        self._names = [output.get_any_name() for output in model.outputs]
        if stateful:
            pasts = [p.get_any_name() for p in model.inputs if "past" in p.get_any_name()]
            add_states(model, {past: f"{past.removeprefix('past.')}.out" for past in pasts})
            self._names = ["logits"]
        settings = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
        self._stateful = stateful
        self._request = openvino.compile_model(model, "CPU", settings).create_infer_request()

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the outputs by name; the next run writes to the logits' memory again."""
        # What is fed to the next run must not lie where that run writes.
        found = self._request.infer(feeds, share_inputs=True, share_outputs=self._stateful)
        return {name: found[index] for index, name in enumerate(self._names)}


def token_of(options: argparse.Namespace, depth: int, form: str) -> Token:
    """Return the next token, with caches as states or as feeds."""
    stateful = form == "openvino"
    decode = Decoder(options, "decode", stateful=stateful)
    caches: dict[str, Array] = {}
    if stateful:
        for row in range(depth):
            decode.run(feeds_of(1, row))
    else:
        caches = caches_of(options, depth, Decoder(options, "prefill", stateful=False).run)

    def token(last: int, rows: int) -> int:
        outputs = decode.run({**feeds_of(last, rows), **caches})
        caches.update(next_caches(outputs))
        return int(outputs["logits"].argmax())

    return token


def prompt_of(options: argparse.Namespace) -> Prompt:
    """Return the prompt, whose caches are outputs."""
    prefill = Decoder(options, "prefill", stateful=False)
    return lambda feeds: timed(lambda: prefill.run(feeds))
