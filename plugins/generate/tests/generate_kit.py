"""Decoders whose next tokens are known, and a small tokenizer."""

from __future__ import annotations

import json

import numpy as np
import tokenizers
from onnx import TensorProto, helper, numpy_helper
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import narrowpass

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TEXTS = ["the cat sat on the mat", "a dog ate the cake", "grüße aus köln", "日本語 🎉🎊"] * 3
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def table_program(table, backend="reference", *, by="input_ids", rows="S"):
    """Return a decoder whose logits are rows of a table, by the token or by its position."""
    vocabulary = table.shape[1]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["cast"], to=FLOAT),
        helper.make_node("Unsqueeze", ["cast", "two"], ["new"]),
        helper.make_node("Concat", ["past", "new"], ["present"], axis=1),
        helper.make_node("Gather", ["table", by], ["logits"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", INT64, [1, rows]), info("past", FLOAT, [1, "P", 1])]
    if by != "input_ids":
        inputs.append(info(by, INT64, [1, rows]))
    outputs = [info("logits", FLOAT, [1, rows, vocabulary]), info("present", FLOAT, [1, "T", 1])]
    constants = {"table": table.astype(np.float32), "two": np.array([2])}
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return narrowpass.load(narrowpass.build(model, ""), backend)


def script_table(script, vocabulary, prompt=1):
    """Return a table whose row of each position has a token of `script` on top."""
    table = np.zeros((prompt + len(script), vocabulary), np.float32)
    for place, token in enumerate(script):
        table[prompt - 1 + place, token] = 10
    return table


def script_program(script, vocabulary, prompt=1, backend="reference"):
    """Return a decoder that says a text, whatever it is fed."""
    return table_program(script_table(script, vocabulary, prompt), backend, by="position_ids")


def byte_tokenizer(vocabulary=320) -> tokenizers.Tokenizer:
    """Return a BPE of bytes; <s> begins a text, </s> ends it."""
    found = tokenizers.Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(TEXTS, trainer)
    found.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return found


def tokenizer_files(**changes) -> dict[str, bytes]:
    """Return the files of a model; a change of None leaves one out."""
    files = {
        "tokenizer.json": byte_tokenizer().to_str(),
        "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}),
        "chat_template.jinja": TEMPLATE,
        "config.json": json.dumps({"max_position_embeddings": 128}),
    }
    for name, value in changes.items():
        full = next(each for each in (*files, "generation_config.json") if each.startswith(name))
        files[full] = (
            value if value is None or isinstance(value, str | bytes) else json.dumps(value)
        )
    texts = {name: value for name, value in files.items() if value is not None}
    return {n: v if isinstance(v, bytes) else v.encode() for n, v in texts.items()}


def write_files(folder, **changes) -> None:
    """Write the files of a tokenizer into a bundle's folder."""
    for name, data in tokenizer_files(**changes).items():
        (folder / name).write_bytes(data)
