"""Symbolic links in a bundle: refused where they leave it, but for the blobs of a hub's cache."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from bundle_models import linear, read

from narrowpass.bundle import Bundle, MethodReport, Report, is_bundle, verify
from narrowpass.errors import BundleError

NAMES = ["manifest.json", "main.onnx", "weights.safetensors", "notes.txt", "reports/00-fold.json"]


@pytest.fixture
def bundle(tmp_path):
    """Return the folder of a bundle that has a file of each kind."""
    path = tmp_path / "models" / "b"
    path.parent.mkdir()
    report = Report("fold", {"main": MethodReport([{"node": "n"}], {"folded": 1})})
    method = {"main": read(linear(0, 17))}
    Bundle(method, reports=(report,), assets={"notes.txt": b"read me"}).save(path)
    assert sorted(str(file.relative_to(path)) for file in path.rglob("*.*")) == sorted(NAMES)
    return path


def refused(path: Path, name: str) -> None:
    """Assert that neither of both readers reads through a link."""
    with pytest.raises(BundleError, match=rf"{name} cannot be opened: it is a link that leaves"):
        Bundle.load(path)
    (problem, *_) = verify(path)
    assert "it is a link that leaves the folder" in problem


def hub(folder: Path, bundle: Path) -> Path:
    """Arrange the files as the cache of a hub has them; return the bundle's folder there."""
    snapshot, blobs = folder / "snapshots" / "0f" / "b", folder / "blobs"
    blobs.mkdir(parents=True)
    for name in NAMES:
        blob = blobs / hashlib.sha256((bundle / name).read_bytes()).hexdigest()
        shutil.copyfile(bundle / name, blob)
        place = snapshot / name
        place.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * len(place.relative_to(folder).parent.parts)
        place.symlink_to(f"{up}blobs/{blob.name}")
    return snapshot


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_link_out_of_the_bundle(bundle, tmp_path, name, absolute):
    """Also to a file with the right bytes: who may not read it must not learn that."""
    outside = tmp_path / "models" / "outside"
    (bundle / name).rename(outside)
    up = "../" * len(Path(name).parts)
    (bundle / name).symlink_to(outside if absolute else f"{up}outside")
    refused(bundle, name)
    assert is_bundle(bundle) == (name != "manifest.json")


def test_a_folder_of_reports_that_is_a_link(bundle, tmp_path):
    (bundle / "reports").rename(tmp_path / "outside")
    (bundle / "reports").symlink_to(tmp_path / "outside")
    refused(bundle, NAMES[-1])


def test_links_within_the_bundle(bundle):
    (bundle / "reports").rename(bundle / "kept")
    (bundle / "reports").symlink_to("kept")
    (bundle / "notes.txt").rename(bundle / "kept" / "notes")
    (bundle / "notes.txt").symlink_to("kept/notes")
    assert verify(bundle) == []
    assert Bundle.load(bundle).assets == {"notes.txt": b"read me"}


def test_the_bundle_itself_is_a_link(bundle, tmp_path, monkeypatch):
    (tmp_path / "current").symlink_to("models/b")
    assert verify(tmp_path / "current") == []
    monkeypatch.chdir(tmp_path)
    assert Bundle.load("current").assets == {"notes.txt": b"read me"}


def test_the_cache_of_a_hub(bundle, tmp_path, monkeypatch):
    snapshot = hub(tmp_path / "models--a--b", bundle)
    assert all((snapshot / name).is_symlink() for name in NAMES)
    assert verify(snapshot) == []
    assert list(Bundle.load(snapshot).data) == list(Bundle.load(bundle).data)
    (tmp_path / "current").symlink_to(snapshot)
    monkeypatch.chdir(tmp_path)
    assert Bundle.load("current").assets == {"notes.txt": b"read me"}


def test_another_repository_of_the_hub(bundle, tmp_path):
    snapshot = hub(tmp_path / "models--a--b", bundle)
    hub(tmp_path / "models--a--secret", bundle)
    blob = (snapshot / "notes.txt").readlink().name
    (snapshot / "notes.txt").unlink()
    (snapshot / "notes.txt").symlink_to(f"../../../../models--a--secret/blobs/{blob}")
    refused(snapshot, "notes.txt")


def test_a_blob_that_is_a_link(bundle, tmp_path):
    snapshot = hub(tmp_path / "models--a--b", bundle)
    (snapshot / "notes.txt").resolve().rename(tmp_path / "outside")
    blob = tmp_path / "models--a--b" / "blobs" / (snapshot / "notes.txt").readlink().name
    blob.symlink_to(tmp_path / "outside")
    refused(snapshot, "notes.txt")


def test_a_folder_of_blobs_that_is_a_link(bundle, tmp_path):
    snapshot = hub(tmp_path / "models--a--b", bundle)
    (tmp_path / "models--a--b" / "blobs").rename(tmp_path / "outside")
    (tmp_path / "models--a--b" / "blobs").symlink_to(tmp_path / "outside")
    refused(snapshot, "manifest.json")


@pytest.mark.parametrize(
    ("target", "message"),
    [("gone", "notes.txt is missing"), ("notes.txt", "cannot be opened: Too many")],
)
def test_links_to_nothing(bundle, target, message):
    (bundle / "notes.txt").unlink()
    (bundle / "notes.txt").symlink_to(target)
    with pytest.raises(BundleError, match=message):
        Bundle.load(bundle)


def test_a_file_in_place_of_the_reports(bundle):
    shutil.rmtree(bundle / "reports")
    (bundle / "reports").touch()
    with pytest.raises(BundleError, match=r"00-fold\.json cannot be opened: Not a directory"):
        Bundle.load(bundle)
