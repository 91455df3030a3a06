"""The plan of a study: all of its jobs with their keys, known before anything runs.

A key is the hash of a spec: the kind of the job, the settings that are not at their defaults, the
fingerprints of the images, the keys of the jobs it needs, and `FORMAT`, the version of the code that trains.
Pretrained teachers count by the hash of their file. `plan` reads and writes no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from polyphony.distill.perturb import Adversarial, Diversify
from polyphony.distill.search import GROWTH, SEARCH_STEPS
from polyphony.execute.job import Job
from polyphony.recipe import ROUNDING, PretrainedTeachers, PythonPerturbation, Recipe, Schedule
from polyphony.runs.predictions import UNLABELLED
from polyphony.runs.scores import TEACHERS
from polyphony.runs.stage import Stage
from polyphony.runs.store import Spec, spec_key
from polyphony.study.fingerprints import Fingerprints, pretrained_spec
from polyphony.study.prediction import Images, Predict
from polyphony.study.saved import SavedPredictions
from polyphony.study.study import TRAIN_SUBSET, Study
from polyphony.study.trainings import SearchStep, TrainStudent, TrainTeacher

FORMAT = 3  # raise it when training or a default changes, so that no old result is taken for a new one
# Keys that a spec leaves out: they do not change the training, or the spec has them in another form.
RECIPE_EXCLUDED = ROUNDING | {"name", "members", "seeds", "data", "teachers", "student", "methods"}
SCHEDULE_EXCLUDED = {"network", "networks", "extra", "seed", "start", "form", "match_share"}
METHOD_EXCLUDED = {"form", "start", "perturb", "source", "epochs", "learning_rate"}
READS_LABELS = Adversarial | PythonPerturbation
ASKS_TEACHERS = Adversarial | Diversify | PythonPerturbation
# Settings of one method, or in [student] of all methods.
METHOD_SETTINGS = {"alpha", "temperature", "step_size", "passes", "share"}


class Upto(IntEnum):
    """The last step of a study that runs."""

    TEACH = 1
    DISTILL = 2
    EVALUATE = 3


def plan(study: Study, prints: Fingerprints, predictions: Sequence[Predict] | None = None) -> list[Job]:
    """Every job of a study. If several jobs can start, the first in the list does.

    `predictions` replaces the predictions that the scores need.
    """
    training_jobs: dict[str, Job] = {}
    for work in trainings(study):
        if isinstance(work, TrainTeacher):
            spec = teacher_spec(work, prints)
        elif isinstance(work, SearchStep):
            spec = search_spec(work, prints, training_jobs)
        else:
            spec = student_spec(work, prints, training_jobs)
            if work.search:
                spec["search"] = training_jobs[work.search.name].key
        needs = tuple(need.name for need in work.needs)
        stage = Stage(work.folder, spec)
        training_jobs[work.name] = Job(work.name, needs, stage, work, work.epochs, in_ranks=True)
    if predictions is None:
        predictions = score_predictions(study)
    return [*training_jobs.values(), *(prediction_job(work, prints, training_jobs) for work in predictions)]


def trainings(study: Study) -> list[TrainTeacher | SearchStep | TrainStudent]:
    """The trainings of a study: teachers, then each method's search for its step size, then students."""
    teachers = [TrainTeacher(study, j) for j in range(study.teacher_count)]
    searches = [SearchStep(study, name) for name in study.recipe.methods if study.recipe.searches_step(name)]
    return [*teachers, *searches, *(TrainStudent(study, method, seed) for method, seed in study.students)]


def jobs_upto(jobs: Sequence[Job], upto: Upto) -> list[Job]:
    """The jobs of a plan that belong to a step of the study or to an earlier one."""
    steps = {
        TrainTeacher: Upto.TEACH,
        SearchStep: Upto.DISTILL,
        TrainStudent: Upto.DISTILL,
        Predict: Upto.EVALUATE,
    }
    return [job for job in jobs if steps[type(job.work)] <= upto]


def teacher_spec(work: TrainTeacher, prints: Fingerprints) -> Spec:
    """Everything that a teacher's weights depend on."""
    study, teachers = work.study, work.study.recipe.teachers
    if isinstance(teachers, PretrainedTeachers):
        return pretrained_spec(study, work.j, prints.images["valid"], prints.teachers[work.j])
    spec = common_spec("teacher", study, teachers.number(work.j), teachers, prints)
    return spec | {"network": teachers.network_of(work.j).spec()}


def student_spec(work: TrainStudent, prints: Fingerprints, training_jobs: dict[str, Job]) -> Spec:
    """Everything that a student's weights depend on. Its teachers are represented by their keys."""
    recipe, name = work.study.recipe, work.method
    method, table = recipe.distillation(name), recipe.form_table(name)
    form = table.spec()
    spec = common_spec("student", work.study, work.seed, recipe.schedule(name), prints) | {
        "members": recipe.members,
        "network": recipe.student_network.spec(),
        "method": method.spec() if method else "scratch",
        **({"form": form} if form else {}),
        **recipe.methods[name].spec_but(METHOD_EXCLUDED | METHOD_SETTINGS),
    }
    if recipe.starts_from_teacher(name) and getattr(table, "factor_std", 0) is None:
        spec |= recipe.form(name).spec({"factor_std"})  # early runs used 0.02 and their specs lack this key
    if method and method.step_size == "match":
        spec |= recipe.student.spec({"match_share"}) | ({"rows": "drawn"} if prints.drawn else {})
    if method and method.share and "unlabelled" in prints.images:
        spec["unlabelled"] = prints.images["unlabelled"]
    keys = [training_jobs[teacher.name].key for teacher in work.teachers]
    if method:
        spec["teachers"] = keys[: recipe.members]
    if recipe.starts_from_teacher(name):
        spec["start"] = keys[0]
    if method and method.source:
        spec["source"] = keys[recipe.members]
    if revised := revisions(recipe, name):
        spec["revised"] = revised
    return spec


def revisions(recipe: Recipe, name: str) -> list[str]:
    """Changes of the training code since `FORMAT` was raised that concern few methods, this one among them.

    They change the key of these methods only.
    """
    method = recipe.methods[name]
    parts = method.perturb or ()
    mixed = [part for j, part in enumerate(parts) if any(before.mixes_images for before in parts[:j])]
    without_source = [part for part in parts if not part.takes_source]
    changes = {
        "clip of each network": recipe.form_table(name).label == "separate" and recipe.student.clip,
        "source for ODS alone": method.source
        and any(isinstance(part, ASKS_TEACHERS) for part in without_source),
        "no labels after mixing": any(isinstance(part, READS_LABELS) for part in mixed),
        "centred draws": recipe.form_table(name).label == "dlf",
    }
    return [change for change, concerns in changes.items() if concerns]


def search_spec(work: SearchStep, prints: Fingerprints, training_jobs: dict[str, Job]) -> Spec:
    """Everything that the chosen step size depends on: all that students depend on except their seeds."""
    spec = student_spec(TrainStudent(work.study, work.method, 0), prints, training_jobs)
    lengths = {"epochs": work.schedule.epochs, "warm_up": work.schedule.warm_up}
    return spec | {"kind": "search", "steps": list(SEARCH_STEPS), "growth": GROWTH, **lengths}


def common_spec(kind: str, study: Study, seed: int, schedule: Schedule, prints: Fingerprints) -> Spec:
    """The part of a spec that teachers and students share."""
    return {
        "format": FORMAT,
        "kind": kind,
        "seed": seed,
        "schedule": schedule.spec_but(SCHEDULE_EXCLUDED | METHOD_SETTINGS),
        "augment": study.recipe.data.augment.spec(),
        **study.recipe.spec_but(RECIPE_EXCLUDED),
        "train": prints.images["train"],
        "valid": prints.images["valid"],
        **({"classes": prints.classes} if prints.classes else {}),
    }


def prediction_job(work: Predict, prints: Fingerprints, training_jobs: dict[str, Job]) -> Job:
    needs = tuple(need.name for need in work.needs)
    spec: Spec = {
        "format": FORMAT,
        "kind": "predictions",
        "needs": [training_jobs[name].key for name in needs],
        "images": prints.images[work.images.split],
        **({} if work.images.is_held_out else {"some": TRAIN_SUBSET}),
        **({"rows": "drawn"} if prints.drawn and not work.images.is_held_out else {}),
    }
    return Job(work.name, needs, SavedPredictions(work.path, spec_key(spec)), work)


def score_predictions(study: Study) -> list[Predict]:
    """Every prediction that the scores need."""
    train, valid, test = Images("train"), Images("valid"), Images("test")
    perturbed = [Images("train", name) for name, method in study.recipe.methods.items() if method.perturbs]
    unlabelled = [] if study.recipe.data.unlabelled is None else [Images(UNLABELLED)]
    for_teachers = [train, *perturbed, valid, test, *unlabelled]
    teachers = [Predict(study, TEACHERS, None, images) for images in for_teachers]
    students = [
        Predict(study, *student, images) for student in study.students for images in (train, valid, test)
    ]
    return [*teachers, *students]


def valid_predictions(study: Study) -> list[Predict]:
    """Every prediction that a sweep needs: teachers and students on validation images."""
    return [Predict(study, name, seed, Images("valid")) for name, seed in study.models]


def predictions_of(jobs: Sequence[Job]) -> dict[tuple[str, int | None, str], SavedPredictions]:
    """(model, seed, name of the images) → file, for every prediction of a plan."""
    files = {}
    for job in jobs:
        if isinstance(job.work, Predict) and isinstance(job.result, SavedPredictions):
            files[job.work.model, job.work.seed, job.work.images.name] = job.result
    return files
