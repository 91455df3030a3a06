"""Real students: one whose members start from the same factors and so stay alike, and one that is diverse."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn

from polyphony.data import Augmentation, Split
from polyphony.distill import CrossEntropy
from polyphony.ensembles import BatchEnsemble, Single
from polyphony.nn import factor_distance, factors
from polyphony.runs.stage import Stage
from polyphony.training.collapse import is_collapsed
from polyphony.training.fit import Plan, fit

EPOCHS, WARM_UP = 12, 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def split(n: int, seed: int) -> Split:
    """Faint stripes on noise, so that some examples are got wrong: the label is the column."""
    labels = torch.randint(3, (n,), generator=seeded(seed))
    images = torch.randint(160, (n, 1, 5, 5), generator=seeded(seed + 1))
    images[torch.arange(n), 0, :, labels] += 35
    return Split(images.to(torch.uint8), labels)


TRAIN, VALID = split(64, 1), split(200, 3)


class Heard:
    """A watch that keeps warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def step(self, done: int, steps: int, row: dict[str, float]) -> None: ...

    def epoch(self, row: dict[str, float]) -> None: ...

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


def diverse() -> BatchEnsemble:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        network = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3))
    return BatchEnsemble(network, 3, rng=seeded(5))


@torch.no_grad()
def collapsed() -> BatchEnsemble:
    student = diverse()
    for factor in factors(student):
        factor.copy_(factor[:1].expand_as(factor))
    return student


def train(
    student: Any, watch: Heard | None = None, epochs: int = EPOCHS, **settings: Any
) -> tuple[list[dict[str, float]], list[str]]:
    watch = watch or Heard()
    plan = Plan(epochs, 16, 0.02, warm_up=WARM_UP, augment=Augmentation(pad=0, flip=False))
    log = fit(student, CrossEntropy(), TRAIN, VALID, plan, seeded(6), watch=watch, **settings)
    return log, watch.warnings


def test_a_collapsed_student_is_reported_once_after_the_warm_up():
    log, warnings = train(collapsed())
    assert [row["valid_disagreement"] for row in log] == pytest.approx([0] * EPOCHS, abs=0.01)
    assert len(warnings) == 1
    assert f"after epoch {WARM_UP + 3} the members are almost one predictor" in warnings[0]
    assert "different classes on 0.00% of the validation images" in warnings[0]
    assert "their factors differ by 0% of their norm" in warnings[0]


def test_a_diverse_student_is_not():
    log, warnings = train(diverse())
    assert log[-1]["valid_member_acc"] < 1
    assert log[4]["valid_disagreement"] < 0.05 * (1 - log[4]["valid_member_acc"])  # alike for one epoch
    assert warnings == []


def test_the_log_says_how_the_members_differ_on_validation():
    student = diverse()
    (row,), _ = train(student, epochs=1)
    with torch.no_grad():
        logits = student.eval()((VALID.images.float() / 255).expand(3, -1, -1, -1, -1)).double()
    named, log_probs = logits.argmax(-1), logits.log_softmax(-1)
    pairs = list(permutations(range(3), 2))
    differ = sum(float((named[i] != named[j]).double().mean()) for i, j in pairs) / len(pairs)
    kld = sum(
        float((log_probs[j].exp() * (log_probs[j] - log_probs[i])).sum(-1).mean()) for i, j in pairs
    ) / len(pairs)
    assert row["valid_disagreement"] == pytest.approx(differ)
    assert row["valid_kld"] == pytest.approx(kld, rel=1e-4)
    assert row["valid_member_acc"] == pytest.approx(float((named == VALID.labels).double().mean()))
    assert row["factor_distance"] == factor_distance(student)


def test_members_that_are_meant_to_become_one_are_left_in_peace():
    student = collapsed()
    student.expects_diversity = False
    log, warnings = train(student)
    assert log[-1]["valid_kld"] == pytest.approx(0, abs=1e-6)
    assert warnings == []


def test_one_network_has_no_members_to_compare():
    log, warnings = train(Single(diverse().member(0)))
    assert not {"valid_member_acc", "valid_disagreement", "valid_kld", "factor_distance"} & log[-1].keys()
    assert warnings == []


def test_the_first_tenth_of_a_long_training_is_not_judged():
    _, warnings = train(collapsed(), epochs=60)
    assert "after epoch 9 " in warnings[0]


@pytest.mark.parametrize(
    ("accuracy", "disagreement", "kld", "alike"),
    [
        (0.9, 0.0, 0.0, True),
        (0.9, 0.0049, 0.0009, True),
        (0.9, 0.0051, 0.0009, False),  # they name different classes on 5 % of what they get wrong
        (0.9, 0.0049, 0.0011, False),  # they have other confidences
        (1.0, 0.0, 0.0, False),  # never wrong, and so agree
    ],
)
def test_members_count_as_one_if_both_their_classes_and_confidences_agree(accuracy, disagreement, kld, alike):
    row = {"valid_member_acc": accuracy, "valid_disagreement": disagreement, "valid_kld": kld}
    assert is_collapsed(row) == alike


class StopsAt:
    """A stage that loses power after the save of one epoch."""

    def __init__(self, stage: Stage, epoch: int) -> None:
        self.stage, self.epoch = stage, epoch

    def load(self) -> dict[str, Any] | None:
        return self.stage.load()

    def save(self, state: dict[str, Any]) -> None:
        self.stage.save(state)
        if len(state["log"]) == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("stop", "again"), [(2, 1), (5, 1), (6, 0), (7, 0)])
def test_a_resumed_training_says_it_once_in_all_and_logs_the_same(tmp_path, stop: int, again: int):
    whole, _ = train(collapsed())
    stage = Stage(tmp_path / "run", {})
    first = Heard()
    with pytest.raises(KeyboardInterrupt):
        train(collapsed(), first, checkpoint=StopsAt(stage, stop))
    log, warnings = train(collapsed(), checkpoint=stage)
    assert (len(first.warnings), len(warnings)) == (1 - again, again)
    columns = ("valid_member_acc", "valid_disagreement", "valid_kld", "factor_distance", "loss")
    assert [[row[c] for c in columns] for row in log] == [[row[c] for c in columns] for row in whole]
