"""The tables and figures of docs/results/evidence/tables, from the runs of PROTOCOL-2 to PROTOCOL-5.

python tools/evidence_table.py RUN TO/kept/NAME    keep the recipe, the scores and a table of trainings of RUN
python tools/evidence_table.py TO                  write README.md and the figures in TO from TO/kept

trainings.csv has the epochs, seconds and step size of every training, and its multiply-adds with the passes
through the teachers. front.md is the table of the page of evidence.
"""

from __future__ import annotations

import csv
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from evidence_figures import difference_chart, price_chart
from evidence_runs import (
    CHOICE,
    CHOICE_8,
    CHOICE_100,
    CLOSE,
    DECAYS,
    EQUAL,
    MATCHED,
    OLD,
    STEPS,
    STUDIES,
    WAYS,
    WORDS,
    MeanCosine,
    Trained,
    by_seeds,
    check_pairs,
    cost,
    gaps_of,
    over_sets,
    results,
    runs_of,
    tried,
    valid_nll,
)

from polyphony import metrics
from polyphony._util.text import counted
from polyphony.distill.search import search_name
from polyphony.metrics import MeanSd
from polyphony.report.chart import Chart
from polyphony.report.study_runs import StudyRuns
from polyphony.report.tables import DASH, PageTable, by
from polyphony.runs.rows import GradientSnr, JacobianCosine, to_csv
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS

SECONDS = Path(__file__).parents[1] / "benchmarks" / "results" / "ways.csv"
LENGTHS = ("short", "half", "full")  # of trainings that compare step sizes
PERTURBATIONS = {"gaussian": "Gaussian noise", "ods": "ODS"}
FITS = 0.95  # of the teachers' accuracy on training images


def main(source: str, to: str | None = None) -> None:
    """Write the page of a folder; with two folders, keep the results of the first in the second."""
    if to is not None:
        keep(Run.open(Path(source)), Path(to))
    else:
        write_page(Path(source))


def keep(run: Run, to: Path) -> None:
    """Copy a run's recipe and scores, and write the table of its trainings."""
    to.mkdir(parents=True, exist_ok=True)
    for name in ("recipe.json", "scores.csv"):
        shutil.copyfile(run.folder / name, to / name)
    (to / Trained.file).write_text(to_csv([*trainings(run)], Trained), encoding="utf-8")
    if cosines := run.table(JacobianCosine):
        (to / MeanCosine.file).write_text(to_csv([*mean_cosines(cosines)], MeanCosine), encoding="utf-8")
    if run.table(GradientSnr):
        (to / GradientSnr.file).parent.mkdir(exist_ok=True)
        shutil.copyfile(run.folder / GradientSnr.file, to / GradientSnr.file)


def mean_cosines(rows: Sequence[JacobianCosine]) -> Iterator[MeanCosine]:
    """The mean cosine of each split, model and seed."""
    for (split, model, seed), group in by(rows, "split", "model", "seed").items():
        images = len({row.example for row in group})
        yield MeanCosine(split, model, seed, images, fmean(row.cosine for row in group))


def trainings(run: Run) -> Iterator[Trained]:
    """Every training of a run, with its counted cost."""
    from polyphony.study.cost import costs
    from polyphony.study.study import Study
    from polyphony.study.trainings import TrainTeacher

    study = Study(run.recipe, run.folder)
    multiply_adds = {cost.name: cost.flops / 2 for cost in costs(study.outlined())}
    folders = [(TEACHERS, j, study.teacher(j)) for j in range(study.teacher_count)]
    searched = filter(study.recipe.searches_step, study.recipe.methods)
    folders += [(search_name(name), 0, study.step_search(name)) for name in searched]
    folders += [(name, seed, study.student(name, seed)) for name, seed in study.students]
    for model, number, folder in folders:
        record = folder.record()
        flops = multiply_adds[TrainTeacher.kind if model == TEACHERS else model]
        yield Trained(model, number, record["epochs"], record["seconds"], record.get("step_size"), flops)


# Tables


def signed(value: float, digits: int = 3) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def half_text(mean: MeanSd) -> str:
    return f"± {mean.half:.3f}" if mean.n > 1 else DASH


def spread_text(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """ "0.384 ± 0.004"; the mean alone for one value; a dash for none."""
    if not values:
        return DASH
    mean = metrics.mean_sd([factor * value for value in values])
    deviation = f" ± {mean.sd:.{digits}f}" if mean.n > 1 else ""
    return f"{mean.mean:.{digits}f}{deviation}"


def comparison_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each comparison whose studies have results."""
    return [
        {
            "study": result.comparison.study,
            "comparison": result.comparison.words,
            "cost": f"{result.cost:.2f}",
            "difference": signed(result.mean.mean),
            "95 % interval": half_text(result.pairs),
            "over sets": half_text(result.sets),
            "better in": f"{result.ahead} of {result.pairs.n}",
            "verdict": result.verdict,
            "voice": signed(result.voice.mean) if result.voice else DASH,
            "95 % interval of voice": half_text(result.voice) if result.voice else DASH,
        }
        for result in results(folder)
    ]


def front_rows(folder: Path) -> list[dict[str, str]]:
    """The comparisons of the page of evidence, with their intervals over sets."""
    return [
        {
            "images": result.comparison.study,
            "comparison": result.comparison.words,
            "cost": f"{result.cost:.2f}",
            "sets": str(result.sets.n),
            "difference": signed(result.mean.mean),
            "95 % interval": half_text(result.sets),
            "verdict": result.verdict,
        }
        for result in results(folder)
        if result.comparison.front
    ]


def score_rows(study: StudyRuns) -> list[dict[str, str]]:
    """A row for each model of a study."""
    kept = [row for run in study.runs for row in run.table(Trained)]
    return [
        {
            "model": model,
            "NLL": spread_text([*study.column(model, "nll").values()], 3),
            "as predicted": spread_text([*study.column(model, "nll", "standard").values()], 3),
            "ACC %": spread_text([*study.column(model, "acc").values()], 1, 100),
            "training ACC %": spread_text(
                [row.acc for row in study.scored(model, split="train").values()], 1, 100
            ),
            "DEE": dee_text(study, model),
            "mean-KLD": spread_text([*study.column(model, "kld").values()], 3),
            "voice": spread_text([*study.column(model, "voice").values()], 3),
            "step": steps_text([row for row in kept if row.model == model]),
            "multiply-adds": DASH if model == BEST_TEACHER else f"{cost(study, model) / 1e12:.2f}",
            "n": str(len(study.column(model, "nll"))),
        }
        for model in study.models
    ]


def dee_text(study: StudyRuns, model: str) -> str:
    """The mean DEE; ">6" if students are better than all six teachers together, "3.10 to >6" if some are."""
    values = [*study.column(model, "dee").values()]
    if all(map(math.isfinite, values)):
        return spread_text(values, 2)
    most = f">{study.first.teacher_count}"
    return f"{min(values):.2f} to {most}" if math.isfinite(min(values)) else most


def steps_text(rows: Sequence[Trained]) -> str:
    """The step sizes of trainings, in 1/255."""
    steps = {row.step_size for row in rows if row.step_size is not None}
    return ", ".join(f"{255 * step:.3g}" for step in sorted(steps)) or DASH


def choice_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """A row for each setting that was tried on validation images in a run."""
    study = runs_of(folder, name)
    if study is None:
        return []
    rows = []
    for name in study.methods:
        valid, recipe = study.scored(name, split="valid").values(), study.first.recipe
        rows.append(
            {
                "setting": name,
                "τ": f"{recipe.setting(name, 'temperature'):g}",
                "rate": f"{recipe.schedule(name).learning_rate:g}",
                "epochs": str(recipe.schedule(name).epochs),
                "validation NLL": spread_text([row.nll for row in valid], 3),
                "ACC %": spread_text([row.acc for row in valid], 1, 100),
                "training ACC %": spread_text(
                    [row.acc for row in study.scored(name, split="train").values()], 1, 100
                ),
                "mean-KLD": spread_text([row.kld for row in valid if row.kld is not None], 3),
                "voice": spread_text([row.voice for row in valid if row.voice is not None], 3),
                "multiply-adds": f"{cost(study, name) / 1e12:.2f}",
            }
        )
    return rows


def price_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each way and number of epochs: its cost and NLL beside those of the first way."""
    rows = []
    for name, ways in WAYS.items():
        study = runs_of(folder, name)
        if study is None:
            continue
        first = ways[0].methods[0]
        goal, whole = by_seeds(study, first, "nll", "valid"), cost(study, first)
        for way in ways:
            for there, method in filter(None, (tried(folder, name, each) for each in way.methods)):
                nlls = by_seeds(there, method, "nll", "valid")
                gap = over_sets(gaps_of(nlls, goal))
                rows.append(
                    {
                        "study": WORDS.get(name, name),
                        "way": way.label,
                        "epochs": str(there.first.recipe.schedule(method).epochs),
                        "share of the cost": f"{cost(there, method) / whole:.2f}",
                        "validation NLL": spread_text([*nlls.values()], 3),
                        "difference": signed(gap.mean, 4),
                        "95 % interval": half_text(gap) if method != first else DASH,
                        "n": str(gap.n),
                        "reaches it": "yes" if gap.mean <= 0 else "no",
                    }
                )
    return rows


def step_rows(folder: Path) -> list[dict[str, str]]:
    """Calibrated validation NLL by step after short and after full trainings."""
    return [
        {
            "setting": setting,
            "step (1/255)": f"{step:g}",
            **{length: nll_text(folder, *by_length.get(length, ("", ""))) for length in LENGTHS},
        }
        for setting, steps in STEPS.items()
        for step, by_length in steps.items()
    ]


def nll_text(folder: Path, name: str, method: str) -> str:
    """The mean calibrated validation NLL of a method of a run; a dash if it is not kept."""
    found = tried(folder, name, method) if name else None
    return f"{valid_nll(*found).mean:.3f}" if found else DASH


def match_rows(folder: Path) -> list[dict[str, str]]:
    """The validation NLL of matched steps beside that of the step that scans chose."""
    rows = []
    for setting, (matched, fixed, methods) in MATCHED.items():
        runs, scans = runs_of(folder, matched), runs_of(folder, fixed)
        if runs is None or scans is None:
            continue
        best = min(methods, key=lambda name: valid_nll(scans, name).mean)
        check_pairs(runs, scans)
        nlls = [by_set(runs, "match"), by_set(scans, best)]
        sets = nlls[0].keys() & nlls[1].keys()
        ours, theirs = (fmean(nll[seed] for seed in sets) for nll in nlls)
        gap = ours - theirs
        rows.append(
            {
                "setting": setting,
                "sets": str(len(sets)),
                "matched step (1/255)": spread_text([255 * step for step in steps_of(runs, "match")], 1),
                "NLL, matched step": f"{ours:.3f}",
                "fixed step (1/255)": f"{255 * steps_of(scans, best)[0]:g}",
                "NLL, fixed step": f"{theirs:.3f}",
                "difference": signed(gap),
                f"at most {CLOSE} worse": "yes" if gap <= CLOSE else "no",
            }
        )
    return rows


def by_set(study: StudyRuns, method: str) -> dict[int, float]:
    """The calibrated validation NLL of a method by the seed of the teachers; it has one student each."""
    return {seed: nll for (seed, _), nll in by_seeds(study, method, "nll", "valid").items()}


def steps_of(study: StudyRuns, method: str) -> list[float]:
    """The step size of every training of a method."""
    rows = (row for run in study.runs for row in run.table(Trained))
    return [row.step_size for row in rows if row.model == method and row.step_size is not None]


def decay_rows(folder: Path) -> list[dict[str, str]]:
    """Calibrated validation NLL of ODS by weight decay, for both starts."""
    study = runs_of(folder, DECAYS)
    runs = study.runs if study else []
    rows = []
    for start, method in {"a teacher": "ods", "fresh": "fresh-ods"}.items():
        for run in sorted(runs, key=lambda run: run.recipe.student.weight_decay):
            valid, train = (run.scored(method, split) for split in ("valid", "train"))
            rows.append(
                {
                    "start": start,
                    "weight decay": f"{run.recipe.student.weight_decay:g}",
                    "validation NLL": spread_text([row.nll for row in valid], 3),
                    "training ACC %": spread_text([100 * row.acc for row in train], 1),
                }
            )
    return rows


def run_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each kept run."""
    return [
        {
            "run": path.name,
            "recipe": run.recipe.name,
            "set": str(run.recipe.teachers.seed),
            "training images": run.facts.data["train"][:8],
            "validation images": run.facts.data["valid"][:8],
            "processor": str(run.facts.machine["processor"]),
        }
        for path in sorted((folder / "kept").iterdir())
        for run in [Run.open(path)]
    ]


def second_rows() -> list[dict[str, str]]:
    """The shares of multiply-adds and of seconds of a step, from the benchmark."""
    with SECONDS.open(encoding="utf-8") as file:
        medians = {row["name"]: float(row["median"]) for row in csv.DictReader(file)}
    ways = [name.removesuffix(": seconds") for name in medians if name.endswith(": seconds")]
    return [
        {
            "way": way,
            "multiply-adds": f"{medians[f'{way}: multiply-adds']:.2f}",
            "seconds": f"{medians[f'{way}: seconds']:.2f}",
        }
        for way in ways
    ]


def cosine_rows(study: StudyRuns) -> list[dict[str, str]]:
    """Mean cosines of Jacobians of each model."""
    rows = [row for run in study.runs for row in run.table(MeanCosine)]
    return [
        {
            "model": model,
            "training images": spread_text([row.cosine for row in group if row.split == "train"], 3),
            "validation images": spread_text([row.cosine for row in group if row.split == "valid"], 3),
            "n": str(len(group) // 2),
        }
        for model, group in by(rows, "model").items()
    ]


def snr_rows(study: StudyRuns) -> list[dict[str, str]]:
    """Signal-to-noise ratios by step and perturbation."""
    rows = [row for run in study.runs for row in run.table(GradientSnr)]
    return [
        {
            "step (1/255)": f"{255 * step:.3g}",
            **{
                f"{PERTURBATIONS[kind]}{suffix}": spread_text([getattr(row, column) for row in each], 2)
                for column, suffix in {"snr": "", "literal": ", as printed"}.items()
                for kind, each in by(group, "perturbation").items()
            },
        }
        for step, group in by(rows, "step_size").items()
    ]


# The page


def write_page(folder: Path) -> None:
    """Write README.md and the figures from the kept results."""
    apart, price = difference_chart(folder), price_chart(folder)
    for chart in (apart, price):
        files = chart.files()
        for suffix in ("svg", "csv"):
            (folder / f"{chart.name}.{suffix}").write_bytes(files[f"{chart.name}.{suffix}"])
    (folder / "README.md").write_text(page(folder, apart, price), encoding="utf-8")
    front = PageTable.from_rows("front", "", front_rows(folder)).markdown()
    (folder / "front.md").write_text(front.strip() + "\n", encoding="utf-8")


def page(folder: Path, apart: Chart, price: Chart) -> str:
    """All tables with their captions."""
    parts = [
        "# Evidence: all results",
        "Written by `python tools/evidence_table.py` from the files in `kept/`. [The answer](../README.md),"
        " the [second](../PROTOCOL-2.md), [third](../PROTOCOL-3.md), [fourth](../PROTOCOL-4.md) and"
        " [fifth protocol](../PROTOCOL-5.md).",
        "## Comparisons",
        f"![Differences of calibrated test NLL](differences.svg)\n\n*{apart.reading}*",
        PageTable.from_rows("comparisons", COMPARISON_CAPTION, comparison_rows(folder)).markdown(),
        "## Price of quality",
        f"![Validation NLL against training cost](price.svg)\n\n*{price.reading}*",
        PageTable.from_rows("price", PRICE_CAPTION, price_rows(folder)).markdown(),
        "## Seconds of a step",
        PageTable.from_rows("seconds", SECONDS_CAPTION, second_rows()).markdown(),
    ]
    parts += ["## Students of each study", SCORE_CAPTION]
    for name in STUDIES:
        if study := runs_of(folder, name):
            caption = f"{study_words(study)} {fit_words(study)}"
            parts += [f"## {name}", PageTable.from_rows("scores", caption, score_rows(study)).markdown()]
    if (study := runs_of(folder, OLD)) and study.first.table(MeanCosine):
        parts += [
            "## Jacobians and gradients on CIFAR-10",
            PageTable.from_rows("jacobians", COSINE_CAPTION, cosine_rows(study)).markdown(),
            PageTable.from_rows("snr", SNR_CAPTION, snr_rows(study)).markdown(),
        ]
    parts += [
        "## Settings tried on validation images",
        PageTable.from_rows("choice", CHOICE_CAPTION, choice_rows(folder, CHOICE)).markdown(),
        "## Settings tried for CIFAR-100",
        PageTable.from_rows("choice-100", CHOICE_100_CAPTION, choice_rows(folder, CHOICE_100)).markdown(),
        "## Ways at an eighth of the cost",
        PageTable.from_rows("choice-8", CHOICE_8_CAPTION, choice_rows(folder, CHOICE_8)).markdown(),
        "## Steps after short and long trainings",
        PageTable.from_rows("steps", STEP_CAPTION, step_rows(folder)).markdown(),
        "## Matched steps",
        PageTable.from_rows("matched", MATCH_CAPTION, match_rows(folder)).markdown(),
        "## Weight decay",
        PageTable.from_rows("decay", DECAY_CAPTION, decay_rows(folder)).markdown(),
        "## Runs",
        PageTable.from_rows("runs", RUNS_CAPTION, run_rows(folder)).markdown(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


COMPARISON_CAPTION = (
    "Difference: calibrated test NLL of the first method less that of the second, mean over sets of teachers"
    " (with one set, over pairs); below zero, the first is better. Cost: multiply-adds of one training of the"
    " first method, divided by those of the second. Intervals: half of the 95 % t-interval over pairs with"
    " the same teachers and seed, and over the means of sets of teachers. Verdict: by the interval over sets,"
    " with one set by that over pairs: better or worse if it excludes zero, else equal if it lies within ±"
    f" {EQUAL}, else unclear. Voice: the difference in nats with its interval over sets; above zero, members"
    " of the first follow their own teachers more closely."
)
SCORE_CAPTION = (
    "Test images, calibrated, mean ± s.d. over n students; “as predicted” is the NLL without a fitted"
    " temperature. Voice: how much closer (in nats) member j is to teacher j than to the other teachers."
    " Step: in 1/255. Multiply-adds: of one training (10¹²). Each table names the students that do not fit"
    f" their training images: below {FITS:.0%} of their teachers’ training accuracy."
)
CHOICE_CAPTION = (
    "CIFAR-10, 4,000 images, set 20, student seed 60, 2,000 validation images, calibrated NLL. Multiply-adds:"
    " of one training (10¹²)."
)
PRICE_CAPTION = (
    "Share of the cost: multiply-adds of a training relative to the first way of the study, which is the"
    " paper's, with a rate of 0.1. Difference: in calibrated validation NLL, to that way. Reaches it: is the"
    " NLL as low? n: sets of teachers, one student each. Plain ways of set 31 have a rate of 0.03."
)
SECONDS_CAPTION = (
    "A step relative to that of the paper (two passes, ODS): multiply-adds are counted, seconds are medians"
    " of one run that alternates all ways, in one thread (benchmarks/ways.py)."
)
CHOICE_8_CAPTION = (
    "CIFAR-10, 4,000 images, set 31, student seed 61, 2,000 validation images, calibrated NLL. All ways but"
    " the first cost at most an eighth of it. Multiply-adds: of one training (10¹²)."
)
RUNS_CAPTION = (
    "Every kept run. Images: the first digits of the SHA-256 of all training and validation images; runs with"
    " equal digits have the same images. Set: the seed of the teachers."
)
CHOICE_100_CAPTION = (
    "CIFAR-100, 4,000 images, set 26, student seed 60, 2,000 validation images, calibrated NLL."
    " Multiply-adds: of one training (10¹²). All students start from a teacher."
)
COSINE_CAPTION = (
    "Cosine between the Jacobians of member j and teacher j (paper §4.3), 50 images of each split, mean ±"
    " s.d. over n students."
)
SNR_CAPTION = (
    "Signal-to-noise ratio of the gradient (paper §4.3), student plain, seed 61, τ = 4, 32 training images,"
    " 50 draws, mean ± s.d. over three sets of teachers. “As printed” is the paper’s formula; the other"
    " columns subtract the noise of the mean."
)
STEP_CAPTION = (
    "Calibrated validation NLL of ODS, one seed. Full trainings have 10 epochs, those of fresh students 20;"
    " half and short ones have a half and a fifth of them. The short trainings of fresh students are on set"
    " 31, the full ones on set 20."
)
MATCH_CAPTION = (
    "Calibrated validation NLL of ODS, students that start from a teacher, mean over sets, one student each."
    ' Matched step: that of step_size = "match". Fixed step: the one that scans of 3 to 24 of 255 chose, on'
    " other sets for CIFAR-10 and CIFAR-100, on the same set for Fashion-MNIST."
)
DECAY_CAPTION = (
    "Calibrated validation NLL of ODS, CIFAR-10, 4,000 images, set 31, one student each, with the rate and"
    " the epochs of the study."
)


def study_words(study: StudyRuns) -> str:
    """How many sets of teachers a study has, and of training images."""
    images = len({run.facts.data["train"] for run in study.runs})
    return f"{counted(len(study.runs), 'set')} of teachers, {counted(images, 'set')} of training images."


def fit_words(study: StudyRuns) -> str:
    """Which students do not fit their training images."""
    teachers = fmean(row.acc for row in study.scored(TEACHERS, split="train").values())
    short = [name for name in study.methods if not fits(study, name, teachers)]
    return f"Students that do not fit: {', '.join(short) or 'none'}."


def fits(study: StudyRuns, method: str, teachers: float) -> bool:
    return fmean(row.acc for row in study.scored(method, split="train").values()) >= FITS * teachers


if __name__ == "__main__":
    main(*sys.argv[1:3])
