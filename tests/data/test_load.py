from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from polyphony.data import DataError, Options, Split, bundled, corrupted, load, load_unknown
from polyphony.data.catalogue import DATASETS
from polyphony.data.corruptions import corrupt, regenerate
from polyphony.data.load import EVERYTHING, check, identify, locate
from polyphony.data.options import with_channels

USERS_DATA = os.environ.get("POLYPHONY_DATA")  # before the tests' own is set
PACKS = Path(__file__).parents[3] / "shared" / "data" / "unpack.py"


def test_digits_are_scikit_learns_and_the_split_is_stratified() -> None:
    splits = load("digits", Options(per_class=20, valid=400, test=1000))
    assert splits.train.labels.bincount().tolist() == [20] * 10
    assert (len(splits.valid), len(splits.test)) == (400, 1000)
    table = load_digits()
    known = {
        np.rint(image * 255 / 16).astype(np.uint8).tobytes(): label
        for image, label in zip(table.images, table.target, strict=True)
    }
    shares = torch.bincount(torch.from_numpy(table.target)) / 1797
    images = set()
    for split in (splits.train, splits.valid, splits.test):
        for image, label in zip(split.images, split.labels.tolist(), strict=True):
            assert known[image[0].numpy().tobytes()] == label
            images.add(image.numpy().tobytes())
    assert len(images) == 1600  # no digit is in two splits
    assert (splits.test.labels.bincount() - shares * 1000).abs().max() <= 1
    assert load("digits", Options(seed=1)).test.fingerprint != load("digits").test.fingerprint


def rows_of(split: Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def test_shuffled_sets_have_other_images_and_the_same_test_images(cifar10, root: Path) -> None:
    cifar10.python(root / "cifar-10-batches-py")
    first = load("cifar10", Options(limit=10, valid=6, seed=1), root)
    assert (
        load("cifar10", Options(limit=10, valid=6, seed=2), root).train.fingerprint == first.train.fingerprint
    )
    one, again, two = (
        load("cifar10", Options(limit=10, valid=6, seed=seed, shuffle=True), root) for seed in (1, 1, 2)
    )
    everything = rows_of(load("cifar10", root=root).train) | rows_of(load("cifar10", root=root).valid)
    for name in ("train", "valid"):
        assert getattr(one, name).fingerprint == getattr(again, name).fingerprint
        assert rows_of(getattr(one, name)) not in (rows_of(getattr(two, name)), rows_of(getattr(first, name)))
    for splits in (one, two):
        assert splits.test.fingerprint == first.test.fingerprint
        assert (len(splits.train), len(splits.valid)) == (10, 6)
        assert not rows_of(splits.train) & rows_of(splits.valid)
        assert rows_of(splits.train) | rows_of(splits.valid) <= everything


def test_missing_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"pip install '\.\[demo\]'"):
        load("digits")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("cifar-10", "is not a known data set, a folder or an .npz file; did you mean 'cifar10'?"),
        ("quux", "known are cifar10, cifar100"),
        (
            "cifar10",
            "cifar10 is not in .*: put cifar-10-batches-py there$",
        ),
    ],
)
def test_the_error_for_missing_data_is_one_sentence(source: str, sentence: str, root: Path) -> None:
    with pytest.raises(DataError, match=sentence.replace("?", r"\?")):
        load(source, root=root)


@pytest.mark.parametrize(
    ("options", "what"), [(Options(valid=5000), "validation"), (Options(test=1797), "test")]
)
def test_more_images_than_exist_cannot_be_set_aside(options: Options, what: str) -> None:
    with pytest.raises(DataError, match=f"{what} images were asked for, but there are only"):
        load("digits", options)


def test_the_root_is_the_argument_then_the_environment_then_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyphony.data.files import data_root

    assert data_root(tmp_path / "x") == tmp_path / "x"
    assert data_root() == tmp_path / "data"
    monkeypatch.delenv("POLYPHONY_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert data_root() == tmp_path / "share" / "polyphony" / "data"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root() == tmp_path / "home" / ".local" / "share" / "polyphony" / "data"


def test_unknown_images_are_converted_to_the_shape_of_the_known_ones() -> None:
    like = Split(torch.zeros(1, 3, 16, 16, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    unknown, known = load_unknown("digits", like, limit=50), load("digits").test[:50]
    assert torch.equal(
        unknown.images[:, 1], known.images[:, 0].repeat_interleave(2, 1).repeat_interleave(2, 2)
    )
    assert unknown.labels.tolist() == known.labels.tolist()


def test_unknown_images_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, file = [], bundled.table_file()
    monkeypatch.setattr(bundled, "table_file", lambda: reads.append(1) or file)
    load_unknown("digits", Split(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1).long()))
    assert len(reads) == 1


def test_colour_becomes_grey_by_luminance() -> None:
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 10, 10]], dtype=torch.uint8)
    assert with_channels(colours[:, :, None, None], 1).flatten().tolist() == [76, 150, 29, 10]


def test_regenerated_corruptions_are_read_back_and_called_so(root: Path) -> None:
    test = load("digits", Options(test=12)).test
    folder = root / "digits-c-regenerated"
    steps = regenerate("digits", test, folder)
    assert next(steps) == ("gaussian_noise", 1)
    assert not folder.exists()  # it appears when it is whole
    assert len(list(steps)) == 74
    shifted = corrupted("digits", root)
    assert shifted.origin == "regenerated"
    for name, severity in (("fog", 3), ("jpeg_compression", 5)):
        split = shifted[name, severity]
        assert torch.equal(split.images, corrupt(test.images, name, severity))
        assert torch.equal(split.labels, test.labels)
    assert [entry.name for entry in root.iterdir()] == ["digits-c-regenerated"]
    with pytest.raises(DataError, match="exists already"):
        next(regenerate("digits", test, folder))


def test_regenerated_corruptions_say_what_they_were_made_of(root: Path) -> None:
    test = load("digits", Options(test=12)).test
    folder = root / "digits-c-regenerated"
    list(regenerate("digits", test, folder))
    assert corrupted("digits", root).source == test.fingerprint
    mark = folder / "regenerated.json"
    mark.write_text("{}")
    assert corrupted("digits", root).source is None
    mark.write_text("{")
    with pytest.raises(
        DataError, match=r"regenerated\.json is not a valid JSON file .*make the images again"
    ):
        corrupted("digits", root)


def test_regenerated_corruptions_of_few_images_of_many_classes_are_read_back(root: Path) -> None:
    test = Split(load("digits", Options(test=12)).test.images[:2], torch.tensor([10**12, 3]))
    list(regenerate("digits", test, root / "digits-c-regenerated"))
    assert corrupted("digits", root)["fog", 5].labels.tolist() == [10**12, 3]


def test_regenerated_files_are_never_taken_for_the_official_ones(root: Path) -> None:
    test = load("digits", Options(test=12)).test
    list(regenerate("digits", test, root / "CIFAR-10-C"))  # put, or moved, where the official ones belong
    assert corrupted("cifar10", root).origin == "regenerated"
    dataset = identify("cifar10-c")
    place, path = locate(dataset, root)
    assert check(dataset, place, path, place.read(path, EVERYTHING))[0] == "regenerated"


def test_an_interrupted_regeneration_leaves_nothing(root: Path) -> None:
    steps = regenerate("digits", load("digits", Options(test=12)).test, root / "digits-c-regenerated")
    next(steps)
    steps.close()
    assert list(root.iterdir()) == []


def test_check_tells_a_subset_an_alteration_and_the_official_files(cifar10, root: Path) -> None:
    from dataclasses import replace

    from polyphony.data.files import file_md5

    folder = cifar10.python(root / "cifar-10-batches-py")
    official = DATASETS["cifar10"]
    place, path = locate(official, root)
    contents = place.read(path, EVERYTHING)
    origin, differences = check(official, place, path, contents)
    assert origin == "subset"
    assert "train has 40 images, officially 50,000" in differences
    counts = {"train": 40, "test": 8}
    origin, differences = check(replace(official, counts=counts), place, path, contents)
    assert origin == "altered"
    assert any(line.startswith("file data_batch_4: MD5 ") for line in differences)
    known = replace(place, checksums={name: file_md5(folder / name) for name in place.checksums})
    assert check(replace(official, counts=counts), known, path, contents)[0] == "official"
    unknown = replace(place, checksums={})
    assert check(replace(official, counts=counts), unknown, path, contents)[0] == "unverified"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's own data root, or the packs beside the project, unpacked."""
    if USERS_DATA and (Path(USERS_DATA) / "cifar-10-batches-py").exists():
        return Path(USERS_DATA)
    if not PACKS.exists():
        pytest.skip("needs real files: set POLYPHONY_DATA to a folder with cifar-10-batches-py")
    folder = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, str(PACKS), str(folder)], check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_the_real_cifar10_is_official_and_split_as_the_papers(real: Path) -> None:
    splits = load("cifar10", root=real)
    assert splits.origin == "official"
    assert [len(s) for s in (splits.train, splits.valid, splits.test)] == [45_000, 5_000, 10_000]
    assert splits.train.labels[:6].tolist() == [6, 9, 9, 4, 1, 1]  # frog, truck, truck, deer, automobile, …
    assert splits.test.labels[:4].tolist() == [3, 8, 8, 0]
    assert splits.classes[6] == "frog"
    mean = splits.train.images.double().mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=1e-3, rtol=0)
    small = load("cifar10", Options(limit=5000, resolution=16), real)
    assert small.train.images.shape == (5000, 3, 16, 16)
    first = splits.train.images[0].double().view(3, 16, 2, 16, 2).mean((2, 4))
    assert (small.train.images[0] - first).abs().max() <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar100", 100), ("tinyimagenet", 200)])
def test_the_real_subsets_are_read_and_called_subsets(name: str, classes: int, real: Path) -> None:
    splits = load(name, root=real)
    assert len(splits.classes) == classes
    assert splits.origin in ("subset", "official", "unverified")
    assert set(splits.train.labels.tolist()) == set(range(classes))
