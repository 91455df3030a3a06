from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from polyphony.recipe import read_recipe
from polyphony.runs.stage import Stage
from polyphony.runs.store import read_json, write_json
from polyphony.study import status

LOG = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": 0.5}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study of which one teacher is done, one runs, one was killed, and nothing else is begun."""
    recipe = read_recipe("digits", ["members=2", "seeds=[0]", "teachers.extra=2"])
    write_json(tmp_path / "recipe.json", {"recipe": recipe.model_dump(mode="json", exclude_none=True)})
    done, running, killed = (Stage(tmp_path / "teachers" / str(j), {"j": j}) for j in range(3))
    done.finish({"weight": torch.zeros(1)}, {})
    for stage in (running, killed):
        stage.start()
        stage.save({"log": LOG})
    ended = subprocess.Popen(["true"])
    ended.wait()
    record = killed.folder / "started.json"
    write_json(record, read_json(record) | {"pid": ended.pid})
    return tmp_path


def test_a_folder_tells_what_is_done_running_stopped_and_missing(folder, say):
    printed = json.loads(say("status", folder, "--json").out)
    states = {part["name"]: part["state"] for part in printed["trainings"]}
    assert [states[f"teacher {j}"] for j in range(4)] == ["done", "running", "stopped", "missing"]
    assert set(list(states.values())[4:]) == {"missing"}
    assert len(states) == 4 + len(read_recipe("digits", []).methods)
    assert [part["epochs"] for part in printed["trainings"]][:4] == [50, 2, 2, 0]
    assert printed["trainings"][1]["host"] == platform.node()
    assert not printed["scored"]


def test_the_table_says_where_and_how_far(folder, say):
    said = say("status", folder)
    assert said.code == 0
    line, *table = said.out.splitlines()
    assert "1 of 9 trainings done (1 running, 1 stopped, 6 missing)" in line
    (row,) = [row for row in table if "running" in row]
    assert "2 of 50" in row
    assert not any("teacher 0" in row for row in table)


def test_what_is_no_run_is_one_sentence(tmp_path, say, refused):
    refused(say("status", tmp_path), tmp_path, "not a run folder")


def rewrite(folder: Path, **facts: object) -> Path:
    """Let the record of the training that runs say something else."""
    record = folder / "teachers" / "1" / "started.json"
    write_json(record, read_json(record) | facts)
    return record


@pytest.mark.parametrize(
    "facts", [{"since": "yesterday"}, {"since": 5}, {"host": 3}, {"host": "other", "pid": "1"}], ids=repr
)
def test_a_record_that_says_what_was_not_written_is_one_sentence(folder, say, refused, facts):
    record = rewrite(folder, **facts)
    refused(say("status", folder), record, "is damaged")
    refused(say("status", folder, "--json"), record, "is damaged")


def test_a_host_that_looks_like_markup_is_shown_as_it_is(folder, say):
    rewrite(folder, host="[/x]")
    assert "[/x]" in say("status", folder).out


@pytest.mark.parametrize("before", ["read_json", "read_bytes"], ids=["the record", "the log"])
def test_a_training_that_ends_while_it_is_looked_at_is_done(tmp_path, monkeypatch, before):
    stage = Stage(tmp_path, {"j": 0}).start()
    stage.save({"log": LOG})
    read = getattr(status, before)

    def read_late(path: Path) -> object:
        stage.finish({"weight": torch.zeros(1)}, {})
        return read(path)

    monkeypatch.setattr(status, before, read_late)
    assert status.training_status("teacher 0", 2, tmp_path).state == "done"
