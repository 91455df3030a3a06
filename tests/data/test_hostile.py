"""Files made to hang, to crash, to fill the memory or to be taken for what they are not."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import signal
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from PIL import Image
from scipy.io import savemat

from polyphony._util.text import UserError
from polyphony.data import DataError, Options, Split, corrupted, load, load_unknown
from polyphony.data.cifar_c import CORRUPTIONS
from polyphony.data.load import identify, locate, read
from polyphony.data.unpickle import MOST, unpickle


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """What hangs fails."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)  # long, since the machine may be busy
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(fault: str, call: Callable[..., object], *arguments: object, **options: object) -> str:
    """The sentence that the call ends with."""
    with pytest.raises(DataError, match=fault) as caught:
        call(*arguments, **options)
    assert len(str(caught.value)) <= 300
    return str(caught.value)


def check(name: str, root: Path) -> object:
    """What `polyphony data check` reads."""
    dataset = identify(name)
    return read(dataset, *locate(dataset, root))


# Pickles: instructions are written out, because no honest writer makes these.

DEEP = b")" + b"\x85" * 200_000  # ((((…),),),)
LAUGHS = (  # a list of lists, each of which holds the last one twice
    b"](]q\x00" + b"".join(b"](h%ch%ceq%c" % (k, k, k + 1) for k in range(60)) + b"e"
)
BIG = b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20)  # a text of a megabyte


@pytest.mark.parametrize(
    "content",
    [
        b"}" + DEEP + b"K\x01s.",  # as a key it would be hashed
        b"}" + LAUGHS.replace(b"]", b")") + b"K\x01s.",
        b"}" + LAUGHS + b"K\x01s.",
        b"}(" + DEEP + b"K\x01" + b"u.",
        b"}r\xff\xff\xff\x7f",  # an index that would be a table of gigabytes, and no end
        b"\x8e" + struct.pack("<Q", 1 << 62) + b"x.",  # a text of exabytes
        b"(" * 1_000_001 + b".",
        b"c_codecs\nencode\nq\x00"
        + BIG
        + b"q\x01X\x06\x00\x00\x00latin1q\x02"
        + b"h\x00h\x01h\x02\x86R" * 4000,
        b"cnumpy\ndtype\n" + DEEP + b"\x85R.",
        b"cnumpy\ndtype\n}X\x08\x00\x00\x00__init__K\x01sb.",  # state for what is no array
        b"c_codecs\nencode\n(NX\x0c\x00\x00\x00__defaults__K\x01tb.",
        b"I" + b"9" * 10_000 + b"\n.",
        b"P1\n.",
        b"\x82\x01.",
        b".",
        b"K\x01.",
        b"h\x07.",
        b"t.",
        b"",
    ],
)
def test_pickles_that_need_too_much_time_or_memory_are_rejected(content: bytes) -> None:
    refused("^file ", unpickle, content, "file")


def test_a_pickle_has_at_most_a_million_instructions() -> None:
    assert MOST == 1_000_000
    assert unpickle(b"}" + b"q\x00" * (MOST - 2) + b".", "file") == {}
    refused("^file has over 1,000,000 instructions", unpickle, b"}" + b"q\x00" * (MOST - 1) + b".", "file")


def test_a_pickle_cannot_encode_the_same_text_many_times() -> None:
    """The file's own length is the budget, and every text that is encoded counts."""
    start, text = b"}(X\x01\x00\x00\x00ac_codecs\nencode\nq\x00X\x64\x00\x00\x00" + b"x" * 100, b"q\x01"
    latin, call = b"X\x06\x00\x00\x00latin1q\x02\x86R", b"h\x00h\x01h\x02\x86R"
    once = start + text + latin + b"u."
    assert unpickle(once, "file") == {"a": b"x" * 100}
    twice = start + text + latin + b"X\x01\x00\x00\x00b" + call + b"u."
    assert 100 < len(once) < len(twice) < 200
    refused("same text encoded over and over", unpickle, twice, "file")


@pytest.mark.parametrize(("order", "known"), [("<", True), ("|", True), (">", False), ("=", False)])
def test_arrays_of_another_byte_order_are_refused(order: str, known: bool) -> None:
    table = pickle.dumps({"a": np.arange(3, dtype="<i8")}, protocol=2)
    assert table.count(b"X\x01\x00\x00\x00<") == 1
    changed = table.replace(b"X\x01\x00\x00\x00<", b"X\x01\x00\x00\x00" + order.encode())
    if known:
        assert unpickle(changed, "file")["a"].tolist() == [0, 1, 2]
    else:
        refused("^file ", unpickle, changed, "file")


def test_a_huge_index_costs_what_a_small_one_does() -> None:
    honest = b"}q\x00X\x01\x00\x00\x00aK\x07s."
    assert (
        unpickle(honest, "file")
        == unpickle(honest.replace(b"q\x00", b"r\xff\xff\xff\x7f"), "file")
        == {"a": 7}
    )


@pytest.mark.parametrize("nested", [DEEP, LAUGHS])
@pytest.mark.parametrize(("name", "key"), [("data_batch_3", "labels"), ("batches.meta", "label_names")])
def test_nested_values_where_a_list_belongs(nested: bytes, name: str, key: str, cifar10, root: Path) -> None:
    folder = cifar10.python(root / "cifar-10-batches-py")
    table = pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}, 4)[:-1]  # without the stop
    written = table + b"X" + struct.pack("<I", len(key)) + key.encode() + nested + b"s."
    (folder / name).write_bytes(written)
    assert name in refused("has no list of", load, "cifar10", root=root)


@pytest.mark.parametrize("labels", [[1, 2**70], [1, -1], [1, [0]], [1, None], [True, 1], [1], "ab"])
def test_labels_of_a_pickle_are_a_flat_list_of_numbers(labels: object, cifar10, root: Path) -> None:
    folder = cifar10.python(root / "cifar-10-batches-py")
    table = {"data": np.zeros((2, 3072), np.uint8), "labels": labels}
    (folder / "test_batch").write_bytes(pickle.dumps(table))
    assert "test_batch" in refused("label", load, "cifar10", root=root)


# Only regular files are opened.


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("the-pipe"))
    path.symlink_to("the-pipe")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # the system allows no long names
        listener.bind(path.name)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("special", [a_pipe, a_link_to_a_pipe, a_socket, a_device])
@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_2"),
        ("cifar10", "cifar-10-python.tar.gz"),
        ("tinyimagenet", "tiny-imagenet-200.zip"),
        ("svhn", "test_32x32.mat"),
        ("mnist", "mnist/train-images-idx3-ubyte"),
        ("mnist", "mnist/train-images-idx3-ubyte.gz"),
        ("mine.npz", "mine.npz"),
        ("fruit", "fruit/pear/x.png"),
        ("fruit", "fruit/pear/x"),
        ("cifar10-c", "CIFAR-10-C/labels.npy"),
    ],
)
def test_special_files(
    special: Callable[[Path], None],
    source: str,
    file: str,
    root: Path,
    class_folders: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class_folders.rename(root / "fruit")
    monkeypatch.chdir(root)
    (root / file).parent.mkdir(exist_ok=True)
    special(root / file)
    monkeypatch.chdir(root)
    refused("not a regular file|is not a picture file", load, source, root=root)


def test_a_pipe_in_the_cache_is_ignored(tmp_path: Path, class_folders: Path) -> None:
    first = load(str(class_folders))
    (cache_file,) = (tmp_path / "cache").rglob("*.safetensors")
    cache_file.unlink()
    os.mkfifo(cache_file)
    assert load(str(class_folders)).train.fingerprint == first.train.fingerprint


def test_links_that_lead_back_or_nowhere(class_folders: Path) -> None:
    (class_folders / "pear" / "all").symlink_to(class_folders)
    refused("twice, by a link", load, str(class_folders))
    (class_folders / "pear" / "all").unlink()
    (class_folders / "pear" / "gone.png").symlink_to("nowhere.png")
    refused(r"gone\.png cannot be read", load, str(class_folders))


def test_linked_class_folders_are_followed(class_folders: Path, tmp_path: Path) -> None:
    (class_folders / "pear").rename(tmp_path / "elsewhere")
    (class_folders / "pear").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "more").mkdir()
    (tmp_path / "elsewhere" / "0.png").rename(tmp_path / "elsewhere" / "more" / "0.png")
    splits = load(str(class_folders))
    assert sum(len(split) for split in (splits.train, splits.valid, splits.test)) == 8


# Bombs: a kilobyte that unpacks to a megabyte, with the slack lowered so that the test stays small.


@pytest.fixture
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyphony.data.files.SLACK", 50_000)


def tar_bomb(file: Path) -> None:
    with tarfile.open(file, "w:gz") as out:
        info = tarfile.TarInfo("cifar/data_batch_1")
        info.size = 1 << 22
        out.addfile(info, io.BytesIO(bytes(info.size)))


def tar_header_bomb(file: Path) -> None:
    with tarfile.open(file, "w:gz", format=tarfile.GNU_FORMAT) as out:
        out.addfile(tarfile.TarInfo("x" * (1 << 22)))


def mat_bomb(file: Path) -> None:
    savemat(file, {"X": np.zeros((32, 32, 3, 1000), np.uint8), "y": np.ones((1000, 1))}, do_compression=True)


def many_mat_bombs(file: Path) -> None:
    """Each within bounds, all together not."""
    savemat(file, {f"x{k}": np.zeros((200, 200), np.uint8) for k in range(500)}, do_compression=True)


def npz_bomb(file: Path) -> None:
    np.savez_compressed(file, images=np.zeros((4000, 32, 32), np.uint8), labels=np.arange(4000) % 2)


def zip_bomb(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("tiny-imagenet-200/wnids.txt", bytes(1 << 22))


def gz_bomb(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(gzip.compress(bytes(1 << 22)))


@pytest.mark.usefixtures("no_slack")
@pytest.mark.parametrize(
    ("bomb", "source", "file"),
    [
        (tar_bomb, "cifar10", "cifar-10-python.tar.gz"),
        (tar_header_bomb, "cifar10", "cifar-10-python.tar.gz"),
        (mat_bomb, "svhn", "test_32x32.mat"),
        (many_mat_bombs, "svhn", "test_32x32.mat"),
        (npz_bomb, "mine.npz", "mine.npz"),
        (zip_bomb, "tinyimagenet", "tiny-imagenet-200.zip"),
        (gz_bomb, "mnist", "mnist/train-images-idx3-ubyte.gz"),
    ],
)
def test_bombs(
    bomb: Callable[[Path], None], source: str, file: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    bomb(root / file)
    refused("too many", load, source, root=root)


@pytest.mark.usefixtures("no_slack")
def test_a_picture_with_too_many_pixels_for_its_bytes_is_rejected(class_folders: Path) -> None:
    Image.new("1", (4000, 4000)).save(class_folders / "pear" / "blank.png")
    refused(r"blank\.png has 4000×4000 pixels", load, str(class_folders))


# What was accepted though it is wrong.


def npz(file: Path, **arrays: object) -> str:
    n = len(arrays["images"]) if "images" in arrays else 6
    np.savez(file, **{"images": np.zeros((n, 4, 4), np.uint8), "labels": np.arange(n) % 2} | arrays)
    return str(file)


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [
        ({"labels": np.array([0, 1, 2**64 - 1, 0, 1, 0], np.uint64)}, "label 18446744073709551615, outside"),
        ({"labels": np.array([0, 1, 10**9, 0, 1, 0])}, "label 1000000000, outside 0..5"),
        ({"labels": np.array([0, 1, 6, 0, 1, 0])}, "label 6, outside 0..5"),
        ({"labels": np.array([0, 1, 1.5, 0, 1, 0])}, "float64"),
        ({"images": np.zeros((6, 0, 0), np.uint8)}, r"uint8 \[6, 0, 0\]"),
        ({"images": np.zeros((6, 4, 0, 3), np.uint8)}, r"uint8 \[6, 4, 0, 3\]"),
        (
            {"test_images": np.zeros((2, 5, 4), np.uint8), "test_labels": np.array([0, 1])},
            "2 test images of 1×5×4 instead of 1×4×4",
        ),
        (
            {"test_images": np.zeros((2, 4, 4, 3), np.uint8), "test_labels": np.array([0, 1])},
            "2 test images of 3×4×4 instead of 1×4×4",
        ),
        ({"classes": np.array("ab")}, r"classes is <U2 \[\]"),
        ({"classes": np.array([["a"], ["b"]])}, r"classes is <U1 \[2, 1\]"),
        ({"classes": np.array(["a", "b\x1b[2J"])}, "which cannot be printed"),
        ({"classes": np.array(["a", "b" * 300])}, "which cannot be printed"),
        ({"classes": np.array(["a", ""])}, "which cannot be printed"),
        ({"classes": np.zeros(0, "<U1")}, "must be a list of names"),
    ],
)
def test_check_and_load_reject_wrong_arrays(
    arrays: dict[str, np.ndarray], fault: str, tmp_path: Path
) -> None:
    source = npz(tmp_path / "mine.npz", **arrays)
    assert refused(fault, load, source) == refused(fault, check, source, tmp_path)


def test_pictures_of_the_test_have_the_size_of_the_others(class_folders: Path, tmp_path: Path) -> None:
    for part, side in (("train", 4), ("test", 5)):
        for name in ("a", "b"):
            (tmp_path / "both" / part / name).mkdir(parents=True)
            Image.new("RGB", (side, side)).save(tmp_path / "both" / part / name / "x.png")
    refused("images of 3×[45]×[45] instead of 3×[45]×[45]", load, str(tmp_path / "both"))


def write_corrupted(folder: Path, labels: np.ndarray, odd: tuple[int, ...] = (5, 4, 4, 3)) -> None:
    folder.mkdir()
    for name in CORRUPTIONS:
        np.save(folder / f"{name}.npy", np.zeros(odd if name == "fog" else (5, 4, 4, 3), np.uint8))
    np.save(folder / "labels.npy", labels)


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        (np.full(5, -1), "label -1, outside"),
        (np.full(5, 2**64 - 1, np.uint64), "label 18446744073709551615, outside"),
        (np.full(5, 1.5), "float64"),
        (np.full((5, 1), 1), "not 5 n labels"),
        (np.zeros(0, int), "not 5 n labels"),
    ],
)
def test_wrong_labels_of_corrupted_images(labels: np.ndarray, fault: str, root: Path) -> None:
    write_corrupted(root / "CIFAR-10-C", labels)
    refused(fault, corrupted, "cifar10", root)


@pytest.mark.parametrize("odd", [(5, 4, 4, 1), (5, 6, 4, 3), (5, 0, 0, 3)])
@pytest.mark.parametrize("folder", ["CIFAR-10-C", "cifar10-c-regenerated"])
def test_corrupted_images_have_one_size(folder: str, odd: tuple[int, ...], root: Path) -> None:
    write_corrupted(root / folder, np.zeros(5, np.uint8), odd)
    refused("fog", corrupted, "cifar10", root)


@pytest.mark.parametrize("label", [1.5, np.nan, np.inf, -3.0, 2.0**70])
def test_svhn_labels_are_integers(label: float, root: Path) -> None:
    table = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1.0], [label]])}
    savemat(root / "test_32x32.mat", table)
    refused(r"has the label .*, outside 1\.\.10", load, "svhn", root=root)


def test_an_empty_name_is_not_the_current_folder(
    class_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(class_folders)
    refused("'' is not a known data set", load, "")


@pytest.mark.parametrize("source", ["x" * 5000, "x/" * 3000 + "y.npz", "a\0b", "\udc80.npz"])
def test_names_that_are_not_valid_paths(source: str) -> None:
    refused("is not a known data set|there is no folder", load, source)


def test_a_path_that_does_not_exist_is_not_taken_for_a_name() -> None:
    refused(r"^there is no folder and no \.npz file 'photos/nowhere'$", load, "photos/nowhere")


@pytest.mark.parametrize("packed", [False, True])
def test_an_archive_is_read_to_its_end(packed: bool, cifar10, root: Path, tmp_path: Path) -> None:
    """Cut behind the last file that is wanted, so that nothing is missed; without its end it is not whole."""
    folder, archive = cifar10.python(tmp_path / "cifar-10-batches-py"), root / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz" if packed else "w") as out:
        out.add(folder, folder.name)
        end_of_files = out.offset
    load("cifar10", root=root)
    content = archive.read_bytes()
    archive.write_bytes(content[:-20] if packed else content[:end_of_files])
    refused("cut short|not a valid tar archive", load, "cifar10", root=root)


def test_training_images_of_one_class_are_rejected(tmp_path: Path) -> None:
    source = npz(tmp_path / "mine.npz", labels=np.zeros(6, int))
    refused("all of one class; a classifier needs two", load, source)
    like = Split(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    assert len(load_unknown(source, like)) == 2  # but they can be unknown


# What libraries raise tracebacks at.


def npy(header: str, content: bytes = bytes(96), version: bytes = b"\x01\x00") -> bytes:
    length = struct.pack("<H" if version[:1] == b"\x01" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode("latin1") + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-6, 4, 4)}"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (6, 4, 4.0)}"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (6, 4, 5)}"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1, " * 500 + "96)}"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 4, 9999999999)}", b""),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (" + "1" * 90 + ", x)}"),
        npy("{'descr': '|u1', 'fortran_order': 3, 'shape': (6, 4, 4)}"),
        npy("{'descr': '<i3', 'fortran_order': False, 'shape': (6, 4, 4)}"),
        npy("{'descr': '<U0', 'fortran_order': False, 'shape': (6, 4, 4)}", b""),
        npy("{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (6, 4, 4)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (6, 4, 4)}"),
        npy("{'descr': '|O8', 'fortran_order': False, 'shape': (6, 4, 4)}"),
        npy("(" * 9000),
        npy("-" * 9000),
        npy("x" * 20_000, version=b"\x02\x00"),
    ],
)
def test_odd_headers(content: bytes, tmp_path: Path, root: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as out:
        out.writestr("images.npy", content)
        out.writestr("labels.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (6,)}", bytes(6)))
    refused(r"mine\.npz: images", load, str(tmp_path / "mine.npz"))
    write_corrupted(root / "CIFAR-10-C", np.zeros(5, np.uint8))
    (root / "CIFAR-10-C" / "fog.npy").write_bytes(content)
    refused(r"fog\.npy", corrupted, "cifar10", root)


def test_headers_of_other_writers_are_understood(tmp_path: Path) -> None:
    """In another order, with Python 2's long numbers, column by column: as the format allows."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    header = "{'shape': (6L, 4L, 4L), 'fortran_order': True, 'descr': '|u1'}"
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as out:
        out.writestr("images.npy", npy(header, pixels.tobytes("F"), b"\x02\x00"))
        out.writestr(
            "labels.npy", npy("{'descr':'|u1','fortran_order':False,'shape':(6,)}", bytes([0, 1] * 3))
        )
    splits = load(str(tmp_path / "mine.npz"))
    images = {
        image.numpy().tobytes()
        for split in (splits.train, splits.valid, splits.test)
        for image in split.images
    }
    assert images == {image.tobytes() for image in pixels}


def patched(file: Path, signature: bytes, offset: int, value: int) -> None:
    content = bytearray(file.read_bytes())
    struct.pack_into("<H", content, content.index(signature) + offset, value)
    file.write_bytes(content)


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 97), (10, zipfile.ZIP_LZMA)])
def test_encrypted_or_unknown_compression(offset: int, value: int, tmp_path: Path) -> None:
    npz(tmp_path / "mine.npz")
    patched(tmp_path / "mine.npz", b"PK\x01\x02", offset, value)
    refused("encrypted or compressed in an unusual way", load, str(tmp_path / "mine.npz"))


@pytest.mark.parametrize(
    "table",
    [
        {"X": scipy.sparse.csc_matrix(np.eye(32)), "y": np.ones((1, 1))},
        {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": scipy.sparse.csc_matrix(np.ones((1, 1)))},
        {"X": np.zeros((32, 32, 3, 1), complex), "y": np.ones((1, 1))},
        {"X": "text", "y": np.ones((1, 1))},
        {"X": {"a": 1}, "y": np.ones((1, 1))},
        {"X": np.array([[1, "a"]], object), "y": np.ones((1, 1))},
        {"X": np.zeros((32, 32, 3, 0), np.uint8), "y": np.ones((0, 1))},
        {"z": np.zeros(3)},
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_mat_files_with_other_contents(table: dict[str, object], packed: bool, root: Path) -> None:
    savemat(root / "test_32x32.mat", table, do_compression=packed)
    refused(r"test_32x32\.mat", load, "svhn", root=root)


def test_a_mat_file_with_wrong_sizes(root: Path) -> None:
    table = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1), np.uint8)}
    savemat(root / "test_32x32.mat", table)
    content = (root / "test_32x32.mat").read_bytes()
    for place in range(128, 220):
        for value in (0, 1, 0x7F, 0xFF):
            changed = bytearray(content)
            changed[place] = value
            (root / "test_32x32.mat").write_bytes(changed)
            try:
                split = check("svhn", root).parts["test"]
                assert split.images.shape == (2, 3, 32, 32)
            except DataError:
                pass


@pytest.mark.parametrize("shape", [(0, 28, 28), (1, 0, 0), (0, 2**32 - 1, 2**32 - 1), (2**32 - 1,) * 3])
def test_impossible_idx_sizes(shape: tuple[int, ...], root: Path) -> None:
    (root / "mnist").mkdir()
    (root / "mnist" / "train-images-idx3-ubyte").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, *shape))
    refused("but its header says", load, "mnist", root=root)


def test_idx_images_of_another_size(root: Path) -> None:
    (root / "mnist").mkdir()
    for prefix in ("train", "t10k"):
        images = struct.pack(">BBBB3I", 0, 0, 8, 3, 20, 30, 30) + bytes(20 * 900)
        (root / "mnist" / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">BBBBI", 0, 0, 8, 1, 20) + bytes(range(10)) * 2
        (root / "mnist" / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    refused("20 train images of 1×30×30 instead of 1×28×28", load, "mnist", root=root)


def sparse_tar(file: Path, fields: dict[str, str]) -> None:
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as out:
        info = tarfile.TarInfo("cifar/data_batch_1")
        info.pax_headers = fields
        info.size = 512
        out.addfile(info, io.BytesIO(b"x\n" * 256))


@pytest.mark.parametrize(
    "fields",
    [
        {"GNU.sparse.map": "0,1,x", "GNU.sparse.size": "9"},
        {"GNU.sparse.map": "0,1,2", "GNU.sparse.size": "9"},
        {"GNU.sparse.map": "0,512", "GNU.sparse.size": "900000000000"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"},
        {"size": "-512"},
        {"size": str(2**62)},
        {"size": "9" * 5000},
        {"path": "x\0y"},
    ],
)
def test_tars_with_broken_maps_and_sizes(fields: dict[str, str], root: Path) -> None:
    sparse_tar(root / "cifar-10-python.tar.gz", fields)
    refused(r"cifar-10-python\.tar\.gz", load, "cifar10", root=root)


def test_a_number_of_thousands_of_digits_in_a_name(tiny: Path) -> None:
    archive = tiny.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted(tiny.rglob("*")):
            out.write(file, f"tiny-imagenet-200/{file.relative_to(tiny).as_posix()}")
        picture = (tiny / "train" / "n01" / "images" / "n01_4.JPEG").read_bytes()
        out.writestr(f"tiny-imagenet-200/train/n01/images/n01_{'9' * 6000}.JPEG", picture)
        out.writestr(f"tiny-imagenet-200/train/n01/images/{'9' * 6001}.JPEG", b"no picture")
    tiny.rename(tiny.with_name("away"))
    refused(r"99…99.*is not a valid picture", load, "tinyimagenet", root=tiny.parent)


@pytest.mark.parametrize("wnids", ["", "n01 n02 n02 n03"])
def test_no_classes_or_one_twice(wnids: str, tiny: Path) -> None:
    (tiny / "wnids.txt").write_text(wnids)
    refused(r"wnids\.txt is empty", load, "tinyimagenet", root=tiny.parent)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"resolution": 10**30}, "resolution must be less"),
        ({"per_class": 10**30}, "per_class must be less"),
        ({"seed": 10**30}, "seed must be less"),
        ({"seed": -(10**30)}, "seed must be greater"),
        ({"resolution": 10**4}, "resolution must be less than or equal to 8192"),
        ({"resolution": 8192}, "images of 1×8192×8192 need .* use fewer or smaller images"),
    ],
)
def test_options_beyond_any_machine(
    options: dict[str, int], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyphony.data.splits.memory", lambda: 10**6)
    with pytest.raises(UserError, match=fault):
        load("digits", Options(**options))


def test_a_resolution_beyond_the_memory(class_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyphony.data.splits.memory", lambda: 10**6)
    refused("use fewer or smaller images", load, str(class_folders), Options(resolution=8192))


def test_large_options_take_all_images() -> None:
    assert len(load("digits", Options(per_class=10**9)).train) == len(load("digits").train)
    assert len(load("digits", Options(seed=-1)).train) == len(load("digits").train)


def test_a_name_with_a_pattern_in_it(class_folders: Path, cached_files: Callable[[], list[str]]) -> None:
    odd = class_folders.rename(class_folders.with_name("a**[b"))
    for name in ("x", "y"):
        (odd / "pear" / f"{name}.png").write_bytes((odd / "pear" / "0.png").read_bytes())
        load(str(odd))
    assert len(cached_files()) == 1  # the stale one is gone


def test_a_truncated_deflate_stream_in_a_mat_file(root: Path) -> None:
    body = zlib.compress(bytes(100))[:-4]
    content = bytes(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(body)) + body
    (root / "test_32x32.mat").write_bytes(content)
    refused("cut short", load, "svhn", root=root)
