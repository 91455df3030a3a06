"""Which jobs a graph gives out when, and how they run in this process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from graphlib import CycleError

import pytest

from polyphony.execute.job import Graph
from polyphony.execute.runner import Here


@dataclass
class Job:
    """A job that knows what it needs."""

    name: str
    needs: tuple[str, ...] = ()
    epochs: int = 1

    def run(self, watch) -> None: ...


def chain() -> list[Job]:
    """Two teachers, a student of the first, one of both, one of none, and a prediction of each."""
    students = [Job("s0", ("t0",)), Job("s01", ("t0", "t1")), Job("s")]
    return [Job("t0"), Job("t1"), *students, *(Job(f"p{s.name}", (s.name,)) for s in students)]


def startable(graph: Graph) -> list[str]:
    """All that can be started now."""
    names = []
    while (job := graph.next()) is not None:
        names.append(job.name)
    return names


def test_a_job_can_start_exactly_when_the_jobs_that_it_needs_have_ended():
    graph = Graph(chain())
    assert startable(graph) == ["t0", "t1", "s"]
    graph.finish("s")
    assert startable(graph) == ["ps"]  # while both teachers are still being trained
    graph.finish("t0")
    assert startable(graph) == ["s0"]  # while the other teacher is
    graph.finish("s0")
    assert startable(graph) == ["ps0"]
    graph.finish("t1")
    assert startable(graph) == ["s01"]
    assert graph.running == {"ps", "ps0", "s01"}
    assert graph.left() == 4  # those three, and the prediction of s01


def test_needed_jobs_outside_the_list_count_as_done():
    assert startable(Graph(chain()[2:5])) == ["s0", "s01", "s"]


def test_jobs_that_need_each_other_are_an_error():
    with pytest.raises(CycleError):
        Graph([Job("a", ("b",)), Job("b", ("a",))])


def test_left_changes_nothing():
    graph = Graph(chain())
    assert [graph.left(), graph.left()] == [8, 8]
    assert startable(graph) == ["t0", "t1", "s"]
    assert graph.left() == 8


@pytest.mark.parametrize("seed", range(20))
def test_every_job_comes_once_and_after_the_jobs_that_it_needs(seed):
    chance = random.Random(seed)
    jobs: list[Job] = []
    for k in range(30):
        needs = tuple(job.name for job in chance.sample(jobs, chance.randint(0, min(3, len(jobs)))))
        jobs.append(Job(str(k), needs))
    graph, started = Graph(jobs), []
    while graph.left():
        while len(graph.running) < 3 and (job := graph.next()) is not None:
            assert set(job.needs) <= graph.ran
            started.append(job.name)
        graph.finish(chance.choice(sorted(graph.running)))
    assert sorted(started, key=int) == [job.name for job in jobs]
    assert graph.ran == set(started)


def test_jobs_in_this_process_run_in_the_lists_order(board):
    jobs = chain()
    Here(1).run(Graph(jobs), board)
    assert board.jobs == [job.name for job in jobs]
