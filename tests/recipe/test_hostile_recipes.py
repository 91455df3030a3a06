"""Recipes and overrides made to hang, to overflow or to fill the memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyphony.recipe import RecipeError, read_recipe


def refused(fault: str, source: str | Path = "digits", *overrides: str) -> None:
    with pytest.raises(RecipeError, match=fault) as caught:
        read_recipe(source, overrides)
    assert len(str(caught.value)) <= 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "step", ["1e999999999", "1e-999999999", "1/1e999999999", "1e999999999/1", "inf", "nan", "1/0"]
)
def test_a_step_size_with_a_huge_exponent(step: str) -> None:
    refused("must be a number or a fraction above 0", "digits", f'student.step_size="{step}"')


@pytest.mark.parametrize(
    ("text", "size"), [('"1/255"', 1 / 255), ('" 1 / 255 "', 1 / 255), ("0.5", 0.5), ("1", 1.0)]
)
def test_a_step_size_is_a_number_or_a_fraction(text: str, size: float) -> None:
    assert read_recipe("digits", [f"student.step_size={text}"]).student.step_size == size


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("student.alpha=" + "9" * 1900, "student.alpha"),
        ("student.alpha=" + "9" * 5000, "in a line"),
        ("student.alpha=0x" + "f" * 1900, "student.alpha"),
        ("student.alpha=" + "[" * 1900, "nested too deeply"),
        ("student.alpha=" + "[" * 900 + "]" * 900, "nested too deeply|student.alpha"),
        ("student.alpha=" + "{a=" * 600, "nested too deeply"),
        (".".join("a" * 5000) + "=1", "nested too deeply"),
        ("x" * 100_000 + "=1", "has no key"),
        ("student.alpha=\udc80", "digits.toml"),
        ("student.alpha=0.5\nstudent.temperature=3", "student.alpha"),
        ("data.name=", "data.name must not be empty"),
        ("data.resolution=1000000000000", "data.resolution must be less"),
        ("data.per_class=" + "9" * 30, "data.per_class must be"),
        ("teachers.network.width=1000000000", "teachers.network.width must be less"),
        ("teachers.network.depth=6000002", "must be 6n"),
        ("teachers.epochs=" + "9" * 30, "teachers.epochs must be"),
        ("student.temperature=1e300", "student.temperature must be less"),
        ("members=" + "9" * 30, "members must be"),
        ("seeds=[" + "0, " * 500 + "]", "must be different"),
    ],
)
def test_overrides_out_of_all_bounds(override: str, fault: str) -> None:
    refused(fault, "digits", override)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "9" * 5000,
        "x = " + "[" * 1000,
        "a." * 900 + "a = 1",
        "a." * 30_000 + "a = 1",  # Python's reader takes a minute
        "# " + "x" * 100_000,
        "x = 1\n" * 20_000,
        "\udcff",
        "\0",
        "name = '\x1b[2J'",
    ],
)
def test_files_that_are_no_recipe(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused("x.toml", tmp_path / "x.toml")


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", "\udc80"])
def test_a_name_that_no_file_can_have(source: str) -> None:
    refused("there is no recipe", source)


@pytest.mark.parametrize("source", ["", ".", "/dev/zero"])
def test_a_path_that_is_not_a_file(source: str) -> None:
    refused("is not a file: a recipe is a TOML file", source)


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.toml")
    refused("is not a file", tmp_path / "x.toml")
