from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from polyphony.data import DataError, Options, load, load_unknown, splits


def levels(split) -> list[int]:
    return sorted(split.images[:, 0, 0, 0].tolist())


def test_class_folders_become_splits_by_seed(class_folders: Path) -> None:
    splits = load(str(class_folders), Options(valid=2, test=2))
    assert (splits.name, splits.classes, splits.origin) == ("fruit", ("apple", "pear"), "own")
    everything = levels(splits.train) + levels(splits.valid) + levels(splits.test)
    assert sorted(everything) == [0, 1, 2, 3, 100, 101, 102, 103]
    for split in (splits.train, splits.valid, splits.test):
        assert split.labels.bincount().tolist() == [len(split) // 2] * 2
        assert (split.images[:, 0, 0, 0] >= 100).long().tolist() == split.labels.tolist()
    again, other = (load(str(class_folders), Options(valid=2, test=2, seed=seed)) for seed in (0, 3))
    assert again.train.fingerprint == splits.train.fingerprint
    assert other.train.fingerprint != splits.train.fingerprint


def test_train_and_test_folders_are_kept_apart(class_folders: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    both.mkdir()
    class_folders.rename(both / "train")
    (both / "test").mkdir()
    for k, name in enumerate(("apple", "pear")):
        (both / "test" / name).mkdir()
        Image.new("RGB", (10, 10), (200 + k, 0, 0)).save(both / "test" / name / "x.png")
    splits = load(str(both))
    assert levels(splits.test) == [200, 201]
    assert len(splits.train) + len(splits.valid) == 8
    (both / "test").rename(both / "val")  # as ImageNet has it: parts, not two classes
    splits = load(str(both), Options(test=2))
    assert levels(splits.valid) == [200, 201]
    assert len(splits.train) + len(splits.test) == 8
    (both / "val").rename(both / "test")
    (both / "test" / "plum").mkdir()
    with pytest.raises(DataError, match="other class folders"):
        load(str(both))


@pytest.fixture
def parts_of_class_folders(tmp_path: Path) -> Path:
    """Folders train, valid and test, each with 10 pictures of 2 classes; all 60 levels of red differ."""
    folder = tmp_path / "parts"
    for p, part in enumerate(("train", "valid", "test")):
        for k, name in enumerate(("apple", "pear")):
            (folder / part / name).mkdir(parents=True)
            for i in range(10):
                colour = (100 * k + 30 * p + i, 0, 0)
                Image.new("RGB", (4, 4), colour).save(folder / part / name / f"{i}.png")
    return folder


@pytest.mark.parametrize(
    ("option", "part", "first"), [("limit", "train", 0), ("valid", "valid", 30), ("test", "test", 60)]
)
def test_a_number_of_class_folders_images_is_a_draw_by_seed(
    option: str, part: str, first: int, parts_of_class_folders: Path
) -> None:
    def drawn(seed: int) -> splits.Split:
        return getattr(load(str(parts_of_class_folders), Options(**{option: 6}, seed=seed)), part)

    split, levels = drawn(0), drawn(0).images[:, 0, 0, 0].tolist()
    assert split.labels.tolist() == [0, 0, 0, 1, 1, 1]  # in the order of the folders
    assert levels == sorted(set(levels))
    assert [level // 100 for level in levels] == split.labels.tolist()
    assert all(first <= level % 100 < first + 10 for level in levels)
    assert drawn(0).fingerprint == split.fingerprint
    assert len({drawn(seed).fingerprint for seed in range(5)}) > 1


def test_more_images_than_the_first_class_has_are_still_the_first(parts_of_class_folders: Path) -> None:
    test = load(str(parts_of_class_folders), Options(test=12)).test
    assert levels(test) == [*range(60, 70), 160, 161]


def test_the_first_unknown_images_in_order_of_class_are_rejected(tmp_path: Path) -> None:
    order = np.arange(60) // 30
    images = np.zeros((60, 4, 4), np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=order, test_images=images, test_labels=order)
    source, like = str(tmp_path / "mine.npz"), load("digits").test
    with pytest.raises(DataError, match=r"the first 25 mine images have only 1 of the 2 .* all of them"):
        load_unknown(source, like, limit=25)
    assert len(load(source, Options(test=35)).test) == 35
    assert len(load_unknown(source, like)) == 60


def test_different_sizes_are_rejected_unless_a_resolution_is_set(
    class_folders: Path, cached_files: Callable[[], list[str]]
) -> None:
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16, 1] = 240  # only the middle square is green, and only it is kept
    Image.fromarray(wide).save(class_folders / "pear" / "wide.png")
    with pytest.raises(DataError, match=r"wide\.png is 24×8, but .*0\.png is 10×10; set a resolution"):
        load(str(class_folders))
    assert cached_files() == []
    like = load("digits").test
    assert load_unknown(str(class_folders), like).images.shape[1:] == (1, 8, 8)
    splits = load(str(class_folders), Options(resolution=5, valid=1, test=1))
    images = torch.cat([splits.train.images, splits.valid.images, splits.test.images])
    assert images.shape[1:] == (3, 5, 5)
    assert (images[:, 1] == 240).flatten(1).all(1).sum() == 1


def test_pictures_of_other_kinds_become_rgb_upright(tmp_path: Path) -> None:
    folder = tmp_path / "kinds"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    Image.new("L", (4, 4), 9).save(folder / "a" / "grey.png")
    Image.new("RGBA", (4, 4), (1, 2, 3, 0)).save(folder / "a" / "alpha.webp", lossless=True, exact=True)
    Image.new("P", (4, 4), 0).save(folder / "b" / "palette.gif")
    turned = Image.new("RGB", (4, 4), (0, 0, 0))
    turned.paste((255, 0, 0), (0, 0, 4, 2))  # the upper half; Exif says turn it by 180°
    exif = Image.Exif()
    exif[0x0112] = 3
    turned.save(folder / "b" / "turned.png", exif=exif)
    from polyphony.data.own import read_folder

    images = read_folder(folder, Options()).parts["train"].images
    assert images[0, :, 0, 0].tolist() == [1, 2, 3]
    assert images[1, :, 0, 0].tolist() == [9, 9, 9]
    assert images[3, 0, 0, 0] == 0
    assert images[3, 0, 3, 3] == 255


def test_an_empty_class_folder(class_folders: Path) -> None:
    (class_folders / "plum").mkdir()
    with pytest.raises(DataError, match=r"plum holds no pictures; fill the class folder or remove it"):
        load(str(class_folders))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("pear/notes.txt", "is not a picture file"),
        ("notes.txt", "not in a class folder"),
        ("pear/x.jpg", "is not a valid picture"),
    ],
)
def test_a_text_file_among_the_pictures(name: str, fault: str, class_folders: Path) -> None:
    (class_folders / name).write_text("hello")
    with pytest.raises(DataError, match=rf"{name} .*{fault}"):
        load(str(class_folders))


def test_sixteen_bit_pictures_and_huge_ones_are_refused(
    class_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = class_folders / "apple" / "deep.png"
    Image.fromarray(np.zeros((10, 10), np.uint16)).save(deep)
    with pytest.raises(DataError, match=r"deep\.png has more than 8 bits per pixel"):
        load(str(class_folders))
    deep.unlink()
    monkeypatch.setattr("polyphony.data.images.LARGEST", 99)
    with pytest.raises(DataError, match=r"0\.png has 10×10 pixels; remove or shrink it"):
        load(str(class_folders))


RNG = np.random.default_rng(0)
GREY, COLOUR, Y = (
    RNG.integers(0, 256, (20, 6, 6), dtype=np.uint8),
    RNG.integers(0, 256, (20, 6, 6, 3), dtype=np.uint8),
    np.arange(20) % 4,
)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"images": GREY, "labels": Y}, GREY[:, None]),
        ({"images": COLOUR, "labels": Y[:, None]}, COLOUR.transpose(0, 3, 1, 2)),
        ({"images": COLOUR.transpose(0, 3, 1, 2), "labels": Y}, COLOUR.transpose(0, 3, 1, 2)),
        ({"x_train": GREY, "y_train": Y.astype(np.uint8)}, GREY[:, None]),
    ],
)
def test_npz_layouts(arrays: dict[str, np.ndarray], expected: np.ndarray, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "mine.npz", **arrays)
    splits = load(str(tmp_path / "mine.npz"), Options(valid=4, test=4))
    rows = {image.tobytes(): label for image, label in zip(expected, Y.tolist(), strict=True)}
    for split in (splits.train, splits.valid, splits.test):
        for image, label in zip(split.images, split.labels.tolist(), strict=True):
            assert rows.pop(image.numpy().tobytes()) == label
    assert not rows
    assert splits.classes == ("0", "1", "2", "3")


def test_npz_test_arrays_and_class_names(tmp_path: Path) -> None:
    names = np.array(["a", "b", "c", "d"])
    np.savez(
        tmp_path / "mine.npz", images=GREY, labels=Y, test_images=GREY[:3], test_labels=Y[:3], classes=names
    )
    splits = load(str(tmp_path / "mine.npz"))
    assert splits.classes == ("a", "b", "c", "d")
    assert torch.equal(splits.test.images[:, 0], torch.from_numpy(GREY[:3]))


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"images": GREY}, "has images; it needs the arrays 'images' and 'labels'"),
        ({"images": GREY / 255, "labels": Y}, r"images is float64 \[20, 6, 6\]"),
        ({"images": GREY, "labels": Y[:-1]}, r"int64 \[19\] instead of 20 labels"),
        ({"images": GREY, "labels": Y - 1}, r"has the label -1, outside 0\.\.19"),
        ({"images": GREY, "labels": Y, "classes": np.array(["a"])}, r"has the label 3, outside 0\.\.0"),
        (
            {"images": GREY, "labels": Y, "classes": np.array(["crane", "crane", "hut", "tree"])},
            "two classes are called 'crane'",
        ),
        (
            {"images": GREY.reshape(20, 2, 3, 6), "labels": Y},
            r"uint8 \[20, 2, 3, 6\]; .* with 1 or 3 channels",
        ),
        (
            {"images": np.array([{}, {}]), "labels": Y},
            "images is not a valid plain array .Object arrays",
        ),
    ],
)
def test_wrong_npz_files_are_named(arrays: dict[str, np.ndarray], fault: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=rf"mine\.npz.*{fault}"):
        load(str(tmp_path / "mine.npz"))


def test_an_npz_bomb_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 26, 1, 1)}
    )
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("images.npy", header.getvalue() + bytes(1 << 26))
    with pytest.raises(DataError, match=r"bomb\.npz unpacks to .* bytes, too many for its size"):
        load(str(tmp_path / "bomb.npz"))


def test_text_named_npz(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_text("hello")
    with pytest.raises(DataError, match=r"mine\.npz is not a valid \.npz file"):
        load(str(tmp_path / "mine.npz"))


def test_images_larger_than_memory_are_mapped_from_a_file(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    in_memory = load(str(class_folders), Options(resolution=7))
    monkeypatch.setattr(splits, "memory", lambda: 400)
    monkeypatch.setattr(splits, "SMALL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    for _ in range(2):  # decoded, and from the cache
        mapped = load(str(class_folders), Options(resolution=7))
        for part in ("train", "valid", "test"):
            one, other = getattr(mapped, part), getattr(in_memory, part)
            assert one.fingerprint == other.fingerprint
            assert one.statistics == other.statistics
    assert (
        len(list((tmp_path / "two" / "polyphony" / "data").iterdir())) == 1
    )  # nothing is left but the cache

    def full(*arguments: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(splits.os, "posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match=r"which is too much \(No space left"):
        load(str(class_folders), Options(resolution=6))


@pytest.mark.parametrize("names", [("training", "validation", "testing"), ("Train", "val", "TEST")])
def test_usual_names_of_parts_are_not_classes(names: tuple[str, ...], tmp_path: Path) -> None:
    for part, count in zip(names, (5, 2, 3), strict=True):
        for label, name in enumerate(("apple", "pear")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (4, 4), (i, 100 * label, 0)).save(tmp_path / part / name / f"{i}.png")
    splits = load(str(tmp_path))
    assert splits.classes == ("apple", "pear")
    assert [len(split) for split in (splits.train, splits.valid, splits.test)] == [10, 4, 6]
    assert splits.set_aside == ()
    shutil.rmtree(tmp_path / names[1])
    assert load(str(tmp_path)).set_aside == ("valid",)
    shutil.rmtree(tmp_path / names[2])
    assert load(str(tmp_path)).set_aside == ("valid", "test")
    (tmp_path / names[0]).rename(tmp_path / "val")
    with pytest.raises(DataError, match="has a folder 'val' but no 'train'"):
        load(str(tmp_path))
    shutil.copytree(tmp_path / "val", tmp_path / "valid")
    with pytest.raises(DataError, match="both hold valid images"):
        load(str(tmp_path))


def test_channels_convert_as_in_pillow(class_folders: Path) -> None:
    colour = load(str(class_folders), Options(resolution=8))
    grey = load(str(class_folders), Options(resolution=8, channels=1))
    for image, one in zip(colour.train.images, grey.train.images, strict=True):
        expected = Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")
        assert np.array_equal(one[0].numpy(), np.asarray(expected))
    digits, tripled = load("digits", Options(limit=20)), load("digits", Options(limit=20, channels=3))
    assert torch.equal(tripled.train.images, digits.train.images.expand(-1, 3, -1, -1))
    with pytest.raises(ValueError, match="channels must be 1 or 3, not 2"):
        Options(channels=2)
