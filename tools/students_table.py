"""The tables and the figure of docs/results/students, from a study of students.

python tools/students_table.py RUN TO    copy the tables of RUN to TO, measure latencies, write the page
python tools/students_table.py TO        write the page again from the files in TO

First run `polyphony evaluate RUN --ood NAME`. TO gets the files that the page needs: recipe.json, scores.csv,
and in analysis/ dee.csv, ood.csv, training.csv (counted), latency.csv and int8.csv (measured side by side).
README.md with its tables and price.svg are written from these files.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from polyphony import metrics
from polyphony._util.files import processor
from polyphony._util.text import listed
from polyphony.analysis import latencies
from polyphony.report.chart import Chart
from polyphony.report.figures.price import quality_for_price
from polyphony.report.provenance import one_line
from polyphony.report.score_tables import label
from polyphony.report.study_runs import StudyRuns
from polyphony.report.tables import DASH, Cell, PageTable
from polyphony.runs.rows import EnsembleNll, Latency, TableRow, UnknownScore, to_csv
from polyphony.runs.run import Run
from polyphony.runs.scores import BEST_TEACHER, TEACHERS

ROUNDS, SECONDS = 200, 60.0  # limits of the measurement of milliseconds
SCORE = "entropy"  # the score that separates unknown images from test images


@dataclass(frozen=True)
class TrainingCost(TableRow):
    """Multiply-adds of one training, with its passes through the teachers; for teachers, of all of them."""

    file: ClassVar[str] = "analysis/training.csv"
    model: str
    multiply_adds: float


@dataclass(frozen=True)
class Int8Latency(Latency):
    """The same model as an int8 file, and how much higher its calibrated NLL is on the run's test samples."""

    file: ClassVar[str] = "analysis/int8.csv"
    nll_rise: float | None = None


def main(source: str, to: str | None = None) -> None:
    """Write the page of a folder; with two folders, first copy the results of the first to the second."""
    if to is not None:
        copy_results(Path(source), Path(to))
    write_page(Path(to or source))


# Results


def copy_results(folder: Path, to: Path) -> None:
    """Copy a run's tables, and write the tables of training costs and latencies."""
    run = Run.open(folder)
    if not run.table(UnknownScore):
        raise SystemExit(f"{folder} has no scores of unknown images: run 'polyphony evaluate RUN --ood NAME'")
    (to / "analysis").mkdir(parents=True, exist_ok=True)
    for name in ("recipe.json", "scores.csv", EnsembleNll.file, UnknownScore.file):
        shutil.copyfile(folder / name, to / name)
    plain, int8 = measure(run)
    for kind, rows in ((TrainingCost, [*training_costs(run)]), (Latency, plain), (Int8Latency, int8)):
        (to / kind.file).write_text(to_csv(rows, kind), encoding="utf-8")


def training_costs(run: Run) -> Iterator[TrainingCost]:
    """The multiply-adds of each training, counted without images."""
    from polyphony.study.cost import costs
    from polyphony.study.study import Study

    for cost in costs(Study(run.recipe, run.folder).outlined()):
        trainings = run.members if cost.name == "teacher" else 1
        name = TEACHERS if cost.name == "teacher" else cost.name
        yield TrainingCost(name, trainings * cost.flops / 2)


def measure(run: Run) -> tuple[list[Latency], list[Int8Latency]]:
    """Milliseconds for one image and bytes of every model's float32 and int8 files, measured side by side."""
    from polyphony.serve.int8 import quantise_student
    from polyphony.serve.load import load_samples
    from polyphony.serve.price import (
        THREADS,
        in_onnxruntime,
        networks_of,
        one_thread,
        priced_file,
        random_images,
    )

    samples = load_samples(run.folder)
    networks = {model: networks_of(run, model) for model in run.models}
    loaders = {key: load for model in reversed(run.models) for key, load in networks[model]}
    files, nll_rises = {}, {}
    for key, load in loaders.items():
        student = load()
        quantised = quantise_student(student, samples)
        files[key] = {"float32": in_onnxruntime(student), "int8": priced_file(quantised.data)}
        nll_rises[key] = quantised.after.nll - quantised.before.nll
    x = random_images(1, tuple(samples.test.images.shape[1:]))
    works = {f"{kind} {key}": partial(file.ask, x) for key in files for kind, file in files[key].items()}
    with one_thread():
        times = latencies(works, ROUNDS, SECONDS)

    def row(model: str, kind: str) -> tuple[str, int, float, int, int, int, str, str]:
        keys = [key for key, _ in networks[model]]
        milliseconds = sum(times[f"{kind} {key}"] for key in keys)
        size = sum(files[key][kind].bytes for key in keys)
        runtime = files[keys[0]][kind].runtime
        return model, run.params(model), milliseconds, 1, THREADS, size, runtime, processor()

    first = {model: networks[model][0][0] for model in run.methods}  # teachers have no temperature here
    rises = {model: nll_rises[key] for model, key in first.items()}
    return (
        [Latency(*row(model, "float32")) for model in run.models],
        [Int8Latency(*row(model, "int8"), nll_rise=rises.get(model)) for model in run.models],
    )


# The page


def write_page(folder: Path) -> None:
    """Write README.md, with its tables, and the figure, from the results in a folder."""
    run = Run.open(folder)
    models = [TEACHERS, BEST_TEACHER, *best_temperatures(run)]
    tables = [quality_table(run, models), price_table(run, models)]
    best = best_of_forms(run)
    figure = quality_for_price(run, [TEACHERS, BEST_TEACHER, *best])
    assert isinstance(figure, Chart)
    (folder / "price.svg").write_bytes(figure.files()["price.svg"])
    (folder / "README.md").write_text(page(run, tables, figure, best), encoding="utf-8")


def page(run: Run, tables: Sequence[PageTable], figure: Chart, best: Sequence[str]) -> str:
    """The tables and the figure with their captions."""
    parts = [f"# Students side by side: {run.recipe.name}", one_line(run)]
    parts += [table.markdown() for table in tables]
    parts += ["![Calibrated NLL against milliseconds of each student](price.svg)", figure.reading]
    parts.append(
        "Of each form the figure shows clean or ODS, as validation NLL chooses. The best trade-offs of NLL"
        f" and milliseconds are {listed(front(run, best))}."
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def best_temperatures(run: Run) -> list[str]:
    """The methods; of methods that differ only in τ, the best on validation images."""
    return best_of(run, run.methods, {"temperature"})


def best_of_forms(run: Run) -> list[str]:
    """For each form, its best method on validation images, clean or ODS."""
    return best_of(run, run.methods, {"temperature", "perturb", "epochs"})


def best_of(run: Run, methods: Sequence[str], ignored: set[str]) -> list[str]:
    """Of methods that differ only in `ignored` settings, the best on validation images."""
    groups: dict[str, list[str]] = {}
    for name in methods:
        groups.setdefault(run.recipe.methods[name].model_dump_json(exclude=ignored), []).append(name)
    return [min(names, key=partial(validation_nll, run)) for names in groups.values()]


def validation_nll(run: Run, method: str) -> float:
    return fmean(row.nll for row in run.scored(method, "valid"))


def front(run: Run, methods: Sequence[str]) -> list[str]:
    """The methods that no other one beats in both NLL and milliseconds, the fastest first."""
    points = sorted((run.price(name).milliseconds, run.mean(name, "nll").mean, name) for name in methods)
    names: list[str] = []
    lowest = float("inf")
    for _, nll, name in points:
        if nll < lowest:
            names, lowest = [*names, name], nll
    return names


def quality_table(run: Run, models: Sequence[str]) -> PageTable:
    """The scores of every model on test images."""
    left_out = [name for name in run.methods if name not in models]
    caption = (
        "Test scores: mean ± s.d. over n seeds of the student. They are calibrated by a temperature fitted on"
        " validation images, except those “as predicted”. ACC, training: accuracy on training images. DEE: of"
        " the mean NLL, with the range over seeds."
        " Mean-KLD kept: mean-KLD as a share of the teachers’; not shown for a student worse than one"
        " teacher. Voice: how much nearer member j is to teacher j than to the others, in nats. AUROC:"
        f" unknown images against test images, by the {SCORE} of the mean prediction."
    )
    if left_out:
        caption += (
            " Some methods differ only in τ; the table has the one with the lowest validation NLL. Left out:"
            f" {', '.join(left_out)}."
        )
    return PageTable.from_rows("quality", caption, [quality_row(run, model) for model in models])


def quality_row(run: Run, model: str) -> dict[str, Cell | str]:
    """A model's cells by heading."""
    dee, has_share = run.dee(model), model in run.methods and run.diversity_share(model) is not None
    shares = StudyRuns("", [run]).diversity_shares(model) if has_share else {}
    unknown = {row.unknown: row.unknown for row in run.table(UnknownScore)}
    return {
        "Model": label(run, model),
        "ACC % ↑": spread([100 * each for each in column(run, model, "acc")], 2),
        "ACC, training %": spread([100 * row.acc for row in run.scored(model, "train")], 1),
        "NLL ↓": spread(column(run, model, "nll"), 3),
        "NLL, as predicted ↓": spread(column(run, model, "nll", "standard"), 3),
        "DEE ↑": Cell(dee.text, range=dee.seeds) if dee else DASH,
        "AURC ↓": spread(column(run, model, "aurc"), 4),
        "Mean-KLD kept %": spread([100 * each for each in shares.values()], 0),
        "Voice ↑": spread(column(run, model, "voice"), 3),
        **{f"AUROC, {name} ↑": spread(aurocs(run, model, name), 3) for name in unknown},
        "n": str(len(run.scored(model))),
    }


def column(run: Run, model: str, name: str, calibration: str = "calibrated") -> list[float]:
    """A test score of each seed that has one."""
    return list(run.by_seed(model, name, calibration).values())


def aurocs(run: Run, model: str, unknown: str) -> list[float]:
    """The AUROC of each seed."""
    rows = run.table(UnknownScore)
    return [row.auroc for row in rows if (row.model, row.unknown, row.score) == (model, unknown, SCORE)]


def spread(values: Sequence[float], digits: int) -> str:
    """ "0.384 ± 0.004"; for one value the mean alone; for none a dash."""
    if not values:
        return DASH
    summary = metrics.mean_sd(values)
    mean = f"{summary.mean:.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {summary.sd:.{digits}f}"


def price_table(run: Run, models: Sequence[str]) -> PageTable:
    """The costs of every model: training, bytes, and milliseconds for an image."""
    row = run.table(Latency)[0]
    caption = (
        "Price. Training: multiply-adds of one training (10¹²), with its passes through the teachers;"
        " for the teachers, of all of them. Milliseconds are for one image in one thread"
        f" ({row.runtime}, {row.machine}), bytes those of the exported file. NLL by int8: how much higher the"
        " calibrated NLL of the int8 file (eight-bit weights) is on test samples of the run, first seed."
        " Students of one form and network are measured once."
    )
    trained = {row.model: row.multiply_adds for row in run.table(TrainingCost)}
    small = {row.model: row for row in run.table(Int8Latency)}
    return PageTable.from_rows(
        "price", caption, [price_row(run, name, trained, small[name]) for name in models]
    )


def price_row(
    run: Run, model: str, trained: Mapping[str, float], small: Int8Latency
) -> dict[str, Cell | str]:
    """A model's cells by heading."""
    plain = run.price(model)
    assert plain
    return {
        "Model": label(run, model),
        "Parameters": f"{plain.params:,}",
        "Training": f"{trained[model] / 1e12:.2f}" if model in trained else DASH,
        "ms, float32": f"{plain.milliseconds:.3f}",
        "ms, int8": f"{small.milliseconds:.3f}",
        "kB, float32": f"{(plain.bytes or 0) / 1000:,.0f}",
        "kB, int8": f"{(small.bytes or 0) / 1000:,.0f}",
        "NLL by int8": DASH if small.nll_rise is None else f"{small.nll_rise:+.4f}".replace("-", "−"),
    }


if __name__ == "__main__":
    main(*sys.argv[1:3])
