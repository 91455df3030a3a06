from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from polyphony import Normalize, adapt


class Returns(nn.Module):
    """A classifier that packs its logits."""

    def __init__(self, pack: object) -> None:
        super().__init__()
        self.pack, self.received = pack, torch.empty(0)

    def forward(self, x: Tensor) -> object:
        self.received = x
        return self.pack(x.mean((2, 3)))


@dataclass
class Output:
    loss: None
    logits: Tensor
    hidden: Tensor


PACKS = {
    "tensor": lambda z: z,
    "tuple": lambda z: (z, -z),
    "list with none": lambda z: [None, z],
    "object": lambda z: Output(None, z, -z),
    "dict": lambda z: {"aux": -z, "logits": z},
    "first of a dict": lambda z: OrderedDict(loss=None, out=z),
}


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_logits_are_taken_out_of_what_a_network_returns(pack):
    x = torch.rand(2, 3, 4, 4)
    torch.testing.assert_close(adapt(Returns(pack))(x), x.mean((2, 3)))


@pytest.mark.parametrize("pack", [lambda z: None, lambda z: {"loss": 1.0}, lambda z: ()])
def test_a_network_without_logits_is_an_error(pack):
    with pytest.raises(TypeError, match="without logits"):
        adapt(Returns(pack))(torch.rand(2, 3, 4, 4))


def test_pixels_are_normalised_by_channel_or_all_alike():
    network = Returns(lambda z: z)
    x = torch.rand(2, 3, 4, 4)
    adapt(network, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))(x)
    for c, (mean, std) in enumerate([(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)]):
        torch.testing.assert_close(network.received[:, c], (x[:, c] - mean) / std)
    adapt(network, mean=(0.1, 0.2, 0.3), std=(0.5,))(x)
    torch.testing.assert_close(network.received[:, 2], (x[:, 2] - 0.3) / 0.5)
    adapt(network)(x)
    assert torch.equal(network.received, x)


@pytest.mark.parametrize(("argument", "size"), [(5, (5, 5)), ((6, 4), (6, 4))])
def test_images_are_resized_as_pillow_does(argument, size):
    network = Returns(lambda z: z)
    picture = np.random.default_rng(0).integers(0, 256, (17, 11, 3)).astype(np.uint8)
    adapt(network, size=argument)(torch.from_numpy(picture).permute(2, 0, 1)[None] / 255)
    channels = [Image.fromarray(picture[..., c].astype(np.float32)) for c in range(3)]
    resized = [np.asarray(channel.resize(size[::-1], Image.Resampling.BILINEAR)) for channel in channels]
    expected = torch.from_numpy(np.stack(resized)) / 255
    torch.testing.assert_close(network.received[0], expected, rtol=0, atol=1e-5)


def test_images_of_the_right_size_are_left_alone():
    network, x = Returns(lambda z: z), torch.rand(2, 3, 6, 6)
    adapt(network, size=6)(x)
    assert torch.equal(network.received, x)


def test_statistics_are_kept_with_the_weights():
    adapted = adapt(nn.Conv2d(3, 2, 1), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    again = adapt(nn.Conv2d(3, 2, 1), mean=3 * (0.0,), std=3 * (1.0,))
    again.load_state_dict(adapted.state_dict())
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(again(x), adapted(x))
    assert isinstance(adapted.normalize, Normalize)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": (0.1, 0.2), "std": (1, 1, 1)}, "mean has 2 channels and std has 3"),
        ({"std": (0.5, 0.0, 0.5)}, "above zero, not 0.0"),
    ],
)
def test_impossible_statistics_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        adapt(nn.Identity(), **wrong)
