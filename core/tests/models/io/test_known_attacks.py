"""One case for each vulnerability of onnx that `SECURITY.md` lists; onnx itself is the oracle.

Each has a folder with the model of a stranger, and beside it a file of the user: that file is not
read, and not written.
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import load_model, load_proto, save_model

WEIGHT = np.arange(256, dtype=np.float32)
SECRET = (WEIGHT + 1).tobytes()
"""What the user's file holds: a weight, as far as its length says."""


def model_of(**entries: str) -> onnx.ModelProto:
    """Return a model whose weight has these entries of external data; without, it is inside."""
    weight = numpy_helper.from_array(WEIGHT, "w")
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    if entries:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [256]) for name in "xy"]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def write(folder: Path, location: str, **more: str) -> Path:
    path = folder / "m.onnx"
    entries = {"location": location, "offset": "0", "length": str(WEIGHT.nbytes), **more}
    path.write_bytes(model_of(**entries).SerializeToString())
    return path


def refused(path: Path, message: str) -> None:
    """Assert that neither we nor onnx load a model."""
    with pytest.raises(ModelError, match=message):
        load_model(path)
    with pytest.raises((onnx.checker.ValidationError, ValueError)):
        onnx.load(path)


def a_path_outside(folder: Path, secret: Path) -> None:
    for location in (f"../{secret.name}", str(secret)):
        refused(write(folder, location), "only files in the model's own folder")


def a_path_with_steps_up(folder: Path, secret: Path) -> None:
    """Also one that ends in the folder."""
    (folder / "a").mkdir()
    (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(ModelError, match="only files in the model's own folder"):
        load_model(write(folder, "a/../w.bin"))


def a_folder_that_is_a_link(folder: Path, secret: Path) -> None:
    (folder / "a").symlink_to(secret.parent)
    refused(write(folder, f"a/{secret.name}"), "a link that leaves the model's folder")


def a_file_that_is_a_link(folder: Path, secret: Path) -> None:
    (folder / "w.bin").symlink_to(secret)
    refused(write(folder, "w.bin"), "a link that leaves the model's folder")


def a_file_with_two_names(folder: Path, secret: Path) -> None:
    os.link(secret, folder / "w.bin")
    refused(write(folder, "w.bin"), r"has 2 names \(hard links\)")


def entries_of_other_names(folder: Path, secret: Path) -> None:
    """Those are no attributes of anything; numbers that allocate memory are compared first."""
    (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    path = write(folder, "w.bin", colour="blue", directory=str(secret.parent))
    model = load_model(path)
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)
    with pytest.warns(UserWarning, match="unknown external data key"):
        proto = onnx.load(path)
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), WEIGHT)
    refused(write(folder, "w.bin", length=str(2 * WEIGHT.nbytes)), "is 2048 bytes, but")


def a_path_that_is_written(folder: Path, secret: Path) -> None:
    """A weight says where it is to be written; a link lies where it is."""
    proto = model_of()
    proto.graph.initializer[0].external_data.add(key="location", value="there.bin")
    out = folder / "out.onnx"
    save_model(load_proto(proto), out, inline_limit=0)
    (data,) = folder.glob("*.data")
    assert not (folder / "there.bin").exists()
    for link in (os.symlink, os.link):
        data.unlink()
        link(secret, data)
        save_model(load_proto(proto), out, inline_limit=0)
        assert (data.stat().st_nlink, data.is_symlink()) == (1, False)
        weight = onnx.load(out).graph.initializer[0]
        np.testing.assert_array_equal(numpy_helper.to_array(weight), WEIGHT)
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(ModelError):
        load_proto(proto)


def an_archive(folder: Path, secret: Path) -> None:
    """Archives are not unpacked, whatever they are called."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("there.bin"))
    (folder / "m.onnx").write_bytes(packed.getvalue())
    with pytest.raises(ModelError, match=r"m\.onnx"):
        load_model(folder / "m.onnx")
    with zipfile.ZipFile(folder / "m.onnx", "w") as archive:
        archive.writestr("there.bin", b"")
    with pytest.raises(ModelError, match="zip archive"):
        load_model(folder / "m.onnx")
    assert [path.name for path in folder.iterdir()] == ["m.onnx"]


ATTACKS: dict[str, Callable[[Path, Path], None]] = {
    "CVE-2022-25882": a_path_outside,
    "CVE-2024-27318": a_path_with_steps_up,
    "CVE-2024-5187": an_archive,
    "CVE-2025-51480": a_path_that_is_written,
    "CVE-2026-27489": a_folder_that_is_a_link,
    "CVE-2026-34445": entries_of_other_names,
    "CVE-2026-34446": a_file_with_two_names,
    "CVE-2026-34447": a_file_that_is_a_link,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_known_attacks(
    attack: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NARROWPASS_ALLOW_HARD_LINKS", raising=False)
    folder, secret = tmp_path / "model", tmp_path / "secret"
    folder.mkdir()
    secret.write_bytes(SECRET)
    attack(folder, secret)
    assert secret.read_bytes() == SECRET
