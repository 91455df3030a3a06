from __future__ import annotations

import pytest

from polyphony._util.text import counted, duration, listed, one_line, short_number


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (240, "4 min"), (7200, "2.0 h"), (864000, "10 d")]
)
def test_durations_have_a_readable_unit(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(("things", "text"), [(473_324, "473.3 k"), (36_615_868, "36.62 M"), (512, "512")])
def test_counts_are_short(things: int, text: str):
    assert short_number(things) == text


def test_counted_things_have_a_plural():
    assert [counted(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


def test_lists_end_in_and():
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_a_sentence_is_one_short_printable_line() -> None:
    assert one_line("a.npz is\n no  file") == "a.npz is no file"
    assert one_line("\x1b[2J \udc80") == "?[2J ?"
    long = one_line(f"/data/{'x' * 5000}.npz has the label {'9' * 5000}, outside 0..9; replace it")
    assert len(long) <= 300
    assert long.startswith("/data/xxx")
    assert "has the label 999" in long
    assert long.endswith("outside 0..9; replace it")
    assert len(one_line("many short words " * 1000)) == 300
