from __future__ import annotations

import hashlib
import math

import pytest
import torch

from polyphony.compute.seeds import generator
from polyphony.metrics import mean_sd
from polyphony.runs.scores import Dee, differ, mean_text, score_text


def test_a_stream_depends_on_its_purpose_and_number():
    digest = hashlib.sha256(b"subsets 0").digest()
    expected = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
    drawn = torch.randperm(1000, generator=generator("subsets", 0))
    assert torch.equal(drawn, torch.randperm(1000, generator=expected))
    assert not torch.equal(drawn, torch.randperm(1000, generator=generator("subsets", 1)))
    assert not torch.equal(drawn, torch.randperm(1000, generator=generator("student", 0)))


# For people


def test_accuracy_is_in_percent_and_other_scores_have_three_digits():
    assert mean_text("acc", mean_sd([0.93, 0.95])) == "94.00 ± 1.41"
    assert mean_text("nll", mean_sd([0.18, 0.181])) == "0.180 ± 0.001"
    assert mean_text("nll", mean_sd([0.18])) == "0.180"  # one seed has no deviation
    assert score_text("acc", [0.9123], 8) == "91.23"
    assert score_text("kld", [0.05, 0.07], 8) == "0.060 ± 0.014"


def test_missing_scores_are_a_dash():
    assert score_text("kld", [0.0, 0.0], 8) == "–"  # one network
    assert score_text("dee", [None], 8) == "–"
    assert score_text("nll", [0.0], 8) == "0.000"


@pytest.mark.parametrize(
    ("dees", "text", "seeds"),
    [
        ([1.0, 2.0, 3.0], "2.00", "1.00 to 3.00"),
        ([1.0, 2.0], "1.00", "1.00 to 2.00"),
        ([2.516], "2.52", ""),
        ([0.0], "0.00", ""),
        ([math.inf], ">8", ""),
        ([math.inf, math.inf], ">8", ""),
        ([math.inf, 5.004, 7.0], "7.00", "5.00 to >8"),
    ],
)
def test_without_a_curve_the_dee_is_that_of_the_lower_median_seed(dees, text, seeds):
    assert score_text("dee", dees, 8) == text
    assert Dee.of(dees, 8).seeds == seeds


def test_with_a_curve_the_dee_is_that_of_the_mean_nll():
    curve = [2.0, 1.0, 0.5, 0.4]
    dee = Dee.of([2.0, math.inf], 3, 0.45, curve)  # one seed has 0.5, one 0.4 or less
    assert (dee.value, dee.text, dee.seeds) == (pytest.approx(2.5), "2.50", "2.00 to >3")
    assert Dee.of([math.inf], 3, 0.1, curve).text == ">3"


def test_students_differ_if_the_interval_of_their_paired_difference_excludes_zero():
    assert differ({0: 1.0, 1: 1.1}, {0: 2.0, 1: 2.11})
    assert not differ({0: 1.0, 1: 2.0}, {0: 1.5, 1: 2.6})
    assert not differ({0: 1.0}, {0: 2.0})  # one pair
    assert not differ({0: 1.0, 1: 1.1}, {0: 2.0, 2: 2.1})  # one seed in common
