from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from polyphony.data import DataError, load, load_unknown
from polyphony.data.svhn import read_split

RNG = np.random.default_rng(3)


def digits(n: int) -> dict[str, np.ndarray]:
    return {
        "X": RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8),
        "y": np.arange(n, dtype=np.uint8)[:, None] % 10 + 1,
    }


def test_label_ten_is_the_digit_zero_and_axes_are_put_in_order(tmp_path: Path) -> None:
    table = digits(12)
    savemat(tmp_path / "x.mat", table, do_compression=True)
    split = read_split(tmp_path / "x.mat")
    assert split.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    for i, c, y, x in ((0, 0, 0, 0), (11, 2, 30, 7), (5, 1, 3, 31)):
        assert split.images[i, c, y, x] == table["X"][y, x, c, i]


def test_the_test_file_alone_serves_as_unknown_classes_only(root: Path) -> None:
    savemat(root / "test_32x32.mat", digits(12))
    with pytest.raises(DataError, match="svhn has no training images here"):
        load("svhn", root=root)
    like = read_split(root / "test_32x32.mat")
    assert torch.equal(load_unknown("svhn", like, root, limit=5).images, like.images[:5])


def test_a_folder_with_both_files_can_be_trained_on(root: Path) -> None:
    (root / "svhn").mkdir()
    savemat(root / "svhn" / "train_32x32.mat", digits(40))
    savemat(root / "svhn" / "test_32x32.mat", digits(10))
    splits = load("svhn", root=root)
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (36, 4, 10)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (
            {"X": np.zeros((4, 3, 32, 32), np.uint8), "y": np.ones((4, 1))},
            r"X uint8 \[4, 3, 32, 32\] and y \[4, 1\]",
        ),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8)}, r"y \[0\]"),
        ({"X": np.zeros((32, 32, 3, 4)), "y": np.ones((4, 1))}, r"X float64 \[32, 32, 3, 4\]"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[3], [11]])}, r"label 11, outside 1\.\.10"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0], [3]])}, r"label 0, outside 1\.\.10"),
    ],
)
def test_wrong_tables_are_named(table: dict[str, np.ndarray], fault: str, tmp_path: Path) -> None:
    savemat(tmp_path / "wrong.mat", table)
    with pytest.raises(DataError, match=rf"wrong\.mat .*{fault}"):
        read_split(tmp_path / "wrong.mat")


@pytest.mark.parametrize("content", [b"", b"<html></html>" * 50])
def test_invalid_mat_files_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "wrong.mat").write_bytes(content)
    with pytest.raises(DataError, match=r"wrong\.mat is (not a valid \.mat file|empty)"):
        read_split(tmp_path / "wrong.mat")


def test_a_truncated_mat_file_is_named(tmp_path: Path) -> None:
    savemat(tmp_path / "short.mat", digits(30), do_compression=True)
    content = (tmp_path / "short.mat").read_bytes()
    (tmp_path / "short.mat").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"short\.mat .*download it again"):
        read_split(tmp_path / "short.mat")
