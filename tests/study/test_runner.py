"""Which jobs a graph gives out when, and how they run in this process."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from polyphony.recipe import read_recipe
from polyphony.study import Graph, Here, Study
from polyphony.study.evaluation import PredictShifted
from polyphony.study.run import Upto, jobs_of
from polyphony.study.shifts import Unknown


@dataclass
class Job:
    """A job that knows what it needs, and is done where its name is among what is there."""

    name: str
    needs: tuple[Job, ...] = ()
    there: set[str] = field(default_factory=set, repr=False)
    epochs: int = 1

    def is_done(self) -> bool:
        missing = [need.name for need in self.needs if need.name not in self.there]
        assert not missing, f"{self.name} was asked before {missing}"
        return self.name in self.there

    def run(self, watch) -> None:
        self.there.add(self.name)


def chain(there: Iterable[str] = ()) -> list[Job]:
    """Two teachers, a student of the first, one of both, one of none, and a prediction of each."""
    done = set(there)
    first, second = Job("t0", (), done), Job("t1", (), done)
    students = [Job("s0", (first,), done), Job("s01", (first, second), done), Job("s", (), done)]
    return [first, second, *students, *(Job(f"p{s.name}", (s,), done) for s in students)]


def taken(graph: Graph) -> list[str]:
    """All that can be started now."""
    found = []
    while (job := graph.next()) is not None:
        found.append(job.name)
    return found


def finish(graph: Graph, jobs: list[Job], name: str) -> None:
    next(job for job in jobs if job.name == name).run(None)
    graph.finish(name)


def test_a_job_is_given_out_as_soon_as_what_it_needs_is_there_and_no_later():
    jobs = chain()
    graph = Graph(jobs)
    assert taken(graph) == ["t0", "t1", "s"]
    finish(graph, jobs, "s")
    assert taken(graph) == ["ps"]  # while both teachers are still being trained
    finish(graph, jobs, "t0")
    assert taken(graph) == ["s0"]  # while the other teacher is
    finish(graph, jobs, "s0")
    assert taken(graph) == ["ps0"]
    finish(graph, jobs, "t1")
    assert taken(graph) == ["s01"]
    assert graph.running == {"ps", "ps0", "s01"}
    assert graph.left() == 4  # those three, and the prediction of s01


def test_what_is_done_is_passed_over_and_what_needs_it_follows_at_once():
    graph = Graph(chain({"t0", "s0", "s", "ps"}))
    assert taken(graph) == ["t1", "ps0"]
    assert graph.found == {"t0", "s0", "s", "ps"}
    assert graph.left() == 4


def test_jobs_are_asked_together_before_any_is_given_out():
    asked = []

    def missing(jobs):
        asked.append([job.name for job in jobs])
        return [job for job in jobs if job.name != "t0"]

    graph = Graph(chain(), missing)
    assert graph.next().name == "t1"
    assert asked == [["t0", "t1", "s"], ["s0"]]


def test_what_is_needed_and_not_in_the_list_is_taken_to_be_there():
    jobs = chain({"t0", "t1"})
    assert taken(Graph(jobs[2:5])) == ["s0", "s01", "s"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_and_however_jobs_end_every_job_comes_once_and_in_order(seed):
    chance = random.Random(seed)
    jobs: list[Job] = []
    there: set[str] = set()
    for k in range(30):
        needs = tuple(chance.sample(jobs, chance.randint(0, min(3, len(jobs)))))
        jobs.append(Job(str(k), needs, there))
        if all(need.name in there for need in needs) and chance.random() < 0.3:
            there.add(str(k))
    before = set(there)
    graph, started = Graph(jobs), []
    while graph.left():
        while len(graph.running) < 3 and (job := graph.next()) is not None:
            started.append(job.name)  # Job.is_done has seen to it that what it needs was there
        finish(graph, jobs, chance.choice(sorted(graph.running)))
    assert sorted(started, key=int) == [job.name for job in jobs if job.name not in before]
    assert graph.ran == set(started)
    assert graph.found == before


def test_jobs_in_this_process_run_in_the_lists_order(board):
    jobs = chain()
    Here(1).run(Graph(jobs), board)
    assert board.jobs == [job.name for job in jobs]
    Here(1).run(Graph(jobs), board)
    assert board.jobs == [job.name for job in jobs]


# The jobs of a study


def test_a_student_needs_its_own_teachers_and_a_prediction_its_model(tiny_recipe, tmp_path):
    recipe = tiny_recipe(
        "methods={scratch={}, kd={perturb='clean'}, far={perturb='ods', source='extra'}}", "seeds=[0]"
    )
    jobs = jobs_of(Study(recipe, tmp_path), Upto.EVALUATE)
    needs = {job.name: [need.name for need in job.needs] for job in jobs}
    members, everyone = ["teacher 0", "teacher 1"], ["teacher 0", "teacher 1", "teacher 2"]
    assert needs == {
        **{name: [] for name in everyone},
        "scratch, seed 0": [],
        "kd, seed 0": members,
        "far, seed 0": everyone,
        "predict teachers on train": members,
        "predict teachers on train+far": [*members, "far, seed 0"],
        "predict teachers on valid": everyone,
        "predict teachers on test": everyone,
        **{
            f"predict {name}, seed 0, on {split}": [f"{name}, seed 0"]
            for name in ("scratch", "kd", "far")
            for split in ("valid", "test")
        },
    }


def test_a_job_holds_the_recipe_and_not_the_data(tmp_path):
    study = Study(read_recipe("digits"), tmp_path)
    assert study.splits.test.images.numel() > 50_000  # bytes
    jobs = [*jobs_of(study, Upto.EVALUATE), PredictShifted(study, "kd", 0, Unknown(study, "mnist"), ("",))]
    for job in jobs:
        sent = pickle.dumps(job)
        assert len(sent) < 10_000, job.name
        assert pickle.loads(sent) == job
