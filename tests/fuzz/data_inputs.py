"""Data files of every kind that is read, honest ones damaged and dishonest ones made up."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
from damage import damaged, number, text
from judge import Call, Kind
from PIL import Image
from scipy.io import savemat

from polyphony._util.text import SettingError
from polyphony.data import DataError, Options, Split, Splits, corrupted, load, load_unknown, outline
from polyphony.data.cache import keep, restore
from polyphony.data.catalogue import DATASETS
from polyphony.data.cifar_c import CORRUPTIONS, MARK
from polyphony.data.load import contents, identify, locate

Files = dict[str, bytes]


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def one_damaged(random: Random, files: Files) -> Files:
    name = random.choice(sorted(files))
    return files | {name: damaged(random, files[name])}


def sane(splits: Splits) -> None:
    """What is accepted is one consistent data set."""
    shape = splits.train.images.shape[1:]
    assert 0 not in shape
    assert len(splits.train.labels.unique()) >= 2
    for split in (splits.train, splits.valid, splits.test):
        assert split.images.shape[1:] == shape
        assert len(split) > 0
        assert 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(splits.classes)
    assert all(name.isprintable() for name in splits.classes)


def loads(name: str, **options: int) -> Call:
    return lambda: sane(load(name, Options(**options)))


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


# CIFAR


@cache
def cifar_python(protocol: int) -> Files:
    table = {
        name: {
            "data": pixels(n, 3072),
            "fine_labels": [k % 5 for k in range(n)],
            "coarse_labels": [0, 1] * (n // 2),
        }
        for name, n in (("train", 6), ("test", 4))
    }
    meta = {"fine_label_names": list("abcde"), "coarse_label_names": ["x", "y"]}
    files = {name: pickle.dumps(value, protocol) for name, value in (table | {"meta": meta}).items()}
    return {f"cifar-100-python/{name}": content for name, content in files.items()}


OPCODES = (
    *(bytes([b]) for b in b"()]}t.lda0eusRbNpqrghjI K M".replace(b" ", b"")),
    b"\x85",
    b"\x86",
    b"\x87",
)
OPCODES += (
    b"\x94",
    b"\x88",
    b"\x93",
    b"\x80\x04",
    b"K\x01",
    b"K\x00",
    b"h\x00",
    b"h\x01",
    b"q\x00",
    b"q\x01",
    b"s",
)
OPCODES += (
    b"X\x04\x00\x00\x00data",
    b"X\x0b\x00\x00\x00fine_labels",
    b"C\x04data",
    b"U\x02u1",
    b"\x8c\x06latin1",
)
OPCODES += (
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"c_codecs\nencode\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
)
OPCODES += (
    b"cos\nsystem\n",
    b"\x8e" + b"\xff" * 8,
    b"r\xff\xff\xff\x7f",
    b"I999999\n",
    b"L" + b"9" * 5000 + b"L\n",
)


def made_up_pickle(random: Random) -> bytes:
    """Instructions in any order, some of them very often."""
    pieces = [random.choice(OPCODES) for _ in range(random.randrange(1, 60))]
    many = [piece * min(random.choice((1, 1, 1, 2, 3000, 30_000)), 60_000 // len(piece)) for piece in pieces]
    return random.choice((b"", b"}", b"}(", b"\x80\x02}(X\x04\x00\x00\x00data")) + b"".join(many) + b"."


def cifar_pickles(random: Random, root: Path) -> Call:
    files = cifar_python(random.choice((0, 2, 4, 5)))
    if random.random() < 0.5:
        files = one_damaged(random, files)
    else:
        files = files | {random.choice(sorted(files)): made_up_pickle(random)}
    write(root, files)
    return lambda: sane(load("cifar100", Options(coarse=random.random() < 0.3)))


def odd_member(random: Random) -> tarfile.TarInfo:
    member = tarfile.TarInfo(random.choice(("x", "../x", "/x", "a/" * 60 + "train", "n" * 5000)))
    member.type = random.choice(
        (b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"L", b"K", b"S", b"x", b"g", b"V")
    )
    member.linkname = random.choice(("", "train", "/etc/passwd"))
    keys = (
        "GNU.sparse.map",
        "GNU.sparse.size",
        "GNU.sparse.major",
        "GNU.sparse.minor",
        "size",
        "path",
        "mtime",
    )
    values = ("0,1", "0,x", "1", "0", "-1", str(number(random)), "9" * 5000)
    member.pax_headers = {
        random.choice(keys): random.choice(values) for _ in range(random.choice((0, 0, 1, 3)))
    }
    return member


def rechecked(random: Random, tar: bytes) -> bytes:
    """A header changed and its checksum made right again."""
    worse = bytearray(tar)
    start = random.choice([i for i in range(0, len(tar), 512) if tar[i + 257 : i + 262] == b"ustar"] or [0])
    first, last = random.choice(((0, 100), (100, 108), (124, 136), (156, 157), (257, 265), (345, 500)))
    field = random.choice(
        (b"\xff" * 12, b"\x80" + b"\x00" * 11, b"77777777777", b"0", str(number(random)).encode())
    )
    worse[start + first : start + last] = field[: last - first].ljust(last - first, b"\0")
    worse[start + 148 : start + 156] = b" " * 8
    worse[start + 148 : start + 156] = b"%06o\0 " % sum(worse[start : start + 512])
    return bytes(worse)


def cifar_archives(random: Random, root: Path) -> Call:
    stream = io.BytesIO()
    with tarfile.open(
        fileobj=stream, mode="w", format=random.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    ) as out:
        for name, content in cifar_python(2).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
            if random.random() < 0.1:
                out.addfile(odd_member(random))
    tar = random.choice((damaged, rechecked))(random, stream.getvalue())
    if random.random() < 0.6:
        tar = gzip.compress(tar, 1)
        tar = damaged(random, tar) if random.random() < 0.4 else tar
    write(root, {"cifar-100-python.tar.gz": tar})
    return loads("cifar100")


# MNIST, SVHN


@cache
def idx_files() -> Files:
    files = {}
    for prefix, n in (("train", 10), ("t10k", 4)):
        images = struct.pack(">BBBB3I", 0, 0, 8, 3, n, 28, 28) + pixels(n, 28, 28).tobytes()
        labels = struct.pack(">BBBBI", 0, 0, 8, 1, n) + bytes(k % 10 for k in range(n))
        files |= {f"mnist/{prefix}-images-idx3-ubyte": images, f"mnist/{prefix}-labels-idx1-ubyte": labels}
    return files


def idx(random: Random, root: Path) -> Call:
    files = one_damaged(random, idx_files())
    if random.random() < 0.5:
        files = {f"{name}.gz": gzip.compress(content, 1) for name, content in files.items()}
        files = one_damaged(random, files) if random.random() < 0.5 else files
    write(root, files)
    return loads("mnist")


@cache
def mat_files(packed: bool) -> Files:
    files = {}
    for part, n in (("train", 8), ("test", 3)):
        stream = io.BytesIO()
        table = {"X": pixels(32, 32, 3, n), "y": np.arange(n)[:, None] % 10 + 1.0}
        savemat(stream, table, do_compression=packed)
        files[f"svhn/{part}_32x32.mat"] = stream.getvalue()
    return files


def repacked(random: Random, mat: bytes) -> bytes:
    """A .mat file whose compressed elements were damaged before they were compressed."""
    out, start = [mat[:128]], 128
    while start < len(mat):
        kind, size = struct.unpack_from("<II", mat, start)
        body = zlib.compress(damaged(random, zlib.decompress(mat[start + 8 : start + 8 + size])), 1)
        out.append(struct.pack("<II", kind, len(body)) + body)
        start += 8 + size
    return b"".join(out)


def mat(random: Random, root: Path) -> Call:
    if random.random() < 0.3:
        files = {name: repacked(random, content) for name, content in mat_files(True).items()}
    else:
        files = one_damaged(random, mat_files(random.random() < 0.5))
    write(root, files)
    return loads("svhn")


# .npy and .npz


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def made_up_npy(random: Random) -> bytes:
    """A header of any type and shape, before some bytes."""
    kinds = (
        "'|u1'",
        "'<i8'",
        "'<U3'",
        "'|S0'",
        "'|O'",
        "'<f8'",
        "'<c16'",
        "'|b1'",
        "'>u2'",
        "'<M8[s]'",
        "[('a','<i4')]",
    )
    shape = ", ".join(str(number(random)) for _ in range(random.choice((0, 1, 1, 3, 4, 40))))
    order = random.choice(("True", "False", "0", "None"))
    header = f"{{'descr': {random.choice(kinds)}, 'fortran_order': {order}, 'shape': ({shape}), }}"
    header = random.choice((header, header, header, "(" * 5000, "-" * 5000, text(random)))
    coded = header.encode("utf-8", "replace")
    version, width = random.choice((("\x01", "<H"), ("\x02", "<I"), ("\x03", "<I"), ("\xff", "<I")))
    length = struct.pack(width, len(coded) % 65536)
    return (
        b"\x93NUMPY"
        + version.encode("latin1")
        + b"\0"
        + length
        + coded
        + bytes(random.choice((0, 6, 96, 1000)))
    )


def odd_array(random: Random) -> np.ndarray:
    """Labels, images or names of a wrong kind."""
    kind = random.choice((np.uint8, np.int64, np.uint64, np.float32, np.bool_, "<U4", np.int8))
    shape = random.choice(
        ((6,), (6, 1), (6, 4, 4), (6, 4, 4, 3), (6, 3, 4, 4), (6, 0, 0), (0, 4, 4), (), (6, 2, 4, 4))
    )
    array = np.zeros(shape, kind)
    if array.size and np.dtype(kind).kind in "iu":
        info = np.iinfo(kind)
        array.flat[random.randrange(array.size)] = min(max(number(random), info.min), info.max)
    return array


def npz(random: Random, root: Path) -> Call:
    names = ("images", "labels", "test_images", "test_labels", "classes")
    honest = {
        "images": pixels(6, 4, 4),
        "labels": np.arange(6) % 3,
        "test_images": pixels(3, 4, 4),
        "test_labels": np.arange(3),
        "classes": np.array(["a", "b", "c"]),
    }
    files = {f"{name}.npy": npy(honest[name]) for name in names[: random.choice((2, 4, 5))]}
    wrong = f"{random.choice(names)}.npy"
    way = random.randrange(4)
    if way == 0:
        files[wrong] = made_up_npy(random)
    elif way == 1:
        files[wrong] = npy(odd_array(random))
    elif way == 2:
        files = one_damaged(random, files)
    content = zipped(files, random)
    write(root, {"mine.npz": damaged(random, content) if way == 3 else content})
    return loads("mine.npz")


def zipped(files: Files, random: Random) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(
        stream, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)), compresslevel=1
    ) as out:
        for name, content in files.items():
            out.writestr(name, content)
    return stream.getvalue()


@cache
def cifar_c_files() -> Files:
    files = {f"CIFAR-10-C/{name}.npy": npy(pixels(10, 4, 4, 3)) for name in CORRUPTIONS}
    return files | {"CIFAR-10-C/labels.npy": npy(np.tile(np.arange(2, dtype=np.uint8), 5))}


def cifar_c(random: Random, root: Path) -> Call:
    files = cifar_c_files()
    wrong = random.choice(("CIFAR-10-C/labels.npy", "CIFAR-10-C/fog.npy"))
    made = random.choice((damaged(random, files[wrong]), made_up_npy(random), npy(odd_array(random))))
    files = files | {wrong: made}
    if random.random() < 0.2:
        files = files | {
            f"CIFAR-10-C/{MARK}": damaged(random, json.dumps({"fingerprint": "0" * 64}).encode())
        }
    write(root, files)

    def call() -> None:
        shifted = corrupted("cifar10")
        for name in shifted.parts:
            split = shifted[name, 5]
            assert int(split.images.int().sum()) >= 0
            assert 0 <= int(split.labels.min()) <= int(split.labels.max()) < 1000

    return call


# Pictures


@cache
def picture(form: str, mode: str = "RGB", side: int = 8) -> bytes:
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if form in ("JPEG", "PNG", "WEBP", "TIFF") else {}
    Image.fromarray(pixels(side, side, 3)).convert(mode).save(stream, form, **options)
    return stream.getvalue()


def resized_png(random: Random) -> bytes:
    """A PNG whose header says another size, with the checksum made right again."""
    content = bytearray(picture("PNG"))
    struct.pack_into(">II", content, 16, number(random) % 2**32, number(random) % 2**32)
    content[24:26] = bytes((random.choice((1, 8, 16, 3)), random.choice((0, 2, 3, 6, 9))))
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    return bytes(content)


def pictures(random: Random, root: Path) -> Call:
    form, suffix = random.choice(
        [
            ("JPEG", "jpg"),
            ("PNG", "png"),
            ("BMP", "bmp"),
            ("GIF", "gif"),
            ("PPM", "ppm"),
            ("TIFF", "tif"),
            ("WEBP", "webp"),
        ]
    )
    mode = random.choice(("RGB", "L", "1")) if form not in ("JPEG", "WEBP", "PPM") else "RGB"
    bad = resized_png(random) if random.random() < 0.15 else damaged(random, picture(form, mode))
    files = {f"fruit/{name}/{k}.png": picture("PNG") for name in "ab" for k in range(3)}
    write(root, files | {f"fruit/{random.choice('ab')}/bad.{suffix}": bad})
    return loads("fruit", **random.choice(({}, {"resolution": 5})))


def trees(random: Random, root: Path) -> Call:
    """Folders with odd names, links, pipes and files where they do not belong."""
    write(root, {f"fruit/{name}/{k}.png": picture("PNG") for name in "ab" for k in range(3)})
    for _ in range(random.choice((1, 2, 4))):
        parent = (
            root / "fruit" / random.choice(("", "a", "b", "a/deep", "train", "train/a", "test", "test/b"))
        )
        name = random.choice(
            ("x.png", ".hidden", "y.txt", "z", text(random).replace("/", "").replace("\0", "")[:50] or "n")
        )
        target = parent / name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            if name not in (".", "..") and not target.exists():
                thing(random, target, root)
        except (OSError, UnicodeError):
            continue  # a name that the file system does not take
    return loads("fruit")


def thing(random: Random, target: Path, root: Path) -> None:
    match random.randrange(7):
        case 0:
            os.mkfifo(target)
        case 1:
            target.symlink_to(
                random.choice(("/dev/zero", "nowhere", "..", ".", str(target), str(root / "fruit")))
            )
        case 2:
            target.mkdir()
        case 3:
            target.write_bytes(b"")
        case _:
            target.write_bytes(picture(random.choice(("PNG", "JPEG")), "RGB", random.choice((8, 8, 8, 1, 9))))


@cache
def tiny_files() -> Files:
    files = {"wnids.txt": b"n1\nn2\n", "words.txt": b"n1\tbee, x\nn2\tlamp\n"}
    files["val/val_annotations.txt"] = b"v0.JPEG\tn1\t0\nv1.JPEG\tn2\t0\n"
    for wnid in ("n1", "n2"):
        files |= {f"train/{wnid}/images/{wnid}_{k}.JPEG": picture("JPEG", "RGB", 64) for k in range(2)}
    return files | {f"val/images/v{k}.JPEG": picture("JPEG", "RGB", 64) for k in range(2)}


def tiny(random: Random, root: Path) -> Call:
    files = one_damaged(random, tiny_files()) if random.random() < 0.7 else dict(tiny_files())
    if random.random() < 0.2:
        files[f"train/n1/images/{'9' * random.choice((1, 200))}.JPEG"] = picture("JPEG", "RGB", 64)
    files = {f"tiny-imagenet-200/{name}": content for name, content in files.items()}
    if random.random() < 0.5:
        write(root, files)
    else:
        content = zipped(files, random)
        write(root, {"tiny-imagenet-200.zip": damaged(random, content) if random.random() < 0.7 else content})
    return loads("tinyimagenet")


# What is no file


def caches(random: Random, root: Path) -> Call:
    """A damaged cache is never an error; what it gives is sound."""
    write(root, {f"fruit/{name}/{k}.png": picture("PNG") for name in "ab" for k in range(3)})
    dataset = identify("fruit")
    keep(contents(dataset, *locate(dataset, root)), root / "kept.safetensors")
    kept = root / "kept.safetensors"
    kept.write_bytes(damaged(random, kept.read_bytes()))

    def call() -> None:
        try:
            whole = restore(kept)
        except Exception as error:
            raise DataError("passed over") from error
        for split in whole.parts.values():
            assert 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(whole.classes)

    return call


def options(random: Random, root: Path) -> Call:
    fields = ("per_class", "limit", "resolution", "valid", "test", "seed")
    values = {name: number(random) for name in random.sample(fields, random.choice((1, 2, 3)))}
    if values.get("resolution", 0) > 300:
        values["resolution"] += 10**4  # what a machine could just do takes it long
    if "resolution" in values or random.random() < 0.5:
        return lambda: sane(load("digits", Options(**values)))
    return lambda: sane(outline("cifar10", Options(**values)))


@cache
def digits() -> Split:
    return load("digits").test


def names(random: Random, root: Path) -> Call:
    like = digits()
    name = random.choice(
        (text(random), text(random) + ".npz", random.choice(sorted(DATASETS)) + text(random))
    )
    return random.choice(
        (
            partial(load, name),
            partial(corrupted, name),
            partial(load_unknown, name, like, limit=number(random)),
        )
    )


MAKERS: dict[str, Callable[[Random, Path], Call]] = {
    "CIFAR pickles": cifar_pickles,
    "CIFAR archives": cifar_archives,
    "IDX": idx,
    ".mat": mat,
    ".npz": npz,
    "CIFAR-C": cifar_c,
    "pictures": pictures,
    "folders": trees,
    "TinyImageNet": tiny,
    "cache": caches,
    "data options": options,
    "names of data": names,
}
KINDS = tuple(Kind(name, make, (DataError, SettingError)) for name, make in MAKERS.items())
