from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polyphony.data import DataError, Options, corrupted, load
from polyphony.data.cifar_c import CIFAR10_C, CORRUPTIONS


def write(folder: Path, n: int = 4) -> dict[str, np.ndarray]:
    """A small CIFAR-10-C: every pixel tells its corruption, severity and image."""
    folder.mkdir(parents=True)
    arrays = {}
    for k, name in enumerate(CORRUPTIONS):
        block = np.zeros((5 * n, 32, 32, 3), np.uint8)
        block[:] = (10 * k + np.arange(5).repeat(n))[:, None, None, None]
        block[:, 3, 7, 2] = np.tile(np.arange(n), 5)
        np.save(folder / f"{name}.npy", block)
        arrays[name] = block
    np.save(folder / "labels.npy", np.tile(np.arange(n, dtype=np.uint8), 5))
    return arrays


def test_every_corruption_and_severity_comes_in_order(root: Path) -> None:
    arrays = write(root / "CIFAR-10-C")
    np.save(root / "CIFAR-10-C" / "spatter.npy", arrays["fog"])  # one of the four extra ones: ignored
    shifted = corrupted("cifar10", root)
    conditions = [(name, severity) for name, severity, _ in shifted]
    assert conditions == [(name, severity) for name in CORRUPTIONS for severity in range(1, 6)]
    assert len(shifted) == 75
    for name, severity, split in shifted:
        expected = arrays[name][4 * (severity - 1) : 4 * severity].transpose(0, 3, 1, 2)
        assert np.array_equal(split.images.numpy(), expected)
        assert split.labels.tolist() == [0, 1, 2, 3]


def test_the_files_are_mapped_and_never_written(root: Path) -> None:
    write(root / "CIFAR-10-C")
    before = (root / "CIFAR-10-C" / "fog.npy").read_bytes()
    split = corrupted("cifar10", root)["fog", 2]
    split.images[:] = 0
    assert (root / "CIFAR-10-C" / "fog.npy").read_bytes() == before


def test_limit_and_resolution(root: Path) -> None:
    write(root / "CIFAR-10-C")
    split = corrupted("cifar10", root, Options(test=3, resolution=8))["snow", 4]
    assert split.images.shape == (3, 3, 8, 8)
    assert split.images[:, 0].unique().tolist() == [73]


def save_objects(file: Path) -> None:
    np.save(file, np.array([{}, []], dtype=object))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (save_objects, "Python objects"),
        (
            lambda file: np.save(file, np.zeros((20, 3, 32, 32), np.uint8)),
            r"uint8 \[20, 3, 32, 32\] instead of",
        ),
        (lambda file: np.save(file, np.zeros((19, 32, 32, 3), np.uint8)), r"\[19, 32, 32, 3\] instead of"),
        (lambda file: np.save(file, np.zeros((20, 32, 32, 3))), "float64"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "not a valid .npy file"),
        (lambda file: file.write_text("hello"), "frost.npy"),
        (lambda file: file.unlink(), "cannot be read"),
    ],
)
def test_hostile_files_are_named(damage, fault: str, root: Path) -> None:
    write(root / "CIFAR-10-C")
    damage(root / "CIFAR-10-C" / "frost.npy")
    with pytest.raises(DataError, match=rf"frost\.npy.*{fault}|{fault}") as caught:
        corrupted("cifar10", root)
    assert "frost.npy" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_of_the_wrong_length_are_named(root: Path) -> None:
    write(root / "CIFAR-10-C")
    np.save(root / "CIFAR-10-C" / "labels.npy", np.zeros(18, np.uint8))
    with pytest.raises(DataError, match=r"labels\.npy is uint8 \[18\], not 5 n labels"):
        corrupted("cifar10", root)


def test_a_corrupted_set_is_not_for_training(root: Path) -> None:
    write(root / "CIFAR-10-C")
    with pytest.raises(DataError, match="cifar10-c has no training images here"):
        load("cifar10-c", root=root)


def test_absent_corruptions_say_what_to_do(root: Path) -> None:
    with pytest.raises(DataError, match=r"CIFAR-10-C or cifar10-c-regenerated is not in .*: put it there"):
        corrupted("cifar10", root)


def test_every_official_file_has_its_own_checksum() -> None:
    assert len(set(CIFAR10_C.places[0].checksums.values())) == 16
    assert torch.tensor([len(md5) for md5 in CIFAR10_C.places[0].checksums.values()]).unique().tolist() == [
        32
    ]
