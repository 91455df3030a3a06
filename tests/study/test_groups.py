from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from polyphony.study.trust import GroupsError, add_groups, read_groups


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_column_is_kept_beside_others(tmp_path):
    source = write(tmp_path / "photos.csv", 'file,camera,place\na.png,old,indoors\nb.png,new,"out, doors"\n')
    assert add_groups(tmp_path, f"{source}:camera", 2) == "camera"
    add_groups(tmp_path, f"{source}:place", 2)
    assert read_groups(tmp_path) == {"camera": ["old", "new"], "place": ["indoors", "out, doors"]}
    write(source, "camera\nnew\nnew\n")
    add_groups(tmp_path, f"{source}:camera", 2)
    assert read_groups(tmp_path)["camera"] == ["new", "new"]


def test_a_run_without_them_has_none(tmp_path):
    assert read_groups(tmp_path) == {}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("photos.csv", "names no column: write FILE.csv:COLUMN"),
        ("photos.csv:camrea", "has no column 'camrea'; did you mean 'camera'"),
        ("photos.csv:class", "every run has groups by 'class'"),
        ("nowhere.csv:camera", "cannot be read as a CSV file"),
        ("short.csv:camera", "has 1 rows, but the run has 2 test images"),
        ("uneven.csv:camera", "more or fewer cells than its header"),
    ],
)
def test_what_says_nothing_of_the_images_is_one_sentence(tmp_path, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "photos.csv", "camera\nold\nnew\n")
    write(tmp_path / "short.csv", "camera\nold\n")
    write(tmp_path / "uneven.csv", "camera,place\nold\nnew,indoors\n")
    with pytest.raises(GroupsError, match=words):
        add_groups(tmp_path, source, 2)


def test_scores_of_groups_follow_the_column_through_every_evaluation(finished, run, tmp_path):
    folder = shutil.copytree(finished[0].folder, tmp_path / "run")
    images = len(finished[0].data().test)
    groups = ["first", "second"] * (images // 2) + ["second"] * (images % 2)
    write(tmp_path / "g.csv", "half\n" + "\n".join(groups) + "\n")
    add_groups(folder, f"{tmp_path / 'g.csv'}:half", images)
    run(folder)
    rows = list(csv.DictReader((folder / "analysis" / "groups.csv").read_text().splitlines()))
    counts_of = {(row["model"], row["seed"]): {} for row in rows}
    for row in (row for row in rows if row["by"] == "half"):
        counts_of[row["model"], row["seed"]][row["group"]] = int(row["n"])
    counts = {name: groups.count(name) for name in ("first", "second")}
    assert all(model_counts == counts for model_counts in counts_of.values())
