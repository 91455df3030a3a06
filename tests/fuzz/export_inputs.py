"""Students of odd but legal networks, exported: an equal file, or one sentence and no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from door_inputs import OWN, packed
from judge import Call, Kind
from torch import Tensor, nn

from polyphony import BatchEnsemble, Dirichlet, Hydra, Single, Student, export_student
from polyphony.nn import adapt
from polyphony.serve.description import Description
from polyphony.serve.export import ExportError

SIDE, CLASSES, WIDTH = 8, 3, 6
BATCHES = (1, 2, 5, 40)  # at which a file is asked; export itself compares at 1, 2 and 7


class Scaled(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return 2 * z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def fails(at: int) -> Callable[[Tensor], Tensor]:
    """What raises at batches of so many rows or more."""

    def checked(z: Tensor) -> Tensor:
        if len(z) >= at:
            raise ValueError("x" * 500 + "\n\x1b[2J")
        return z

    return checked


def counted() -> Callable[[Tensor], Tensor]:
    """What changes with every call."""
    calls: list[int] = []

    def later(z: Tensor) -> Tensor:
        calls.append(1)
        return z * len(calls)

    return later


def in_place(z: Tensor) -> Tensor:
    z[:, 0] = z[:, 1:].sum(1)
    return z


def unordered(z: Tensor) -> Tensor:
    return z[torch.nonzero(z[:, 0] > -1e9).flatten()]


FEATURES: tuple[Callable[[], Callable[[Tensor], Tensor]], ...] = (  # what is done to [b 6 4 4]
    nn.Identity,
    lambda: nn.GroupNorm(2, WIDTH),
    lambda: nn.InstanceNorm2d(WIDTH),
    lambda: nn.BatchNorm2d(WIDTH),
    lambda: nn.AvgPool2d(3, 2, ceil_mode=True, count_include_pad=False),
    lambda: nn.MaxPool2d(2),
    lambda: nn.AdaptiveAvgPool2d(3),
    lambda: nn.AdaptiveMaxPool2d(3),
    lambda: nn.Upsample(scale_factor=1.5, mode="bicubic"),
    lambda: nn.ConvTranspose2d(WIDTH, WIDTH, 2),
    lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(WIDTH, WIDTH, 1)),
    lambda: nn.LayerNorm((WIDTH, 4, 4)),
    lambda: lambda z: F.interpolate(z, 7, mode="bilinear", antialias=True),
    lambda: lambda z: F.grid_sample(z, F.affine_grid(torch.eye(2, 3).expand(len(z), 2, 3), list(z.shape))),
    lambda: lambda z: torch.fft.fft2(z).abs(),
    lambda: lambda z: F.unfold(z, 2).unflatten(1, (WIDTH, 4)),
    lambda: lambda z: z - z.mean(0),
    lambda: lambda z: z.transpose(0, 1).flip(0).transpose(0, 1),
    lambda: lambda z: F.scaled_dot_product_attention(z, z, z),
    lambda: lambda z: torch.stack([row * 2 for row in z]),
    lambda: lambda z: z.view(len(z), -1)[..., None, None].reshape(z.shape),
    lambda: lambda z: torch.roll(z, 1, 0),
    lambda: lambda z: z.to(torch.float64),
    lambda: lambda z: z.half().float(),
    lambda: lambda z: z.to(torch.complex64).real,
)
LOGITS: tuple[Callable[[], Callable[[Tensor], Tensor]], ...] = (  # what is done to [b 3]
    nn.Identity,
    nn.Identity,
    lambda: torch.digamma,
    lambda: torch.erfinv,
    lambda: torch.special.i0e,
    lambda: lambda z: torch.lgamma(z.abs() + 1),
    lambda: lambda z: torch.linalg.svdvals(z[:, None]) * z,
    lambda: lambda z: z.sort(-1).values.cumsum(-1),
    lambda: lambda z: z.topk(3).values,
    lambda: lambda z: torch.einsum("bi,bj->bj", z, z),
    lambda: lambda z: z.view(2, CLASSES),
    lambda: lambda z: z if z.sum() > 0 else -z,
    lambda: lambda z: z * 2 if len(z) > 8 else z,
    lambda: lambda z: z * 2 if len(z) == 1 else z,
    lambda: lambda z: z * z.sum().item(),
    lambda: lambda z: torch.from_numpy(z.numpy().copy()),
    lambda: lambda z: torch.tensor(z.tolist()),
    lambda: lambda z: F.dropout(z, 0.5, training=True),
    lambda: lambda z: z + torch.rand_like(z),
    lambda: lambda z: z * np.inf,
    lambda: lambda z: z * np.nan,
    lambda: lambda z: z * 1e30,
    lambda: lambda z: z.bfloat16(),
    lambda: lambda z: z.double(),
    lambda: lambda z: z.round().long(),
    lambda: lambda z: torch.polar(z, z),
    lambda: lambda z: z[:, :2],
    lambda: lambda z: z[:1],
    lambda: lambda z: z.flip(0),
    lambda: lambda z: z[:, :, None],
    lambda: lambda z: z.to_sparse(),
    lambda: unordered,
    lambda: in_place,
    lambda: Scaled.apply,
    lambda: fails(1),
    lambda: fails(3),
    lambda: fails(20),
    counted,
)
RETURNS: tuple[Callable[[Tensor, Tensor], object], ...] = (
    lambda z, h: z,
    lambda z, h: z,
    lambda z, h: z,
    lambda z, h: (z, h),
    lambda z, h: [None, z],
    lambda z, h: {"features": h, "logits": z},
    lambda z, h: SimpleNamespace(logits=z, features=h),
    lambda z, h: ((z, h),),
    lambda z, h: None,
)


class Odd(nn.Module):
    """A small network with one habit on the way, one at its end, and one in what it returns."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        rare = random.random()
        self.stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.on_the_way = random.choice(FEATURES)() if rare < 0.6 else nn.Identity()
        self.head = nn.Linear(WIDTH, CLASSES)
        self.at_the_end = random.choice(LOGITS)() if rare > 0.4 else nn.Identity()
        self.returned = random.choice(RETURNS)

    def forward(self, x: Tensor) -> object:
        features = self.on_the_way(self.stem(x).relu())
        return self.returned(self.at_the_end(self.head(features.float().mean((2, 3)))), features)


FORMS: tuple[Callable[[nn.Module], Any], ...] = (
    Single,
    Dirichlet,
    lambda network: BatchEnsemble(network, 2, size=(3, SIDE, SIDE)),
    lambda network: Hydra(network, 2, head="network.head"),
)


def exports(random: Random, folder: Path) -> Call:
    """An odd network as a student of any form, exported to either kind of file."""
    torch.manual_seed(random.randrange(2**31))
    network, form = Odd(random).eval(), random.choice(FORMS)
    said = Description.read(packed("single")[0] | {"temperature": random.choice((0.3, 1.2))}, "here")
    to, images = folder / random.choice(("a.onnx", "a.pt2")), torch.randint(0, 256, (9, 3, SIDE, SIDE))
    levels = random.choice(("uint8", "float32"))

    def call() -> None:
        student = Student(form(adapt(network)).eval(), said)
        export_student(student, to, images.byte(), levels)
        agrees(student, to, levels)
        to.unlink()

    return call


def agrees(student: Student, file: Path, levels: str) -> None:
    """AssertionError where the file answers otherwise than the student."""
    rng = torch.Generator().manual_seed(1)
    for batch in BATCHES:
        images = torch.randint(0, 256, (batch, 3, SIDE, SIDE), dtype=torch.uint8, generator=rng)
        expected, given = student.predict(images), images if levels == "uint8" else images / 255
        for name, value in asked(file, given).items():
            torch.testing.assert_close(
                value.double(), getattr(expected, name), rtol=0, atol=1e-4, msg=f"{name} at {batch}"
            )


def asked(file: Path, pixels: Tensor) -> dict[str, Tensor]:
    """What the file answers, without Polyphony."""
    if file.suffix == ".pt2":
        answers: dict[str, Tensor] = torch.export.load(file).module()(pixels)
        return answers
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    found = session.run(None, {"pixels": pixels.numpy()})
    return {
        output.name: torch.from_numpy(each) for output, each in zip(session.get_outputs(), found, strict=True)
    }


KINDS = (Kind("students to export", exports, (*OWN, ExportError)),)  # seconds each
