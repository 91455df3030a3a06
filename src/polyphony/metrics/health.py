"""Is it an ensemble? A check on predictions that says in words when members have collapsed into one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from polyphony.metrics.diversity import disagreement, mean_kld
from polyphony.metrics.probabilities import check, member_log_probs
from polyphony.metrics.quality import accuracy


class Verdict(IntEnum):
    """From no ensemble to an ensemble; the verdict on several findings is the least of them."""

    COLLAPSED = 0
    WEAK = 1
    DIVERSE = 2


@dataclass(frozen=True)
class Health:
    """The verdict, and one sentence for each finding behind it."""

    verdict: Verdict
    findings: tuple[str, ...]


@dataclass(frozen=True)
class HealthCheck:
    """Where collapsed ends and diverse begins, as (collapsed below, weak below).

    `of_errors`: disagreement as a share of the members' mean error rate; about 1 for deep ensembles, since
    independent networks seldom make the same mistake. `of_teachers`: mean-KLD as a share of the teachers'.
    `kld`: mean-KLD in nats, used where no teachers are given.
    """

    of_errors: tuple[float, float] = (0.05, 0.25)
    of_teachers: tuple[float, float] = (0.05, 0.3)
    kld: tuple[float, float] = (1e-3, 1e-2)

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        teachers_kld: float | None = None,
        dee: float | None = None,
    ) -> Health:
        """Judge predictions on inputs not trained on. logits [m n k], labels [n]"""
        if len(logits) == 1:
            return Health(Verdict.COLLAPSED, ("It has one member: a single network, not an ensemble.",))
        findings = [self._disagreement(logits, labels), self._divergence(mean_kld(logits), teachers_kld)]
        if dee is not None:
            findings.append(_equivalent(dee))
        return Health(min(verdict for verdict, _ in findings), tuple(words for _, words in findings))

    def _disagreement(self, logits: Tensor, labels: Tensor) -> tuple[Verdict, str]:
        members = member_log_probs(logits)
        check(members[0], labels)
        error = 1 - sum(accuracy(member, labels) for member in members) / len(members)
        share = disagreement(logits)
        words = f"Two members name different classes on {share:.2%} of the examples"
        if error == 0:
            return (
                Verdict.DIVERSE,
                f"{words}; none is ever wrong, so harder examples are needed to judge this.",
            )
        verdict = _between(share / error, self.of_errors)
        return verdict, f"{words}, {share / error:.2f} of their error rate ({error:.2%}): {_HOW[verdict]}."

    def _divergence(self, kld: float, teachers_kld: float | None) -> tuple[Verdict, str]:
        words = f"Their mean pairwise divergence is {kld:.3g} nats"
        if not teachers_kld:
            verdict = _between(kld, self.kld)
            return verdict, f"{words}: {_HOW[verdict]}."
        verdict = _between(kld / teachers_kld, self.of_teachers)
        return verdict, f"{words}, {kld / teachers_kld:.2f} of the teachers': {_HOW[verdict]}."


_HOW = {
    Verdict.COLLAPSED: "they have collapsed into one predictor",
    Verdict.WEAK: "they differ little",
    Verdict.DIVERSE: "they differ as members of an ensemble do",
}


def _between(value: float, limits: tuple[float, float]) -> Verdict:
    collapsed, weak = limits
    return Verdict((value >= collapsed) + (value >= weak))


def _equivalent(dee: float) -> tuple[Verdict, str]:
    if dee > 1:
        count = "more teachers than were compared" if dee == float("inf") else f"{dee:.2f} teachers"
        return Verdict.DIVERSE, f"It predicts as well as {count} averaged (DEE)."
    return Verdict.WEAK, f"It predicts no better than one teacher (DEE {dee:.2f})."
