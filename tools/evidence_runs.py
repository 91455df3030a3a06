"""The runs of PROTOCOL-2 to PROTOCOL-5: what is compared, and the numbers that tables and figures read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from polyphony import metrics
from polyphony.distill.search import search_name
from polyphony.metrics import MeanSd
from polyphony.report.study_runs import Pair, StudyRuns
from polyphony.runs.rows import TableRow
from polyphony.runs.run import Run
from polyphony.runs.scores import TEACHERS

EQUAL = 0.02  # two methods are equal if the interval lies within ± this difference of NLL


@dataclass(frozen=True)
class Trained(TableRow):
    """One training; the teachers' rows have their numbers in the column `seed`."""

    file: ClassVar[str] = "trainings.csv"
    model: str
    seed: int
    epochs: int
    seconds: float
    step_size: float | None
    multiply_adds: float


@dataclass(frozen=True)
class MeanCosine(TableRow):
    """The mean over members and n images of the cosine between the Jacobians of a member and its teacher."""

    file: ClassVar[str] = "jacobians.csv"
    split: str
    model: str
    seed: int
    n: int
    cosine: float


@dataclass(frozen=True)
class Comparison:
    """Two methods. A name that ends with "*" is the best of these methods on validation images."""

    study: str
    words: str
    method: str
    reference: str
    against: str = ""  # the study of the reference (default: the same); equal seeds mean equal teachers
    front: bool = True  # is it in the figure and on the page of evidence?


@dataclass(frozen=True)
class Result:
    """The paired differences of a comparison in calibrated test NLL, and the ratio of the training costs."""

    comparison: Comparison
    pairs: MeanSd
    sets: MeanSd  # over the means of the sets
    voice: MeanSd | None  # the same for voice, over the sets; with one set, over pairs
    ahead: int
    cost: float

    @property
    def mean(self) -> MeanSd:
        """The difference that counts: over sets of teachers; with one set, over pairs."""
        return self.sets if self.sets.n > 1 else self.pairs

    @property
    def verdict(self) -> str:
        """Better or worse if the interval excludes zero, else equal if it is within ± EQUAL, else unclear."""
        mean = self.mean
        if mean.n == 1:
            return "one pair"
        if abs(mean.mean) > mean.half:
            return "better" if mean.mean < 0 else "worse"
        return "equal" if abs(mean.mean) + mean.half <= EQUAL else "unclear"


@dataclass(frozen=True)
class Way:
    """A way to train a student: the same settings with different numbers of epochs.

    "RUN/METHOD" is a method of another run in kept/, which has the same teachers and images.
    """

    label: str
    methods: Sequence[str]


OWN = "CIFAR-10, 4,000"
OWN_100 = "CIFAR-100, 4,000"
EIGHTH = "CIFAR-10, 4,000, an eighth of the cost"
MORE = "CIFAR-10, 20,000"
MEMORISED = "CIFAR-10, 20,000, memorised"
LARGE_100 = "CIFAR-100, 18,000"
FULL = "CIFAR-10, 45,000"
SMALL = "CIFAR-10, 4,000, small student"
FASHION = "Fashion-MNIST, 4,000"
FASHION_EIGHTH = "Fashion-MNIST, 4,000, an eighth of the cost"
SAME = "CIFAR-10, 4,000, sets 31 to 34"
OLD = "CIFAR-10, 4,000, sets 20 to 22"
OLD_FRESH = "CIFAR-10, 4,000, sets 20 to 22, fresh"
PRICE = "CIFAR-10, 4,000, set 31"
FULL_3 = "CIFAR-10, 45,000, 3 epochs"
SAME_100 = "CIFAR-100, 4,000, sets 27 to 29"
FRESH_100 = "CIFAR-100, 4,000, sets 27 to 29, fresh"
OLD_CIFAR100 = "CIFAR-100, 4,000, set 26"
STUDIES = {  # study → its runs in kept/
    OWN: "own10-*",
    OWN_100: "own100-*",
    EIGHTH: "eighth-6?",
    SMALL: "small-*",
    MORE: "more-*",
    MEMORISED: "memorised-57",
    LARGE_100: "large100-56",
    FULL: "full-51",
    FASHION: "fashion-*",
    FASHION_EIGHTH: "fashion-4[2-4]",
    SAME: "cifar10-3?",
    OLD: "cifar10-2?",
    OLD_FRESH: "fresh-*",
    PRICE: "price",
    FULL_3: "full",
    SAME_100: "cifar100-*",
    FRESH_100: "fresh100-*",
    OLD_CIFAR100: "cifar100",
}
ALL = "CIFAR-10, 4,000, sets 20 to 34"
CHOICE, CHOICE_100, STEPS_100, CHOICE_8 = "choose", "choose-cifar100", "steps-cifar100", "eighth-31"
SET_31, SET_41 = "cifar10-31", "fashion-41"
RUNS = {**STUDIES, ALL: "cifar10-*"}
DECAYS = "decay-*"  # runs that differ in the weight decay of their students
EQUAL_COST = "ODS − plain at equal cost"
NOISE_COST = "ODS − noise at equal cost"
FRESH_COST = "fresh: ODS − plain at equal cost"
STARTS = "ODS from a teacher − ODS fresh"
COMPARISONS = (
    Comparison(OWN, EQUAL_COST, "ods", "plain"),
    Comparison(OWN, NOISE_COST, "ods", "noise"),
    Comparison(OWN, FRESH_COST, "fresh-ods", "fresh-plain"),
    Comparison(SMALL, FRESH_COST, "ods", "plain"),
    Comparison(OWN_100, EQUAL_COST, "ods", "plain"),
    Comparison(OWN_100, NOISE_COST, "ods", "noise"),
    Comparison(OWN_100, FRESH_COST, "fresh-ods", "fresh-plain"),
    Comparison(MORE, EQUAL_COST, "ods-s3", "plain"),
    Comparison(MORE, FRESH_COST, "fresh-ods", "fresh-plain"),
    Comparison(MEMORISED, EQUAL_COST, "ods-*", "plain"),
    Comparison(LARGE_100, EQUAL_COST, "ods-s3", "plain"),
    Comparison(LARGE_100, FRESH_COST, "fresh-ods", "fresh-plain"),
    Comparison(FULL, EQUAL_COST, "ods-*", "plain-*"),
    Comparison(OWN, STARTS, "ods", "fresh-ods"),
    Comparison(OWN_100, STARTS, "ods", "fresh-ods"),
    Comparison(MORE, STARTS, "ods-s3", "fresh-ods"),
    Comparison(LARGE_100, STARTS, "ods-s3", "fresh-ods"),
    Comparison(EIGHTH, "four small networks − Algorithm 1", "separate-fast", "paper"),
    Comparison(EIGHTH, "four classifiers − Algorithm 1", "hydra-fast", "paper"),
    Comparison(FASHION_EIGHTH, "shared front, 7 epochs − fresh, two passes", "front-e7", "fresh-two-e30"),
    Comparison(FASHION_EIGHTH, "two shared stages − fresh, two passes", "front-2-e8", "fresh-two-e30"),
    Comparison(FASHION_EIGHTH, "one network, mean − fresh, two passes", "mean-ods-e10", "fresh-two-e30"),
    Comparison(FASHION, "from a teacher, 10 epochs − fresh, two passes", "born-e10", "fresh-two-e30"),
    Comparison(FASHION, "shared front, 10 epochs − fresh, two passes", "front-e10", "fresh-two-e30"),
    Comparison(FASHION, "fresh: one pass − two passes", "fresh-one-e30", "fresh-two-e30", front=False),
    Comparison(OWN, "matched step − 12/255", "match", "ods", front=False),
    Comparison(FULL_3, "ODS − plain", "ods", "plain-*", front=False),
    Comparison(SAME, "ODS − plain", "ods", "plain", front=False),
    Comparison(SAME, EQUAL_COST, "ods", "plain-long", front=False),
    Comparison(SAME, "ODS − noise", "ods", "noise", front=False),
    Comparison(SAME, FRESH_COST, "fresh-ods", "fresh-plain", front=False),
    Comparison(SAME, STARTS, "ods", "fresh-ods", front=False),
    Comparison(SAME, "plain from a teacher − plain fresh", "plain", "fresh-plain", front=False),
    Comparison(ALL, "ODS − plain", "ods", "plain", front=False),
    Comparison(ALL, EQUAL_COST, "ods", "plain-long", front=False),
    Comparison(ALL, "ODS − noise", "ods", "noise", front=False),
    Comparison(OLD, "ODS − plain", "ods", "plain", front=False),
    Comparison(OLD, EQUAL_COST, "ods", "plain-long", front=False),
    Comparison(OLD, "ODS − noise", "ods", "noise", front=False),
    Comparison(OLD_FRESH, "ODS − plain", "ods", "plain", front=False),
    Comparison(OLD, STARTS, "ods", "ods", OLD_FRESH, front=False),
    Comparison(OLD, "plain from a teacher − plain fresh", "plain", "plain", OLD_FRESH, front=False),
    Comparison(SAME_100, EQUAL_COST, "ods", "plain", front=False),
    Comparison(SAME_100, NOISE_COST, "ods", "noise", front=False),
    Comparison(FRESH_100, FRESH_COST, "ods-*", "plain-t8", front=False),
    Comparison(SAME_100, STARTS, "ods", "ods-*", FRESH_100, front=False),
    Comparison(OLD_CIFAR100, "ODS − plain, search included", "ods", "plain-*", front=False),
    Comparison(OLD_CIFAR100, "ODS − plain, both at τ = 4", "ods", "plain-t4", front=False),
)
CHOSEN = "ods-t4-s12-rate003"
WAYS = {  # run in kept/ or study → ways; the first is the paper's
    FASHION: (
        Way("fresh, two passes", ["fresh-two-e30"]),
        Way("fresh, one pass", ["fresh-one-e30"]),
        Way("from a teacher, one pass", ["born-e2", "born-e5", "born-e10"]),
        Way("from a teacher, shared front", ["front-e2", "front-e5", "front-e10"]),
    ),
    FASHION_EIGHTH: (
        Way("fresh, two passes", ["fresh-two-e30"]),
        Way("from a teacher, shared front", ["front-e7"]),
        Way("from a teacher, two shared stages", ["front-2-e8"]),
        Way("from a teacher, one network, mean", ["mean-ods-e10"]),
    ),
    EIGHTH: (
        Way("fresh, two passes", ["paper"]),
        Way("fresh, plain, four small networks", ["separate-fast"]),
        Way("fresh, plain, four classifiers", ["hydra-fast"]),
    ),
    CHOICE: (
        Way("fresh, two passes", ["fresh-paper"]),
        Way("fresh, one pass", ["fresh-ods-t4-s1-rate003"]),
        Way("fresh, plain", ["fresh-plain-t4-rate003"]),
        Way("from a teacher, one pass", ["short-t4-s12", f"{CHOSEN}-e5", CHOSEN, f"{CHOSEN}-e20"]),
        Way("from a teacher, shared front", ["front-e2", "front-e5", "front-e10"]),
    ),
    PRICE: (
        Way("fresh, two passes", ["paper"]),
        Way("fresh, one pass", [f"{SET_31}/fresh-ods"]),
        Way("fresh, plain", ["plain-e10", f"{SET_31}/fresh-plain"]),
        Way("fresh, plain, shared front", ["front-e10", "front-e20"]),
        Way("fresh, plain, two shared stages", ["front-2-e10", "front-2-e20"]),
        Way("fresh, plain, one network", ["mean-e10", "mean-e20"]),
    ),
}
WORDS = {CHOICE: "CIFAR-10, 4,000, set 20"}  # what a run is called
Steps = Mapping[float, Mapping[str, tuple[str, str]]]  # step in 1/255 → length → run in kept/, method
STEPS: Mapping[str, Steps] = {
    "CIFAR-10, τ = 1, rate 0.1": {
        step: {
            "short": (CHOICE, f"short-s{step}"),
            "half": (CHOICE, f"half-s{step}"),
            "full": (CHOICE, f"ods-t1-s{step}"),
        }
        for step in (3, 6, 12, 24)
    },
    "CIFAR-10, τ = 4, rate 0.03": {
        6: {
            "short": (CHOICE, "short-t4-s6"),
            "half": (CHOICE, "half-t4-s6"),
            "full": (CHOICE, "ods-t4-s6-rate003"),
        },
        12: {"short": (CHOICE, "short-t4-s12"), "half": (CHOICE, f"{CHOSEN}-e5"), "full": (CHOICE, CHOSEN)},
        24: {
            "short": (CHOICE, "short-t4-s24"),
            "half": (CHOICE, "half-t4-s24"),
            "full": (CHOICE, "ods-t4-s24-rate003"),
        },
    },
    "CIFAR-10, fresh, τ = 4, rate 0.03": {
        1: {"full": (CHOICE, "fresh-ods-t4-s1-rate003")},
        1.5: {"short": (PRICE, "short-s1")},
        3: {"short": (PRICE, "short-s3")},
        4: {"full": (CHOICE, "fresh-ods-t4-s4-rate003")},
        6: {"short": (PRICE, "short-s6")},
        12: {"short": (PRICE, "short-s12"), "full": (CHOICE, "fresh-ods-t4-s12-rate003")},
    },
    "CIFAR-100, τ = 4, rate 0.03": {
        1.5: {"short": (CHOICE_100, "short-s1")},
        3: {"short": (CHOICE_100, "short-s3"), "full": (STEPS_100, "s3")},
        6: {"short": (CHOICE_100, "short-s6"), "full": (STEPS_100, "s6")},
        12: {"short": (CHOICE_100, "short-s12"), "full": (STEPS_100, "s12")},
        24: {"full": (STEPS_100, "s24")},
    },
    "Fashion-MNIST, τ = 1, rate 0.1": {
        1.5: {"short": (SET_41, "short-s1")},
        3: {"short": (SET_41, "short-s3"), "full": (SET_41, "s3")},
        6: {"short": (SET_41, "short-s6"), "full": (SET_41, "s6")},
        12: {"short": (SET_41, "short-s12"), "full": (SET_41, "s12")},
        24: {"full": (SET_41, "s24")},
    },
}


MATCHED = {  # setting → runs of step_size = "match", runs of fixed steps, methods with fixed steps
    "CIFAR-10, other images": (OWN, OWN, ("ods",)),
    "CIFAR-10, τ = 4, rate 0.03": ("match-cifar10-*", SAME, ("ods",)),
    "CIFAR-100, τ = 4, rate 0.03": ("match-cifar100-*", SAME_100, ("ods",)),
    "Fashion-MNIST, τ = 1, rate 0.1": ("match-fashion-41", SET_41, ("s3", "s6", "s12", "s24")),
}
CLOSE = 0.01  # how much worse than the fixed step a matched step may be


@cache
def runs_of(folder: Path, study: str) -> StudyRuns | None:
    """The kept runs of a study; None if there are none."""
    paths = sorted((folder / "kept").glob(RUNS.get(study, study)))
    return StudyRuns(study, [Run.open(path) for path in paths]) if paths else None


def resolve(study: StudyRuns, name: str) -> str:
    """The name of a method; of several ("plain-t*") the one with the lowest mean NLL on validation images."""
    if not name.endswith("*"):
        return name
    names = [method for method in study.methods if method.startswith(name[:-1])]
    return min(names, key=lambda method: valid_nll(study, method).mean)


def valid_nll(study: StudyRuns, method: str) -> MeanSd:
    """Calibrated NLL on validation images over sets and seeds."""
    return metrics.mean_sd([row.nll for row in study.scored(method, split="valid").values()])


def cost(study: StudyRuns, method: str) -> float:
    """The multiply-adds of one training, with its share of the search for its step size."""
    rows = study.first.table(Trained)
    own = [row.multiply_adds for row in rows if row.model == method]
    search = [row.multiply_adds for row in rows if row.model == search_name(method)]
    return own[0] + sum(search) / len(own)


def compare(folder: Path, comparison: Comparison) -> Result | None:
    """The result over the pairs of set and seed that both methods have; None without any."""
    study, against = (
        runs_of(folder, name) for name in (comparison.study, comparison.against or comparison.study)
    )
    if study is None or against is None:
        return None
    check_pairs(study, against)
    method, reference = resolve(study, comparison.method), resolve(against, comparison.reference)
    gaps, voices = (
        gaps_of(by_seeds(study, method, name), by_seeds(against, reference, name))
        for name in ("nll", "voice")
    )
    if not gaps:
        return None
    return Result(
        comparison,
        pairs=metrics.mean_sd(list(gaps.values())),
        sets=over_sets(gaps),
        voice=difference_of_voice(voices) if voices else None,
        ahead=sum(gap < 0 for gap in gaps.values()),
        cost=cost(study, method) / cost(against, reference),
    )


def difference_of_voice(voices: Mapping[Pair, float]) -> MeanSd:
    """The mean over sets; with one set, over pairs."""
    sets = over_sets(voices)
    return sets if sets.n > 1 else metrics.mean_sd(list(voices.values()))


def over_sets(values: Mapping[Pair, float]) -> MeanSd:
    """The mean over sets of the mean over each set's pairs, with its spread over sets."""
    sets = dict.fromkeys(seed for seed, _ in values)
    return metrics.mean_sd([fmean(values[pair] for pair in values if pair[0] == seed) for seed in sets])


def check_pairs(*studies: StudyRuns) -> None:
    """Exit if runs whose teachers have equal seeds have other images or other teachers."""
    found: dict[int, set[str]] = {}
    for run in (run for study in studies for run in study.runs):
        parts = [run.facts.data[part] for part in ("train", "valid")]
        teachers = [row.nll for row in run.scored(TEACHERS, "valid")]
        found.setdefault(run.recipe.teachers.seed, set()).add(str([*parts, *teachers]))
    if wrong := [seed for seed, kinds in found.items() if len(kinds) > 1]:
        raise SystemExit(f"the sets {wrong} have other images or teachers in another run")


def by_seeds(study: StudyRuns, method: str, column: str, split: str = "test") -> dict[Pair, float]:
    """A column of a method's calibrated scores by the seed of the teachers and the seed of the student."""
    seeds = [run.recipe.teachers.seed for run in study.runs]
    rows = study.scored(method, split=split)
    values = {(seeds[place], seed): getattr(row, column) for (place, seed), row in rows.items()}
    return {pair: value for pair, value in values.items() if value is not None}


def gaps_of(mine: Mapping[Pair, float], theirs: Mapping[Pair, float]) -> dict[Pair, float]:
    """The differences over the pairs of seeds that both have."""
    return {pair: mine[pair] - theirs[pair] for pair in mine if pair in theirs}


def tried(folder: Path, run: str, name: str) -> tuple[StudyRuns, str] | None:
    """The run and the method of an entry of `Way.methods`; None if its results are not kept."""
    other, _, method = name.rpartition("/")
    study = runs_of(folder, other or run)
    return (study, method) if study and method in study.methods else None


def results(folder: Path) -> list[Result]:
    """The results of all comparisons whose studies are kept."""
    return [result for comparison in COMPARISONS if (result := compare(folder, comparison))]
