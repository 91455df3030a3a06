from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from polyphony.data import DataError, Options, load
from polyphony.data.load import contents, identify, locate


def read(root: Path, options: Options = Options()):  # noqa: B008
    dataset = identify("cifar10")
    return contents(dataset, *locate(dataset, root), options)


def assert_is(found_contents, cifar10) -> None:
    assert found_contents.classes == cifar10.names
    for part, names in {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}.items():
        split = found_contents.parts[part]
        pixels = np.concatenate([cifar10.batches[name][0] for name in names])
        assert np.array_equal(split.images.numpy().reshape(-1, 3072), pixels)
        # a pixel's place: red, green, blue planes, each row by row
        assert split.images[3, 1, 2, 5] == pixels[3, 1024 + 2 * 32 + 5]
        assert split.labels.tolist() == [k for name in names for k in cifar10.batches[name][1].tolist()]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_python_folder(protocol: int, cifar10, root: Path) -> None:
    cifar10.python(root / "cifar-10-batches-py", protocol)
    assert_is(read(root), cifar10)


def test_archives_are_read_in_place(cifar10, tmp_path: Path, root: Path, packed) -> None:
    folder = cifar10.python(tmp_path / "cifar-10-batches")
    packed(folder, root / "cifar-10-python.tar.gz")
    assert_is(read(root), cifar10)
    assert [entry.name for entry in root.iterdir()] == ["cifar-10-python.tar.gz"]


def test_pickles_of_python_2_are_read(cifar10, root: Path) -> None:
    """The official batches were written by Python 2: short strings without an encoding, old module names."""
    folder = cifar10.python(root / "cifar-10-batches-py")
    pixels, labels = cifar10.batches["test_batch"]
    raw, many = pixels.tobytes(), b"".join(b"K" + bytes([k]) for k in labels.tolist())
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        + b"(K\x01(K\x08M\x00\x0ctcnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb"
    )
    (folder / "test_batch").write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + many + b"eu.")
    assert_is(read(root), cifar10)


def test_cifar100_has_fine_and_coarse_labels(root: Path) -> None:
    rng = np.random.default_rng(0)
    fine, coarse = rng.integers(0, 100, (2, 30)), rng.integers(0, 20, (2, 30))
    pixels = rng.integers(0, 256, (2, 30, 3072), dtype=np.uint8)
    folder = root / "cifar-100-python"
    folder.mkdir()
    for k, name in enumerate(("train", "test")):
        table = {"data": pixels[k], "fine_labels": fine[k].tolist(), "coarse_labels": coarse[k].tolist()}
        (folder / name).write_bytes(pickle.dumps(table))
    names = {"fine": [f"f{i}" for i in range(100)], "coarse": [f"c{i}" for i in range(20)]}
    (folder / "meta").write_bytes(pickle.dumps({f"{key}_label_names": value for key, value in names.items()}))
    for options, labels, key in ((Options(), fine, "fine"), (Options(coarse=True), coarse, "coarse")):
        splits = load("cifar100", options, root)
        assert splits.classes == tuple(names[key])
        assert torch.cat([splits.train.labels, splits.valid.labels]).tolist() == labels[0].tolist()
        assert splits.test.labels.tolist() == labels[1].tolist()


def test_the_split_is_first_nine_tenths_and_last_tenth(cifar10, root: Path) -> None:
    cifar10.python(root / "cifar-10-batches-py")
    train, splits = read(root).parts["train"], load("cifar10", Options(limit=7), root)
    assert torch.equal(splits.valid.images, train.images[36:])
    assert torch.equal(splits.train.images, train.images[:7])
    assert len(load("cifar10", Options(valid=10), root).train) == 30
    assert splits.origin == "subset"


class Escape:
    """Pickles to a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def damage_calls(folder: Path) -> None:
    evil = {b"data": Escape(f"touch {folder.parent / 'called'}"), b"labels": []}
    (folder / "data_batch_3").write_bytes(pickle.dumps(evil))


def damage_eval(folder: Path) -> None:
    (folder / "data_batch_3").write_bytes(b"cbuiltins\neval\n(Vopen('called','w')\ntR.")


def damage_truncated(folder: Path) -> None:
    file = folder / "data_batch_3"
    file.write_bytes(file.read_bytes()[:-5000])


def damage_swapped(folder: Path) -> None:
    table = {b"data": np.zeros((3072, 8), np.uint8), b"labels": [0] * 8}
    (folder / "data_batch_3").write_bytes(pickle.dumps(table))


def damage_label(folder: Path) -> None:
    table = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 10]}
    (folder / "data_batch_3").write_bytes(pickle.dumps(table))


def damage_short_labels(folder: Path) -> None:
    table = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3]}
    (folder / "data_batch_3").write_bytes(pickle.dumps(table))


def damage_objects(folder: Path) -> None:
    table = {b"data": np.array([{}, []], dtype=object), b"labels": [3]}
    (folder / "data_batch_3").write_bytes(pickle.dumps(table))


def damage_text(folder: Path) -> None:
    (folder / "data_batch_3").write_text("<html>404 not found</html>")


def damage_missing(folder: Path) -> None:
    (folder / "data_batch_3").unlink()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (damage_calls, r"asks to call posix\.system"),
        (damage_eval, r"asks to call builtins\.eval"),
        (damage_truncated, "is not a valid CIFAR file"),
        (damage_swapped, r"uint8 \[3072, 8\] instead of uint8 \[n, 3072\]"),
        (damage_label, r"label 10, outside 0\.\.9"),
        (damage_short_labels, r"int64 \[1\] instead of 2 labels"),
        (damage_objects, "is not a valid CIFAR file"),
        (damage_text, "is not a valid CIFAR file"),
        (damage_missing, "lacks"),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_hostile_files_give_one_sentence_and_nothing_else(
    damage: Callable[[Path], None],
    fault: str,
    archived: bool,
    cifar10,
    tmp_path: Path,
    root: Path,
    packed,
    cached_files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = cifar10.python((tmp_path if archived else root) / "cifar-10-batches-py")
    damage(folder)
    if archived:
        packed(folder, root / "cifar-10-python.tar.gz")
    with pytest.raises(DataError, match=fault) as caught:
        load("cifar10", root=root)
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("called"))
    assert cached_files() == []


def test_a_truncated_archive_is_named(cifar10, tmp_path: Path, root: Path, packed) -> None:
    archive = packed(cifar10.python(tmp_path / "cifar-10-batches-py"), root / "cifar-10-python.tar.gz")
    archive.write_bytes(archive.read_bytes()[:20_000])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is not a valid tar archive"):
        load("cifar10", root=root)


def test_coarse_labels_of_cifar10_are_refused(cifar10, root: Path) -> None:
    cifar10.python(root / "cifar-10-batches-py")
    load("cifar10", Options(), root)  # so that what is refused is in the cache
    with pytest.raises(DataError, match="no coarse labels"):
        load("cifar10", Options(coarse=True), root)
    with pytest.raises(DataError, match="no coarse labels"):
        load("digits", Options(coarse=True), root)
