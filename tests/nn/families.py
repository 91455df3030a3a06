"""Small networks of many families: from transformers, from timm, and written by hand."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import by_hand
import pytest
from torch import nn

CLASSES = 5

TOKENS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
VIT = TOKENS | {"intermediate_size": 32}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 50,
}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 4,
}
FOUR = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
HEADS = FOUR | {"num_attention_heads": [1, 1, 2, 2]}

# Families of transformers: its class is NAMEForImageClassification, its configuration NAMEConfig.
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Beit": VIT,
    "Bit": FOUR | {"embedding_size": 8, "num_groups": 4},
    "CLIP": {"vision_config": VIT, "text_config": TEXT},
    "ConvNext": FOUR | {"image_size": 32},
    "ConvNextV2": FOUR | {"image_size": 32},
    "Cvt": {"embed_dim": [8, 8, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    "Data2VecVision": VIT,
    "DeiT": VIT,
    "Dinov2": TOKENS | {"mlp_ratio": 2},
    "Dinov2WithRegisters": TOKENS | {"mlp_ratio": 2},
    "EfficientNet": {"width_coefficient": 0.2, "depth_coefficient": 0.2, "image_size": 32, "hidden_dim": 256}
    | {"in_channels": [32, 16], "out_channels": [16, 320], "kernel_sizes": [3, 5], "strides": [1, 2]}
    | {"num_block_repeats": [1, 1], "expand_ratios": [1, 6]},
    "FocalNet": {"image_size": 32, "embed_dim": 8, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 32, 64]},
    "Hiera": HEADS | {"image_size": [64, 64], "embed_dim": 8, "num_heads": [1, 1, 2, 2]},
    "IJepa": VIT,
    "Levit": {"image_size": 64, "hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2]}
    | {"depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "MobileNetV1": {"depth_multiplier": 0.25, "image_size": 32},
    "MobileNetV2": {"depth_multiplier": 0.25, "image_size": 32},
    "MobileViT": {"image_size": 64, "hidden_sizes": [16, 16, 16], "num_attention_heads": 2}
    | {"neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16]},
    "MobileViTV2": {"image_size": 64, "width_multiplier": 0.25},
    "PoolFormer": FOUR,
    "Pvt": HEADS | {"image_size": 32, "patch_sizes": [4, 2, 2, 2]},
    "PvtV2": HEADS | {"image_size": 32},
    "RegNet": FOUR | {"embedding_size": 8, "groups_width": 8},
    "ResNet": FOUR | {"embedding_size": 8, "layer_type": "basic"},
    "Segformer": HEADS,
    "SwiftFormer": {"embed_dims": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "image_size": 64},
    "Swin": SWIN,
    "Swinv2": SWIN,
    "ViT": VIT,
    "ViTMSN": VIT,
}


PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
WINDOWS = {
    "img_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": (2, 2),
    "num_heads": (1, 2),
    "window_size": 4,
}

# Models of timm, made small.
TIMM: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": PATCHES,
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "deit_tiny_distilled_patch16_224": PATCHES,
    "eva02_tiny_patch14_224": PATCHES,
    "fastvit_t8": {"layers": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16)},
    "maxvit_rmlp_pico_rw_256": {"depths": (1, 1, 1, 1), "embed_dim": (32, 32, 32, 32), "stem_width": (8, 32)}
    | {"img_size": 64},
    "mobilenetv3_small_050": {},
    "resnetv2_50": {"layers": (1, 1, 1, 1), "channels": (16, 16, 16, 16)},
    "swin_tiny_patch4_window7_224": WINDOWS,
    "swinv2_cr_tiny_224": WINDOWS,
    "swinv2_tiny_window8_256": WINDOWS,
    "test_byobnet": {},
    "test_efficientnet": {},
    "test_mambaout": {},
    "test_nfnet": {},
    "test_resnet": {},
    "vit_tiny_patch16_224": PATCHES,
    "xcit_nano_12_p8_224": {"img_size": 32, "depth": 2},
}

BY_HAND: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        by_hand.Patches,
        by_hand.TokensFirst,
        by_hand.TimeMajor,
        by_hand.WindowsFirst,
        by_hand.WindowsLast,
        by_hand.PositionTable,
        by_hand.BatchMean,
        by_hand.FirstRow,
        by_hand.Reversed,
        by_hand.BareWeight,
        by_hand.Curious,
        by_hand.ByBatchSize,
        by_hand.SameLayerTwice,
        by_hand.Viewed,
        by_hand.Shortcut,
        by_hand.InADict,
        by_hand.subclasses,
    )
}

# Members that cannot run all at once, because rows do not stay in order or weights are read without a call.
IN_TURN = {
    "TimeMajor",
    "WindowsFirst",
    "BatchMean",
    "FirstRow",
    "Reversed",
    "BareWeight",
    "ByBatchSize",
    "SameLayerTwice",
    "beit_base_patch16_224",
    "eva02_tiny_patch14_224",
    "swinv2_tiny_window8_256",
}


def of_transformers(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **TRANSFORMERS[name])
    network: nn.Module = getattr(transformers, f"{name}ForImageClassification")(config)
    return network


class Anything(types.ModuleType):
    """A stand-in for torchvision: timm imports names from it that are not used here."""

    __path__ = ()

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "InterpolationMode":
            return Enum(name, "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS")
        return type(name, (nn.Module,), {})


@contextmanager
def without_torchvision() -> Iterator[None]:
    """timm imports torchvision, whose own build does not load beside PyTorch's for CPUs."""
    parts = (
        "",
        ".ops",
        ".ops.misc",
        ".transforms",
        ".transforms.functional",
        ".datasets",
        ".datasets.folder",
    )
    names = [f"torchvision{name}" for name in parts]
    if any(name in sys.modules for name in names):
        yield
        return
    for name in names:
        sys.modules[name] = Anything(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        above, _, below = name.rpartition(".")
        if above:
            setattr(sys.modules[above], below, sys.modules[name])
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def of_timm(name: str) -> nn.Module:
    with without_torchvision():
        timm = pytest.importorskip("timm", reason="timm is not installed")
        network: nn.Module = timm.create_model(name, num_classes=CLASSES, **TIMM[name])
    return network


FAMILIES: dict[str, Callable[[str], nn.Module]] = {
    **dict.fromkeys(TRANSFORMERS, of_transformers),
    **dict.fromkeys(TIMM, of_timm),
    **dict.fromkeys(BY_HAND, lambda name: BY_HAND[name]()),
}
