"""Bad input of every kind ends with a result or one sentence: a few here, thousands in benchmarks/fuzz.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import Kind, judge
from kinds import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=15, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32))
def test_every_answer_is_a_result_or_a_sentence(kind: Kind, seed: int) -> None:
    judge(kind, str(seed))
