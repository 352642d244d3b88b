"""GGUF files become models that compute what their numbers say."""

from __future__ import annotations

import json

import gguf_kit as kit
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import narrowpass
from narrowpass_gguf.blocks import LAYOUTS
from narrowpass_gguf.importer import GgufImporter
from narrowpass_ir.errors import ModelError

IDS = np.random.default_rng(2).integers(3, kit.VOCABULARY, 12)


def check(path, backend, expected, pipeline=""):
    """Run a prefill of 7 tokens and decode steps of 1 and 4."""
    with narrowpass.load(path, backend, pipeline=pipeline, cache=False) as program:
        session = program.session()
        first = session.run({"input_ids": IDS[None, :7]}, "prefill")["logits"]
        found = [first[0]]
        for start, end in ((7, 8), (8, 12)):
            given = {"input_ids": IDS[None, start:end]}
            found.append(session.run(given, "decode")["logits"][0])
    # float32 against float64, over additions of at most 512 numbers in two layers.
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(found), expected[6:], atol=1e-5 * scale)


KINDS = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)
K = (Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.Q2_K)


@pytest.mark.parametrize("kind", KINDS + K, ids=lambda kind: kind.name)
def test_each_type(kind, backend, tmp_path):
    if kind in LAYOUTS and LAYOUTS[kind].offset and backend == "reference":
        pytest.skip("onnx's evaluator has no MatMulNBits")
    path = tmp_path / "model.gguf"
    read = kit.write(path, kind)
    check(path, backend, kit.logits(read, IDS))


def test_a_head_of_its_own(backend, tmp_path):
    given = kit.weights()
    given["output.weight"] = given["token_embd.weight"][::-1].copy()
    path = tmp_path / "model.gguf"
    read = kit.write(path, Kind.Q4_0, given=given)
    check(path, backend, kit.logits(read, IDS))


def test_integers_are_kept_by_fold_and_int4(tmp_path):
    installed = narrowpass.load_plugins().registry.passes
    if not {"fold", "int4"} <= installed.keys():
        pytest.skip("fold and int4 are not installed")
    path = tmp_path / "model.gguf"
    read = kit.write(path, Kind.Q4_1, table=Kind.Q8_0)
    out = tmp_path / "model.narrow"
    narrowpass.build(path, "fold,int4", out)
    check(out, None, kit.logits(read, IDS), pipeline=None)
    stored = (out / "weights.safetensors").stat().st_size
    count = sum(value.size for value in read.values() if value.ndim == 2)
    # 4 bits, 16 of a scale and 32 of a zero point for 32 elements; the table has 8.5.
    assert stored * 8 < count * 6.2


def test_nothing_leaves_the_native_backend(tmp_path):
    if "xnn-cpu" not in narrowpass.load_plugins().registry.backends:
        pytest.skip("xnn-cpu is not installed")
    path = tmp_path / "model.gguf"
    kit.write(path, Kind.Q4_K, table=Kind.Q6_K)
    options = {"pipeline": "", "require_native": True, "cache": False}
    with narrowpass.load(path, "xnn-cpu", **options) as program:
        assert {plan.method for plan in program.explain()} == {"prefill", "decode"}


def test_weights_are_shared_and_read_when_they_are_asked_for(tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, Kind.Q4_0)
    found = GgufImporter().load(str(path))
    prefill, decode = (found.methods[name].graph.initializers for name in ("prefill", "decode"))
    for name in prefill:
        if not name.startswith("const."):
            assert prefill[name].const_value is decode[name].const_value
    # One table for the embedding and the head.
    assert [name for name in prefill if "embedding" in name or "head" in name] == [
        "embedding.integers",
        "embedding.scales",
    ]
    assert found.notes == ()


def test_losses_are_reported(tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, Kind.Q2_K)
    (note,) = GgufImporter().load(str(path)).notes
    assert note.startswith("15 tensors of Q2_K are stored as float32")


def test_assets(tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path)
    assets = GgufImporter().load(str(path)).assets
    assert assets["chat_template.jinja"] == b"{{ messages[0]['content'] }}"
    assert json.loads(assets["generation_config.json"]) == {"eos_token_id": 2, "bos_token_id": 1}
    config = json.loads(assets["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert json.loads(assets["config.json"])["max_position_embeddings"] == 128
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_str(
        assets["tokenizer.json"].decode()
    )
    encoded = tokenizer.encode("abc a</s>b")
    assert encoded.tokens == ["abc", "Ġa", "</s>", "b"]
    assert tokenizer.decode(encoded.ids) == "abc ab"


def test_the_probe(tmp_path):
    path = tmp_path / "model.bin"
    kit.write(path)
    assert GgufImporter().probe(str(path))
    (tmp_path / "other.bin").write_bytes(b"onnx")
    assert not GgufImporter().probe(str(tmp_path / "other.bin"))
    assert not GgufImporter().probe(str(tmp_path))
    assert not GgufImporter().probe("a\0b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not supported; supported are gemma"),
        ({"llama__expert_count": 4}, "it has experts"),
        ({"llama__attention__key_length": 63}, "lacks|cannot|pairs"),
    ],
)
def test_models_that_are_refused(options, message, tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, **options)
    with pytest.raises(ModelError, match=message) as caught:
        GgufImporter().load(str(path))
    assert str(path) in str(caught.value)


def test_tensors_that_are_missing_or_too_many(tmp_path):
    path = tmp_path / "model.gguf"
    given = kit.weights()
    kit.write(path, given={**given, "blk.0.odd.weight": given["output_norm.weight"]})
    with pytest.raises(ModelError, match=r"such as 'blk\.0\.odd\.weight'"):
        GgufImporter().load(str(path))
    del given["blk.1.ffn_up.weight"]
    kit.write(path, given=given)
    with pytest.raises(ModelError, match=r"lacks the tensor for '1\.up'"):
        GgufImporter().load(str(path))


def test_files_that_are_cut_short_or_damaged(tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, Kind.Q4_0)
    whole = path.read_bytes()
    for size in (0, 4, 23, 24, 60, 1000, 2000, len(whole) // 2, len(whole) - 1000):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="download it again"):
            GgufImporter().load(str(path))
    rng = np.random.default_rng(0)
    for _ in range(60):
        broken = bytearray(whole)
        broken[int(rng.integers(4, 2500))] = int(rng.integers(0, 256))
        path.write_bytes(broken)
        try:
            GgufImporter().load(str(path))
        except ModelError:
            continue


@pytest.mark.parametrize("size", [0, 2**31 + 1])
def test_heads_of_no_width_are_refused(size, tmp_path):
    path = tmp_path / "model.gguf"
    kit.write(path, llama__attention__key_length=size)
    with pytest.raises(ModelError, match=rf"attention\.key_length is {size}, which is not"):
        GgufImporter().load(str(path))


def test_no_heads_of_keys_are_refused(tmp_path, monkeypatch):
    path, given = tmp_path / "model.gguf", kit.weights()
    monkeypatch.setattr(kit, "GROUPS", 0)
    kit.write(path, given=given)
    with pytest.raises(ModelError, match=r"head_count_kv is 0, which is not supported"):
        GgufImporter().load(str(path))
