"""Networks and the rank-one layer that gives any of them members."""

from polyphony.nn.adapter import Adapted, adapt
from polyphony.nn.distance import factor_distance
from polyphony.nn.parts import Normalize
from polyphony.nn.rank_one import (
    ConversionError,
    MemberBatchNorm,
    RankOneConv2d,
    RankOneLinear,
    add_members,
    factors,
    merge_member,
)
from polyphony.nn.resnet import ResNet, resnet
from polyphony.nn.wide_resnet import WideResNet, wide_resnet

__all__ = [
    "Adapted",
    "ConversionError",
    "MemberBatchNorm",
    "Normalize",
    "RankOneConv2d",
    "RankOneLinear",
    "ResNet",
    "WideResNet",
    "adapt",
    "add_members",
    "factor_distance",
    "factors",
    "merge_member",
    "resnet",
    "wide_resnet",
]
