"""What the teachers' disagreement says about how to distil them, in words that a person can follow."""

from __future__ import annotations

from polyphony.metrics import Predictions
from polyphony.report.run import Run
from polyphony.scores import TEACHERS
from polyphony.words import listed

LITTLE, ENOUGH, MUCH = 0.25, 0.5, 2.0  # of the teachers' disagreement on validation images
WARM = 4.0  # the temperature that is suggested


def hints(run: Run) -> list[str]:
    """Whether the teachers show on training images what they know, at the student's temperature."""
    clean, held = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if clean is None or held is None or run.members == 1 or not held.mean_kld():
        return []
    warmth = run.recipe.student.temperature
    share = share_shown(clean, held, warmth)
    said = (
        f"At τ = {warmth:g} the teachers’ disagreement on training images is {_kld(clean, warmth):.2g}"
        f" (mean-KLD), {share:.0%} of that on validation images:"
    )
    if share >= LITTLE:
        return [f"{said} plain distillation sees their diversity, and a perturbation has little to add."]
    ways_out = [_of_perturbation(names, share_shown(seen, held, warmth)) for names, seen in run.moved]
    warm = share_shown(clean, held, WARM)
    if warmth < WARM and warm >= LITTLE:
        ways_out.append(
            f"At τ = {WARM:g} training images show {warm:.0%} of it without any: a temperature is the cheaper"
            " way."
        )
    return [f"{said} plain distillation learns little more than labels.", *ways_out]


def _of_perturbation(names: list[str], share: float) -> str:
    """How far methods that perturb alike bring the disagreement out."""
    shown = f"Where {listed(names)} move{'s' * (len(names) == 1)} them they show {share:.0%} of it"
    if share > MUCH:
        return f"{shown}, more than there is to learn: a smaller step may do better."
    return f"{shown}{', enough to learn from' if share >= ENOUGH else ': a larger step would show more'}."


def share_shown(seen: Predictions, held: Predictions, temperature: float) -> float:
    """The teachers' mean-KLD on some images as a share of that on held-out ones, both at a temperature."""
    return _kld(seen, temperature) / _kld(held, temperature)


def _kld(teachers: Predictions, temperature: float) -> float:
    return Predictions(teachers.logits / temperature, teachers.labels).mean_kld()
