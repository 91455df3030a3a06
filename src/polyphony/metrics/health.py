"""Is it an ensemble? A check on predictions that says in words when members have collapsed into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from polyphony.metrics.diversity import disagreement, mean_kld
from polyphony.metrics.probabilities import member_log_probs
from polyphony.metrics.quality import accuracy


class Verdict(IntEnum):
    """From no ensemble to an ensemble.

    The verdict on several findings is the least of them, but members have collapsed only if all say so.
    """

    SINGLE = -1  # one network by design, so nothing has collapsed
    COLLAPSED = 0
    WEAK = 1
    DIVERSE = 2


Finding = tuple[Verdict, str]

# Where collapsed ends and diverse begins: (collapsed below, weak below).
OF_ERRORS = (0.05, 0.25)
"""Disagreement as a share of the members' mean error rate; about 1 for deep ensembles, since independent
networks seldom make the same mistake."""
OF_TEACHERS = (0.05, 0.3)
"""Mean-KLD as a share of the teachers'."""
IN_NATS = (1e-3, 1e-2)
"""Mean-KLD where no teachers are given."""


@dataclass(frozen=True)
class Health:
    """The verdict, and one sentence for each finding behind it."""

    verdict: Verdict
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Spread:
    """How far apart members are on some examples: what `judge` reads."""

    members: int
    disagreement: float  # fraction of pairs of members that name different classes
    error: float  # the members' mean error rate
    kld: float  # mean-KLD in nats

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Spread:
        """Measured on predictions. logits [m n k], labels [n]"""
        members = member_log_probs(logits)
        error = 1 - sum(accuracy(member, labels) for member in members) / len(members)
        return cls(len(members), disagreement(logits), error, mean_kld(logits))


def judge(spread: Spread, teachers_kld: float | None = None, dee: float | None = None) -> Health:
    """The verdict on a spread that was measured on inputs not trained on."""
    if spread.members == 1:
        return _health(
            [(Verdict.SINGLE, "It is one network by design: there are no members to differ.")], dee
        )
    findings = [_disagreement(spread), _divergence(spread.kld, teachers_kld)]
    if any(verdict > Verdict.COLLAPSED for verdict, _ in findings):  # then it is not one predictor
        findings = [(max(verdict, Verdict.WEAK), words) for verdict, words in findings]
    return _health(findings, dee)


def judge_distribution(kld: float, teachers_kld: float | None = None, dee: float | None = None) -> Health:
    """The same on one network that predicts a distribution, two draws from which have this mean-KLD."""
    share = f", {kld / teachers_kld:.2f} of the teachers'" if teachers_kld else ""
    words = (
        "It is one network that predicts a distribution of predictions: it has no members to differ, and two"
        f" draws from it have a mean divergence of {kld:.3g} nats{share}."
    )
    return _health([(Verdict.SINGLE, words)], dee)


def _health(findings: Sequence[Finding], dee: float | None) -> Health:
    """The least verdict, and what the DEE adds."""
    findings = [*findings, *([] if dee is None else [_equivalent(dee)])]
    return Health(min(verdict for verdict, _ in findings), tuple(words for _, words in findings))


def _disagreement(spread: Spread) -> Finding:
    words = f"Two members name different classes on {spread.disagreement:.2%} of the examples"
    if spread.error == 0:
        return Verdict.DIVERSE, f"{words}; none is ever wrong, so harder examples are needed to judge this."
    share = spread.disagreement / spread.error
    verdict = _between(share, OF_ERRORS)
    return verdict, f"{words}, {share:.2f} of their error rate ({spread.error:.2%}): {_HOW[verdict]}."


def _divergence(kld: float, teachers_kld: float | None) -> Finding:
    words = f"Their mean pairwise divergence is {kld:.3g} nats"
    if not teachers_kld:
        verdict = _between(kld, IN_NATS)
        return verdict, f"{words}: {_HOW[verdict]}."
    verdict = _between(kld / teachers_kld, OF_TEACHERS)
    return verdict, f"{words}, {kld / teachers_kld:.2f} of the teachers': {_HOW[verdict]}."


_HOW = {
    Verdict.COLLAPSED: "they hardly differ",
    Verdict.WEAK: "they differ little",
    Verdict.DIVERSE: "they differ as members of an ensemble do",
}


def _between(value: float, limits: tuple[float, float]) -> Verdict:
    collapsed, weak = limits
    return Verdict((value >= collapsed) + (value >= weak))


def _equivalent(dee: float) -> Finding:
    if dee == float("inf"):
        return Verdict.DIVERSE, "It predicts better than all the teachers that were compared, averaged (DEE)."
    if dee > 1:
        return Verdict.DIVERSE, f"It predicts as well as {dee:.2f} teachers averaged (DEE)."
    return Verdict.WEAK, f"It predicts no better than one teacher (DEE {dee:.2f})."
