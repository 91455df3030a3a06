"""Every form of a student with every loss and perturbation it takes, in little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor, nn

from polyphony.data import Split
from polyphony.distill import (
    CrossEntropy,
    Distill,
    DistillDistribution,
    DistillFactors,
    DistillMean,
    DistillProxy,
)
from polyphony.distill.perturb import (
    ODS,
    Adversarial,
    Chain,
    Clean,
    Diversify,
    Gaussian,
    Mixup,
    Perturbation,
    WithSource,
    mixes_images,
)
from polyphony.ensembles import (
    MIMO,
    BatchEnsemble,
    DeepEnsemble,
    Dirichlet,
    Ensemble,
    Hydra,
    LatentBE,
    LatentFactor,
    LoRAEnsemble,
    Separate,
    Single,
)
from polyphony.training.fit import Loss

MEMBERS, CLASSES = 2, 3
STEP = 0.05


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def split(n: int, seed: int) -> Split:
    """Bright stripes on noise: the label is the column."""
    labels = torch.randint(CLASSES, (n,), generator=seeded(seed))
    images = torch.randint(128, (n, 1, 5, 5), generator=seeded(seed + 1))
    images[torch.arange(n), 0, :, labels] += 60
    return Split(images.to(torch.uint8), labels)


def without_labels(images: Split) -> Split:
    return Split(images.images, torch.full_like(images.labels, -1))


class AsWeights(nn.Module):
    """Inputs in the precision of the weights, so that a whole training may be in float64."""

    like: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("like", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.like.dtype)


def network(seed: int, copies: int = 1, extra: int = 0) -> nn.Module:
    """All kinds of state in little: a convolution, BatchNorm, a linear layer with a bias."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = (AsWeights(), nn.Conv2d(copies, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(54, copies * CLASSES + extra))


@cache
def teachers(
    first: int = 1, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> DeepEnsemble:
    return DeepEnsemble([network(first + j) for j in range(MEMBERS)]).to(device, dtype)


FORMS: dict[str, Callable[[], Ensemble]] = {
    "batch_ensemble": lambda: BatchEnsemble(network(3), MEMBERS, rng=seeded(4)),
    "member_norm": lambda: BatchEnsemble(network(3), MEMBERS, rng=seeded(4), member_norm=True),
    "branch": lambda: BatchEnsemble(network(3), MEMBERS, rng=seeded(4), branch="3"),
    "mimo": lambda: MIMO(network(3, MEMBERS), MEMBERS, batch_repetition=2, input_repetition=0.3),
    "hydra": lambda: Hydra(network(3), MEMBERS, rng=seeded(4)),
    "latent_be": lambda: LatentBE(network(3), MEMBERS),
    "low_rank": lambda: LoRAEnsemble(network(3), MEMBERS, rank=2, rng=seeded(4)),
    "frozen": lambda: LoRAEnsemble(network(3), MEMBERS, rank=2, rng=seeded(4), factor_std=0.5, freeze=True),
    "separate": lambda: Separate([network(3 + j) for j in range(MEMBERS)]),
    "single": lambda: Single(network(3)),
    "dirichlet": lambda: Dirichlet(network(3)),
    "dlf": lambda: LatentFactor(network(3, extra=2), CLASSES, MEMBERS, factors=2, draws=3),
    "proxy_dirichlet": lambda: Dirichlet(network(3), offset=1.0),
}

Given = tuple[DeepEnsemble, Ensemble, DeepEnsemble]  # teachers, the student, other networks

PERTURBATIONS: dict[str, Callable[[Given], Perturbation]] = {
    "clean": lambda given: Clean(),
    "gaussian": lambda given: Gaussian(STEP),
    "ods": lambda given: ODS(STEP),
    "confods": lambda given: ODS(STEP, scale_by_confidence=True),
    "source": lambda given: WithSource(ODS(STEP), given[2]),
    "adversarial": lambda given: Adversarial(STEP),
    "mixup": lambda given: Mixup(),
    "ods+mixup": lambda given: Chain((ODS(STEP), Mixup())),
    "diversify": lambda given: Diversify(STEP),
}

LOSSES: dict[str, Callable[[DeepEnsemble, Perturbation], Loss]] = {
    "labels": lambda teachers, perturb: CrossEntropy(),
    "one_to_one": lambda teachers, perturb: Distill(teachers, perturb=perturb),
    "mean": lambda teachers, perturb: DistillMean(teachers, perturb=perturb),
    "one_pass": lambda teachers, perturb: Distill(
        teachers, 1.0 if mixes_images(perturb) else 0.7, perturb=perturb, passes="one"
    ),
    "distribution": lambda teachers, perturb: DistillDistribution(teachers, 10, perturb=perturb),
    "factors": lambda teachers, perturb: DistillFactors(teachers, 10, 0.3, perturb=perturb),
    "proxy": lambda teachers, perturb: DistillProxy(teachers, perturb=perturb),
}


def losses_of(form: str) -> list[str]:
    """The names of the losses that a form takes."""
    special = {
        "single": ["labels", "mean"],
        "dirichlet": ["distribution"],
        "proxy_dirichlet": ["proxy"],
        "dlf": ["factors"],
    }
    return special.get(form, ["labels", "one_to_one", "mean", "one_pass"])


def cases(form: str) -> Iterator[tuple[str, str]]:
    """(loss, perturbation): every perturbation with a form's first loss by teachers, some with the others."""
    few = ("clean", "ods+mixup")  # a loss calls any perturbation in the same way
    first = next(loss for loss in losses_of(form) if loss != "labels")
    for loss in losses_of(form):
        for perturb in PERTURBATIONS if loss == first else few:
            if loss == "labels" and perturb != "clean":
                continue
            if perturb == "diversify" and form in ("single", "dirichlet", "proxy_dirichlet", "dlf"):
                continue
            yield loss, perturb


def loss_of(student: Ensemble, loss: str, perturb: str) -> Loss:
    """A loss whose teachers are on the student's device, and in its precision."""
    like = next(student.parameters())
    given = teachers(1, like.device, like.dtype), student, teachers(7, like.device, like.dtype)
    return LOSSES[loss](given[0], PERTURBATIONS[perturb](given))
