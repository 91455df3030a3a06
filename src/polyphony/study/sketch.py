"""A study's models before training, built once to be counted; without values if possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import nn

from polyphony.ensembles import Ensemble, Single
from polyphony.nn import member_share
from polyphony.nn.counting import Counting
from polyphony.runs.scores import TEACHERS
from polyphony.study.study import Study, built_once

Built = TypeVar("Built")


@dataclass(frozen=True)
class Sketch:
    """Models on a device. On PyTorch's meta device they are built at once and have no values."""

    study: Study  # with one image
    device: str
    counting: Counting

    def build(self, build: Callable[[], Built]) -> Built:
        with torch.device(self.device), self.counting:
            return build()

    @cached_property
    def networks(self) -> dict[int, nn.Module]:
        """The network of each teacher that students learn from; equal ones are one object."""
        study, table = self.study, self.study.recipe.teachers.network_of
        each = range(study.recipe.members)
        return self.build(lambda: built_once(each, table, lambda j: study.network(table(j))))

    @cached_property
    def students(self) -> dict[str, Ensemble]:
        """The student of each method; equal ones are one object."""
        return self.build(self.study.blank_students)

    @cached_property
    def trained(self) -> dict[str, Ensemble]:
        """The student of each method as it predicts."""
        form, students = self.study.recipe.form, self.students.items()
        return self.build(lambda: {name: form(name).trained(student) for name, student in students})

    @cached_property
    def plain(self) -> Ensemble:
        """The students' network without members."""
        return Single(self.build(lambda: self.study.network(self.study.recipe.student_network)))

    @cached_property
    def parameter_counts(self) -> dict[str, int]:
        """Parameters of the teachers together, and of each method's student as it predicts."""
        teachers = sum(map(parameters, self.networks.values()))
        return {TEACHERS: teachers} | {name: parameters(student) for name, student in self.trained.items()}

    @cached_property
    def member_shares(self) -> dict[str, float]:
        """The share of a member's weights that have factors or are its own, if any, by method."""
        students = self.students.items()
        shares = self.build(lambda: {name: member_share(student) for name, student in students})
        return {name: share for name, share in shares.items() if share}


def sketched(study: Study) -> Sketch:
    """A study's models without values, or with values if the user's network needs them."""
    sketch = sketched_on("meta", study)
    try:
        sketch.parameter_counts, sketch.member_shares  # noqa: B018 (asked for to see whether they can be)
    except Exception:  # the user's code can raise anything
        return sketched_on("cpu", study)
    return sketch


def sketched_on(device: str, study: Study) -> Sketch:
    return Sketch(study.with_one_image(), device, Counting())


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
