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

    SINGLE = -1  # one network by design, so nothing has collapsed
    COLLAPSED = 0
    WEAK = 1
    DIVERSE = 2


@dataclass(frozen=True)
class Health:
    """The verdict, and one sentence for each finding behind it."""

    verdict: Verdict
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Spread:
    """How far apart members are on some examples: what the check judges."""

    members: int
    disagreement: float  # fraction of pairs of members that name different classes
    error: float  # the members' mean error rate
    kld: float  # mean-KLD in nats
    distribution: bool = False  # one network that predicts a distribution: what differs are draws from it

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Spread:
        """Measured on predictions. logits [m n k], labels [n]"""
        members = member_log_probs(logits)
        check(members[0], labels)
        error = 1 - sum(accuracy(member, labels) for member in members) / len(members)
        return cls(len(members), disagreement(logits), error, mean_kld(logits))


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
        return self.judge(Spread.of(logits, labels), teachers_kld, dee)

    def judge(self, spread: Spread, teachers_kld: float | None = None, dee: float | None = None) -> Health:
        """The verdict on a spread that was measured on inputs not trained on."""
        if spread.distribution:
            findings = [(Verdict.SINGLE, _distribution(spread.kld, teachers_kld))]
        elif spread.members == 1:
            findings = [(Verdict.SINGLE, "It is one network by design: there are no members to differ.")]
        else:
            findings = [self._disagreement(spread), self._divergence(spread.kld, teachers_kld)]
        if dee is not None:
            findings.append(_equivalent(dee))
        return Health(min(verdict for verdict, _ in findings), tuple(words for _, words in findings))

    def _disagreement(self, spread: Spread) -> tuple[Verdict, str]:
        words = f"Two members name different classes on {spread.disagreement:.2%} of the examples"
        if spread.error == 0:
            return (
                Verdict.DIVERSE,
                f"{words}; none is ever wrong, so harder examples are needed to judge this.",
            )
        share = spread.disagreement / spread.error
        verdict = _between(share, self.of_errors)
        return verdict, f"{words}, {share:.2f} of their error rate ({spread.error:.2%}): {_HOW[verdict]}."

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


def _distribution(kld: float, teachers_kld: float | None) -> str:
    share = f", {kld / teachers_kld:.2f} of the teachers'" if teachers_kld else ""
    return (
        "It is one network that predicts a distribution of predictions: it has no members to differ, and two"
        f" draws from it have a mean divergence of {kld:.3g} nats{share}."
    )


def _equivalent(dee: float) -> tuple[Verdict, str]:
    if dee == float("inf"):
        return Verdict.DIVERSE, "It predicts better than all the teachers that were compared, averaged (DEE)."
    if dee > 1:
        return Verdict.DIVERSE, f"It predicts as well as {dee:.2f} teachers averaged (DEE)."
    return Verdict.WEAK, f"It predicts no better than one teacher (DEE {dee:.2f})."
