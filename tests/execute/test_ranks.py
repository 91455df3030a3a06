"""One training in processes that have ranks, without torchrun."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from polyphony._util.text import SettingError
from polyphony.compute.parallel import GoneError
from polyphony.data import DataError
from polyphony.execute.processes import WorkerLostError
from polyphony.execute.ranks import run_in_ranks
from polyphony.execute.runner import run_job
from polyphony.study.study import Study


def one_thread() -> None:
    torch.set_num_threads(1)


def second_ends() -> None:
    if os.environ["RANK"] == "1":
        os._exit(9)


def second_has_no_data() -> None:
    one_thread()
    if os.environ["RANK"] == "1":
        Study.data = missing


def missing(study: Study) -> None:
    raise DataError("there is no such data here")


@pytest.fixture
def study(tiny_recipe, tmp_path: Path) -> Study:
    return Study(tiny_recipe("teachers.epochs=2"), tmp_path / "one")


def test_two_ranks_train_what_one_process_trains(study: Study, tmp_path: Path, board, jobs_of):
    other = replace(study, folder=tmp_path / "two")
    run_job(jobs_of(study)["teacher 0"], board)
    run_in_ranks(jobs_of(other)["teacher 0"], 2, one_thread, board)
    assert board.jobs == 2 * ["teacher 0"]
    assert other.teacher(0).record()["machine"]["processes"] == 2
    theirs = load_file(other.teacher(0).folder / "weights.safetensors")
    for name, weight in load_file(study.teacher(0).folder / "weights.safetensors").items():
        torch.testing.assert_close(theirs[name], weight, rtol=1e-3, atol=1e-4)


def test_a_lost_or_failed_rank_ends_the_training(study: Study, tiny_recipe, board, jobs_of):
    with pytest.raises((WorkerLostError, GoneError)):
        run_in_ranks(jobs_of(study)["teacher 0"], 2, second_ends, board)
    compiled = replace(study, recipe=tiny_recipe("compile=true"))
    with pytest.raises(SettingError, match="several processes cannot be compiled"):
        run_in_ranks(jobs_of(compiled)["teacher 0"], 2, one_thread, board)


def test_data_that_only_one_rank_lacks_is_named(study: Study, board, jobs_of):
    with pytest.raises(DataError, match="no such data here"):
        run_in_ranks(jobs_of(study)["teacher 0"], 2, second_has_no_data, board)
