"""Networks, layers with members, the conversion of one into the other, and its test."""

from polyphony.nn.adapter import Adapted, adapt
from polyphony.nn.conversion import (
    FACTOR_STD,
    ConversionError,
    factor_distance,
    factors,
    member_share,
    merge_member,
)
from polyphony.nn.members import add_members
from polyphony.nn.networks import Normalize, ResNet, WideResNet, resnet, wide_resnet
from polyphony.nn.probe import Size
from polyphony.nn.rank_one import MemberBatchNorm, RankOneConv2d, RankOneLinear
from polyphony.nn.running import AtOnce, Front, InTurn, Members
from polyphony.nn.trial import check_members

__all__ = [
    "FACTOR_STD",
    "Adapted",
    "AtOnce",
    "ConversionError",
    "Front",
    "InTurn",
    "MemberBatchNorm",
    "Members",
    "Normalize",
    "RankOneConv2d",
    "RankOneLinear",
    "ResNet",
    "Size",
    "WideResNet",
    "adapt",
    "add_members",
    "check_members",
    "factor_distance",
    "factors",
    "member_share",
    "merge_member",
    "resnet",
    "wide_resnet",
]
