"""The plan of a study: all of its jobs with their keys, known before anything runs.

A key is the hash of a spec: the kind of the job, the settings that are not at their defaults, the
fingerprints of the images, the keys of the jobs it needs, and `FORMAT`, the version of the code that trains.
Pretrained teachers count by the hash of their file. `plan` reads and writes no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from polyphony.execute.job import Job
from polyphony.recipe import ROUNDING, PretrainedTeachers, Schedule
from polyphony.runs.predictions import UNLABELLED
from polyphony.runs.scores import TEACHERS
from polyphony.runs.stage import Stage
from polyphony.runs.store import Spec, spec_key
from polyphony.study.fingerprints import Fingerprints, pretrained_spec
from polyphony.study.jobs import TRAIN_SHOWN, Images, Predict, TrainStudent, TrainTeacher
from polyphony.study.saved import SavedPredictions
from polyphony.study.study import Study

FORMAT = 3  # raise it when training or a default changes, so that no old result is taken for a new one
# Keys that decide no training, or are in a spec in another form; all others are in it as they are.
OF_RECIPE = ROUNDING | {"name", "members", "seeds", "data", "teachers", "student", "methods"}
OF_SCHEDULE = {"network", "networks", "extra", "seed", "start", "form", "match_share"}
OF_METHOD = {"form", "start", "perturb", "source", "epochs", "learning_rate"}
SETTINGS = {"alpha", "temperature", "step_size", "passes", "share"}  # of a method, or of all


class Upto(IntEnum):
    """How far a study goes."""

    TEACH = 1
    DISTILL = 2
    EVALUATE = 3


def plan(study: Study, prints: Fingerprints, predicted: Sequence[Predict] | None = None) -> list[Job]:
    """Every job of a study, in the order in which they run if there is a choice.

    `predicted` replaces the predictions that the scores need.
    """
    trained: dict[str, Job] = {}
    for work in trainings(study):
        if isinstance(work, TrainTeacher):
            spec = teacher_spec(work, prints)
        else:
            spec = student_spec(work, prints, trained)
        needs = tuple(need.name for need in work.needs)
        trained[work.name] = Job(work.name, needs, Stage(work.folder, spec), work, work.epochs, in_ranks=True)
    wanted = score_predictions(study) if predicted is None else predicted
    return [*trained.values(), *(prediction(each, prints, trained) for each in wanted)]


def trainings(study: Study) -> list[TrainTeacher | TrainStudent]:
    teachers = [TrainTeacher(study, j) for j in range(study.teacher_count)]
    return [*teachers, *(TrainStudent(study, method, seed) for method, seed in study.students)]


def part(jobs: Sequence[Job], upto: Upto) -> list[Job]:
    """The jobs of a plan up to a point."""
    kinds = {TrainTeacher: Upto.TEACH, TrainStudent: Upto.DISTILL, Predict: Upto.EVALUATE}
    return [job for job in jobs if kinds[type(job.work)] <= upto]


def teacher_spec(work: TrainTeacher, prints: Fingerprints) -> Spec:
    study, teachers = work.study, work.study.recipe.teachers
    if isinstance(teachers, PretrainedTeachers):
        return pretrained_spec(study, work.j, prints.images["valid"], prints.teachers[work.j])
    spec = common_spec("teacher", study, teachers.number(work.j), teachers, prints)
    return spec | {"network": teachers.network_of(work.j).spec()}


def student_spec(work: TrainStudent, prints: Fingerprints, trained: dict[str, Job]) -> Spec:
    """Everything that a student's weights depend on; teachers are in it by their keys."""
    recipe, name = work.study.recipe, work.method
    method, table = recipe.distillation(name), recipe.form_table(name)
    form = table.spec()
    spec = common_spec("student", work.study, work.seed, recipe.schedule(name), prints) | {
        "members": recipe.members,
        "network": recipe.student_network.spec(),
        "method": method.spec() if method else "scratch",
        **({"form": form} if form else {}),
        **recipe.methods[name].spec_but(OF_METHOD | SETTINGS),
    }
    if recipe.starts_from_teacher(name) and getattr(table, "factor_std", 0) is None:
        spec |= recipe.form(name).spec({"factor_std"})  # early runs, without this key, had 0.02
    if method and method.step_size == "match":
        spec |= recipe.student.spec({"match_share"})
    if method and method.share and "unlabelled" in prints.images:
        spec["unlabelled"] = prints.images["unlabelled"]
    keys = [trained[teacher.name].key for teacher in work.teachers]
    if method:
        spec["teachers"] = keys[: recipe.members]
    if recipe.starts_from_teacher(name):
        spec["start"] = keys[0]
    if method and method.source:
        spec["source"] = keys[recipe.members]
    return spec


def common_spec(kind: str, study: Study, seed: int, schedule: Schedule, prints: Fingerprints) -> Spec:
    return {
        "format": FORMAT,
        "kind": kind,
        "seed": seed,
        "schedule": schedule.spec_but(OF_SCHEDULE | SETTINGS),
        "augment": study.recipe.data.augment.spec(),
        **study.recipe.spec_but(OF_RECIPE),
        "train": prints.images["train"],
        "valid": prints.images["valid"],
        **({"classes": prints.classes} if prints.classes else {}),
    }


def prediction(work: Predict, prints: Fingerprints, trained: dict[str, Job]) -> Job:
    needs = tuple(need.name for need in work.needs)
    spec: Spec = {
        "format": FORMAT,
        "kind": "predictions",
        "needs": [trained[name].key for name in needs],
        "images": prints.images[work.images.split],
        **({} if work.images.is_held_out else {"some": TRAIN_SHOWN}),
    }
    return Job(work.name, needs, SavedPredictions(work.path, spec_key(spec)), work)


def score_predictions(study: Study) -> list[Predict]:
    """Every prediction that the scores need."""
    perturbing = [name for name, method in study.recipe.methods.items() if method.perturbs]
    perturbed = [Images("train", name) for name in perturbing]
    unlabelled = [] if study.recipe.data.unlabelled is None else [Images(UNLABELLED)]
    seen = [Images("train"), *perturbed, Images("valid"), Images("test"), *unlabelled]
    own = (Images("train"), Images("valid"), Images("test"))
    students = [Predict(study, m, s, images) for m, s in study.students for images in own]
    return [*(Predict(study, TEACHERS, None, images) for images in seen), *students]


def valid_predictions(study: Study) -> list[Predict]:
    """Every prediction that a sweep needs: the teachers and all points, on validation images."""
    return [Predict(study, name, seed, Images("valid")) for name, seed in study.models]


def predictions_of(jobs: Sequence[Job]) -> dict[tuple[str, int | None, str], SavedPredictions]:
    """Model, seed and images → the predictions of a plan."""
    found = {}
    for job in jobs:
        if isinstance(job.work, Predict) and isinstance(job.result, SavedPredictions):
            found[job.work.model, job.work.seed, job.work.images.name] = job.result
    return found
