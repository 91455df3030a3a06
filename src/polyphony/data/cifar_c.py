"""CIFAR-10-C and CIFAR-100-C, and regenerated corrupted images in the same layout: memory-mapped .npy files.

Each corruption has one file, uint8 [5 n h w c]: the first n rows are severity 1, the last n severity 5.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap

from polyphony.data.dataset import Contents, Dataset, Download, Place, as_labels
from polyphony.data.files import DataError, as_data_error, path_exists, read_bytes, regular
from polyphony.data.options import Options
from polyphony.data.splits import Split

NAMES = """gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost
fog brightness contrast elastic_transform pixelate jpeg_compression"""
CORRUPTIONS = tuple(NAMES.split())
SEVERITIES = (1, 2, 3, 4, 5)
MARK = "regenerated.json"  # marks a folder of images that Polyphony made, also after it is moved


def read(path: Path, options: Options) -> Contents:
    """Read one part for each corruption, memory-mapped: [5 n c h w], all severities."""
    file = path / "labels.npy"
    labels = mapped(file)
    if labels.ndim != 1 or len(labels) % len(SEVERITIES) or not len(labels):
        raise DataError(f"{file} is {labels.dtype} {list(labels.shape)}, not 5 n labels; get it again")
    any_class = np.iinfo(np.int64).max  # no file tells the number of classes
    all_labels = as_labels(labels, len(labels), any_class, file)
    parts = {name: _split(path / f"{name}.npy", all_labels) for name in CORRUPTIONS}
    classes = tuple(map(str, all_labels.unique().tolist()))
    return Contents(classes, parts, "regenerated" if path_exists(path / MARK) else "unverified")


def source(path: Path) -> str | None:
    """The fingerprint of the test split that the images were made from; None if it is not recorded."""
    file = path / MARK
    if not path_exists(file):
        return None
    with as_data_error(file, "JSON file", f"remove {path} and make the images again"):
        facts = json.loads(read_bytes(file))
        return str(facts["fingerprint"]) if "fingerprint" in facts else None


def mapped(file: Path) -> np.ndarray[Any, np.dtype[Any]]:
    """The array of an .npy file, memory-mapped copy-on-write; DataError if it is invalid."""
    with as_data_error(file, ".npy file", "get it again"), warnings.catch_warnings(action="ignore"):
        array: np.memmap[Any, np.dtype[Any]] = open_memmap(regular(file), mode="c")
        if array.offset + array.nbytes != file.stat().st_size:
            raise ValueError("its size differs from its header")
        return array


def _split(file: Path, labels: torch.Tensor) -> Split:
    images, n = mapped(file), len(labels)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[::3] not in ((n, 1), (n, 3)):
        raise DataError(
            f"{file} is {images.dtype} {list(images.shape)} instead of uint8 [{n}, h, w, 3]; get it again"
        )
    return Split(torch.from_numpy(images).permute(0, 3, 1, 2), labels)


def _dataset(name: str, of: str, record: int, md5: str, size: int, checksums: str) -> Dataset:
    address = f"https://zenodo.org/records/{record}"
    files = [f"{name}.npy" for name in (*CORRUPTIONS, "labels")]
    md5_of_files = dict(zip(files, checksums.split(), strict=True))
    return Dataset(
        name=name,
        title=f"{of}-C: {of}'s test images under 15 corruptions at 5 severities",
        homepage=address,
        terms="CC BY 4.0",
        places=(Place(f"{of}-C", read, md5_of_files, cached=False),),
        counts=dict.fromkeys(CORRUPTIONS, 50_000),
        downloads=(Download(f"{address}/files/{of}-C.tar", f"{of}-C.tar", md5, size, f"{of}-C"),),
    )


CIFAR10_C = _dataset(
    "cifar10-c",
    "CIFAR-10",
    2535967,
    "56bf5dcef84df0e2308c6dcbcbbd8499",
    2_918_471_680,
    """ecaf8b9a2399ffeda7680934c33405fd 3a7239bb118894f013d9bf1984be7f11 2090e01c83519ec51427e65116af6b1a
    7d1322666342a0702b1957e92f6254bc 7361fb4019269e02dbf6925f083e8629 fffa5f852ff7ad299cfe8a7643f090f4
    6ea8e63f1c5cdee1517533840641641b bb238de8555123da9c282dea23bd6e55 31f6ab3bce1d9934abfb0cc13656f141
    7b397314b5670f825465fbcd1f6e9ccd 0a81ef75e0b523c3383219c330a85d48 3c8262171c51307f916c30a3308235a8
    9421657c6cd452429cf6ce96cc412b5f 0f14f7e2db14288304e1de10df16832f 2b9cc4c864e0193bb64db8d7728f8187
    c439b113295ed5254878798ffe28fd54""",
)
CIFAR100_C = _dataset(
    "cifar100-c",
    "CIFAR-100",
    3555552,
    "11f0ed0f1191edbf9fa23466ae6021d3",
    2_918_473_216,
    """ecc4d366eac432bdf25c024086f5e97d b0a1fa6e1e465a747c1b204b1914048a 3b3c210ddfa0b5cb918ff4537a429fef
    d923e3d9c585a27f0956e2f2ad832564 0bf384f38e5ccbf8dd479d9059b913e1 732a7e2e54152ff97c742d4c388c5516
    0204613400c034a81c4830d5df81cb82 0237be164583af146b7b144e73b43465 3a39c6823bdfaa0bf8b12fe7004b8117
    4efc7ebd5e82b028bdbe13048e3ea564 f22d7195aecd6abb541e27fca230c171 322bb385f1d05154ee197ca16535f71e
    a0792bd6581f6810878be71acedfc65a 96c00c60f144539e14cffb02ddbd0640 c851b7f1324e1d2ffddeb76920576d11
    bb4026e9ce52996b95f439544568cdb2""",
)
