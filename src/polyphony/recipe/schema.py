"""The tables of a recipe, and the recipe itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from polyphony._util.settings import MOST_MEMBERS, Settings, Share, Temperature, is_stored
from polyphony.data import Augmentation, Options
from polyphony.data.catalogue import DATASETS
from polyphony.data.files import path_exists
from polyphony.distill import Passes
from polyphony.nn.rank_one import Way
from polyphony.recipe.foreign import NetworkTable
from polyphony.recipe.form_table import FormTable
from polyphony.recipe.forms import BatchEnsembleForm, Form
from polyphony.recipe.methods import Distillation, Method, Start
from polyphony.recipe.networks import Network
from polyphony.recipe.table import Name, StepSetting, UnlabelledShare, beside
from polyphony.training.fit import Precision
from polyphony.training.optimise import Schedule

MAX_TEACHERS = 2048
ROUNDING = frozenset({"threads", "deterministic", "way", "compile"})  # keys that change only rounding
Threads = Annotated[int, Field(gt=0, le=1024)]


class Data(Options):
    """A data set, how much of it to use, and its augmentation."""

    name: Annotated[str, Field(min_length=1)]
    """Name of a data set, or path of a folder or .npz; a path may be relative to the recipe's folder."""
    augment: Augmentation = Augmentation()
    """Random changes of training images."""

    @field_validator("name")
    @classmethod
    def _resolve_path(cls, name: str, info: ValidationInfo) -> str:
        path = beside(name, info)
        return path if name not in DATASETS and path_exists(Path(path)) else name

    @field_validator("unlabelled")
    @classmethod
    def _resolve_unlabelled(cls, images: str | int | None, info: ValidationInfo) -> str | int | None:
        return beside(images, info) if isinstance(images, str) else images

    @property
    def label(self) -> str:
        """The name, or the last part of a path."""
        return Path(self.name).name


class TeacherTable(Settings):
    """The deep ensemble: `members` networks, and `extra` ones that no student imitates."""

    network: Network | None = None
    """Network of all teachers."""
    networks: tuple[Network, ...] = ()
    """Instead of `network`: one network for each teacher."""
    extra: Annotated[int, Field(ge=0, le=1024)] = 0
    """Teachers beyond `members`: for a longer DEE curve, `source = "extra"` and the analysis `transfer`."""

    @model_validator(mode="after")
    def _has_network_or_networks(self) -> Self:
        if (self.network is None) == (not self.networks):
            raise ValueError("give network, one for all teachers, or networks, one for each, and not both")
        return self

    def network_of(self, j: int) -> NetworkTable:
        return self.networks[j] if self.network is None else self.network


class Teachers(TeacherTable, Schedule):
    """Teachers that the study trains."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the teachers' weights and batches."""

    def number(self, j: int) -> int:
        """The number that seeds weights and batches of teacher j; no other `seed` or j has the same."""
        return self.seed * MAX_TEACHERS + j


class PretrainedTeachers(TeacherTable):
    """Pretrained teachers: a file of weights for each."""

    weights: Annotated[tuple[Annotated[str, AfterValidator(beside)], ...], Field(min_length=1)]
    """Files of weights, one for each teacher, relative to the recipe's folder; `file.pt#ema` picks a key."""


def teachers_tag(teachers: Any) -> str:
    """The tag of pretrained teachers if there are weights, else of trained ones."""
    has_weights = "weights" in teachers if isinstance(teachers, dict) else hasattr(teachers, "weights")
    return TEACHER_TAGS[has_weights]


TEACHER_TAGS = ("<trained>", "<pretrained>")  # no key of a recipe can have these names
AnyTeachers = Annotated[
    Annotated[Teachers, Tag(TEACHER_TAGS[0])] | Annotated[PretrainedTeachers, Tag(TEACHER_TAGS[1])],
    Discriminator(teachers_tag),
]


class Student(Schedule):
    """The compact network, and the settings that all methods share."""

    network: Network | None = None
    """The student's network (default: the teachers')."""
    start: Start = "fresh"
    """Initial weights: random (`fresh`) or the first teacher's (`teacher`)."""
    form: Form = BatchEnsembleForm()
    """Kind of student."""
    alpha: Share = 0.9
    """α: weight of the distillation loss; the loss on labels has weight 1 − α."""
    temperature: Temperature = 4.0
    """τ: temperature of the distillation."""
    step_size: StepSetting = 1 / 255
    """η: step of the perturbation, the RMS change of a pixel in [0, 1]; may be a fraction such as "1/255".

    In our studies, fresh students did best with 1/255. For students that start from a teacher, `"match"` came
    close to the best fixed step: the step at which teachers disagree on perturbed training images as much as
    on validation images. It costs seconds, and matches nothing if the teachers have not memorised their
    training images. `"search"` tries four steps in short trainings, which together cost about 0.8 of one
    student.
    """
    match_share: PositiveFloat = 1.0
    """For `step_size = "match"`: the share of the disagreement on validation images to reach."""
    passes: Passes = "two"
    """Forward passes of the student in a step; with `one`, the loss on labels uses perturbed images too."""
    share: UnlabelledShare = 0.5
    """Share of `data.unlabelled` images in a batch."""


class Recipe(Settings):
    """One experiment."""

    name: Name
    """Name of the study (default: the file's name)."""
    members: Annotated[int, Field(gt=0, le=MOST_MEMBERS)]
    """Number of teachers to distil, and of members of a student."""
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (0,)
    """Seeds of the students: every method trains one student for each seed."""
    precision: Precision = "float32"
    """Precision of training; `bfloat16` and `float16` are for GPUs."""
    deterministic: bool = False
    """Use only GPU kernels with the same result in every run."""
    way: Way = "auto"
    """What rank-one layers scale: weights or activations (`auto`: weights on CPUs)."""
    compile: bool = False
    """Compile each training with `torch.compile`."""
    threads: Threads | None = None
    """CPU threads of a process (default: 1 for small images, else all cores)."""
    data: Data
    """Images."""
    teachers: AnyTeachers
    """The deep ensemble."""
    student: Student
    """Settings that all methods share."""
    methods: Annotated[dict[Name, Method], Field(min_length=1)]
    """Methods by name; each trains one student per seed."""

    @field_validator("seeds")
    @classmethod
    def _are_different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("must be different from each other")
        return seeds

    def form(self, name: str) -> FormTable:
        """The form of a method's students, resolved: this may import the user's code."""
        form = self.form_table(name).resolved()
        return form.from_teacher() if self.starts_from_teacher(name) else form

    def form_table(self, name: str) -> FormTable:
        """The form of a method as the recipe states it."""
        return self.methods[name].form or self.student.form

    def starts_from_teacher(self, name: str) -> bool:
        return bool(self.setting(name, "start") == "teacher")

    def schedule(self, name: str) -> Schedule:
        own = self.methods[name].model_dump(include={"epochs", "learning_rate"}, exclude_none=True)
        return self.student.model_copy(update=own)

    def setting(self, name: str, key: str) -> Any:
        """A method's own value of a key, or else the value in `student`."""
        own = getattr(self.methods[name], key)
        return getattr(self.student, key) if own is None else own

    def searches_step(self, name: str) -> bool:
        """Whether short trainings choose the step size of a method."""
        return self.methods[name].takes_step and self.setting(name, "step_size") == "search"

    def distillation(self, name: str) -> Distillation | None:
        """A method's settings, completed by those of `student`; None for a method without teachers."""
        method = self.methods[name]
        if method.perturb is None:
            return None
        keys = ("alpha", "temperature", "step_size", "passes", "share")
        settings = {key: self.setting(name, key) for key in keys}
        if not method.takes_step:
            settings["step_size"] = 0.0  # so that a change of student.step_size does not change its key
        if self.data.unlabelled is None:
            settings["share"] = 0.0
        return Distillation(perturb=method.perturb, source=method.source, **settings)

    @model_validator(mode="after")
    def _has_a_network_and_weights_for_each_teacher(self) -> Recipe:
        teachers, count = self.teachers, self.members + self.teachers.extra
        if teachers.networks and self.student.network is None and len(set(map(str, teachers.networks))) > 1:
            raise ValueError("student.network is required if the teachers have different networks")
        uses_weights = any(map(self.starts_from_teacher, self.methods))
        if uses_weights and self.student_network != teachers.network_of(0):
            raise ValueError('start = "teacher" needs the network of the first teacher')
        lists = {"networks": teachers.networks, "weights": getattr(teachers, "weights", ())}
        for key, entries in lists.items():
            if entries and len(entries) != count:
                who = "members and extra teachers together" if teachers.extra else "members"
                raise ValueError(f"teachers.{key} has {len(entries)} entries, but {who} are {count}")
        return self

    @model_validator(mode="after")
    def _has_possible_methods(self, info: ValidationInfo) -> Recipe:
        if (info.context or {}).get("code", True):  # attributes of the user's perturbations may run code
            for name in self.methods:
                if fault := self._fault(name) or ("" if is_stored(info) else self._useless_setting(name)):
                    raise ValueError(f"methods.{name}{fault}")
        return self

    def _fault(self, name: str) -> str:
        """Why a method is impossible, as the end of a sentence after its name; empty if it is possible."""
        method, form = self.methods[name], self.form(name)
        if name in ("teachers", "external"):
            return ": that name is taken; choose another"
        if self.starts_from_teacher(name) and not (form.takes_teacher and form.copies(2) == 1):
            return f": a {self.form_table(name).label} student cannot start from a teacher's weights"
        if method.share and self.data.unlabelled is None:
            return ".share needs images without labels: set data.unlabelled"
        if method.share and not method.perturb:
            return ".share needs teachers, because its images have no labels: give perturb, 'clean' for none"
        if method.source and not any(part.takes_source for part in method.perturb or ()):
            return ".source needs a perturbation that takes directions from networks, such as 'ods'"
        if method.source and not self.teachers.extra:
            return ".source needs an extra teacher: set teachers.extra to 1 or more"
        if form.needs_teachers and not method.perturb:
            label = self.form_table(name).label
            return f": a {label} student learns from teachers: give perturb, 'clean' for none"
        if self.members < form.fewest_teachers:
            return f": a {self.form_table(name).label} student needs {form.fewest_teachers} teachers or more"
        matches_step = method.takes_step and self.setting(name, "step_size") == "match"
        if matches_step and self.members < 2:
            return ".step_size cannot be matched: one teacher does not disagree"
        if matches_step and method.needs_student:
            return f".step_size cannot be matched: the direction of '{method.label}' depends on the student"
        if method.needs_student and (form.trains_as_one or self.members < 2):
            return f".perturb = '{method.label}' needs a student with two members or more"
        return ""

    def _useless_setting(self, name: str) -> str:
        """Which setting of a method has no effect or spoils it, as `_fault`; empty if there is none."""
        method, form, label = self.methods[name], self.form(name), self.form_table(name).label
        if self.must_ignore_labels(name) and self.setting(name, "alpha") < 1:
            cure = "alpha = 1" if form.always_one_pass else "passes = 'two' or alpha = 1"
            return f": '{method.label}' mixes images but not their labels: give {cure}"
        if unused := method.unused_settings():
            return f".{unused[0]} has no effect: {unused[1]}"
        if form.always_one_pass and method.passes == "two":
            return f".passes has no effect: a {label} student trains in one pass"
        for setting in ("alpha", "passes"):
            if form.own_loss and getattr(method, setting) is not None:
                return f".{setting} has no effect: a {label} student has a loss of its own"
        return ""

    def must_ignore_labels(self, name: str) -> bool:
        """Whether α must be 1: the loss on labels would get mixed images with labels that are not mixed."""
        form = self.form(name)
        one_pass = form.always_one_pass or self.setting(name, "passes") == "one"
        return self.methods[name].mixes_images and one_pass and not form.own_loss

    @property
    def student_network(self) -> NetworkTable:
        return self.student.network or self.teachers.network_of(0)
