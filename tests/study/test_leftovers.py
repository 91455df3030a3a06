"""What a changed recipe leaves behind: refused, replaced, listed, removed; and what a run would do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from polyphony.runs.store import ChangedError
from polyphony.study.leftovers import leftovers, resolve_conflicts
from polyphony.study.plan import Upto
from polyphony.study.run import job_states
from polyphony.study.status import run_leftovers
from polyphony.study.study import Study

TWO = "methods={scratch={}, kd={perturb='clean'}}"


class Warned:
    """A board that remembers warnings."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def warn(self, name: str, sentence: str) -> None:
        self.said.append((name, sentence))


@pytest.fixture(scope="module")
def finished_run(run, tmp_path_factory) -> Study:
    """A finished run of two methods, which nobody may change."""
    study, _, _ = run(tmp_path_factory.mktemp("made") / "run", TWO)
    return study


@pytest.fixture
def jobs(finished_run, tiny_recipe, jobs_of, tmp_path) -> Callable[..., tuple[Path, list]]:
    """The folder of a copy of the run, and the jobs there of a changed recipe."""

    def change(*overrides: str) -> tuple[Path, list]:
        folder = tmp_path / "run"
        if not folder.exists():
            shutil.copytree(finished_run.folder, folder)
        return folder, list(jobs_of(Study(tiny_recipe(TWO, *overrides), folder)).values())

    return change


def names(folder: Path, paths: list[Path]) -> set[str]:
    return {str(path.relative_to(folder)) for path in paths}


def test_what_is_named_is_no_leftover(jobs):
    folder, same = jobs()
    assert leftovers(folder, same) == []
    resolve_conflicts(same, Warned(), redo=False)


def test_results_of_methods_seeds_and_keys_that_are_gone_are_leftovers(jobs):
    folder, changed = jobs("seeds=[0]", "methods.kd.alpha=0.5")
    expected = {f"students/{method}/1" for method in ("kd", "scratch")} | {"students/kd/0"}
    splits = ("train", "valid", "test")
    expected |= {f"predictions/{m}/1/{split}.safetensors" for m in ("kd", "scratch") for split in splits}
    expected |= {f"predictions/kd/0/{split}.safetensors" for split in splits}
    assert names(folder, leftovers(folder, changed)) == expected


def test_a_renamed_method_leaves_its_old_folder(jobs):
    folder, changed = jobs("methods={scratch={}, renamed={perturb='clean'}}")
    paths = names(folder, leftovers(folder, changed))
    assert {name.split("/")[1] for name in paths} == {"kd"}
    assert {"students/kd/0", "students/kd/1"} < paths


def test_what_analyses_have_predicted_stays_with_its_model(jobs):
    folder, changed = jobs("seeds=[0]")
    for seed in (0, 1):
        own = folder / "predictions" / "kd" / str(seed)
        shutil.copyfile(own / "test.safetensors", own / "ood-svhn.safetensors")
    paths = names(folder, leftovers(folder, changed))
    assert "predictions/kd/1/ood-svhn.safetensors" in paths
    assert "predictions/kd/0/ood-svhn.safetensors" not in paths


def test_trainings_of_another_key_are_refused_or_removed_after_saying_how_much(jobs):
    folder, changed = jobs("student.epochs=3")
    board = Warned()
    with pytest.raises(ChangedError, match=r"students/scratch/0 was made with another schedule\.epochs"):
        resolve_conflicts(changed, board, redo=False)
    assert board.said == []
    assert (folder / "students" / "kd" / "1" / "done.json").exists()
    resolve_conflicts(changed, board, redo=True)
    ((who, words),) = board.said
    assert who == str(folder)
    assert words.startswith("removes 4 trainings (")
    assert "MB) made with another schedule.epochs (2, now 3)" in words
    assert not list((folder / "students").rglob("done.json"))
    assert sorted(path.name for path in (folder / "predictions").iterdir() if any(path.iterdir())) == [
        "teachers"
    ]
    assert len(list((folder / "teachers").rglob("done.json"))) == 3


def test_a_dry_run_says_what_is_done_linked_started_changed_and_missing(
    jobs, finished_run, jobs_of, tmp_path
):
    folder, _ = jobs()
    shutil.rmtree(folder / "students" / "scratch" / "0")
    shutil.rmtree(folder / "teachers" / "2")
    _, changed = jobs("methods.kd.alpha=0.5", "seeds=[0, 1, 2]")
    changed[1].result.remove()
    changed[1].result.start()
    shutil.copytree(finished_run.folder, tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "teachers" / "1")
    before = sorted(tmp_path.rglob("*"))
    states = job_states(changed, tmp_path)
    assert states["teacher 0"] == "done"
    assert states["teacher 1"] == "started"
    assert states["teacher 2"] == f"linked from {tmp_path / 'other'}"
    assert states["scratch, seed 0"] == f"linked from {tmp_path / 'other'}"
    assert states["kd, seed 0"] == "made with another method.alpha (0.9, now 0.5)"
    assert states["scratch, seed 2"] == "to do"
    assert states["predict scratch, seed 0, on test"] == "done"
    assert sorted(tmp_path.rglob("*")) == before


def test_the_leftovers_of_a_run_are_those_of_its_own_recipe(jobs, run):
    folder, _ = jobs()
    run(folder, "methods={scratch={}}", upto=Upto.DISTILL)
    paths = names(folder, run_leftovers(folder, None))
    assert {name.split("/")[1] for name in paths} == {"kd"}


def test_clean_lists_and_removes_only_if_asked_to(jobs, run, say):
    folder, _ = jobs()
    assert "holds nothing that its recipe does not name" in say("clean", folder).out
    run(folder, "methods={scratch={}}", upto=Upto.DISTILL)
    said = say("clean", folder).out
    assert str(folder / "students" / "kd" / "0") in said
    assert "does not name 8 results (" in said
    assert (folder / "students" / "kd" / "0").exists()
    assert "Removed 8 results (" in say("clean", folder, "--yes").out
    assert not list((folder / "students" / "kd").rglob("*.safetensors"))
    assert (folder / "students" / "scratch" / "0" / "done.json").exists()


def test_a_dry_run_shows_the_plan_and_writes_nothing(say, tiny_digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [f"--set={key}" for key in (*tiny_digits, "teachers.extra=0", "seeds=[0]")]
    for verb, trainings in (("teach", 2), ("study", 7)):
        said = say(verb, "digits", *small, "--dry-run")
        assert said.code == 0, said.err
        assert f"{trainings} of {trainings} trainings" in said.out
        assert "to do" in said.out
    said = say("sweep", "digits", *small, "--alpha", "0.5,1", "--dry-run")
    assert "4 of 4 trainings and 3 of 3 predictions" in said.out
    assert list(tmp_path.iterdir()) == []


def test_the_points_of_a_search_are_not_known_before(say, refused, tiny_digits):
    small = [f"--set={key}" for key in tiny_digits]
    answer = say("sweep", "digits", *small, "--alpha", "0.5,1", "--trials", "3", "--dry-run")
    refused(answer, "leave out --trials or --dry-run")
