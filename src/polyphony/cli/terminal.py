"""Output on the terminal: sentences, tables, a spinner."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.syntax import Syntax
from rich.table import Column, Table
from rich.text import Text

from polyphony._util.text import counted, cut, duration, one_line, short_number

if TYPE_CHECKING:
    from polyphony.recipe import Recipe
    from polyphony.runs.run import Run
    from polyphony.study.cost import Cost, PredictionCost
    from polyphony.study.run import Outcome
    from polyphony.study.study import Study
    from polyphony.sweep.run import SweepOutcome

GPU_SPEED = 2e13  # operations a second that a large GPU is assumed to sustain in float32
LONGEST_NAME = 0.4  # of the terminal's width, in a table that does not fit
# Columns to remove from a table that does not fit, the first one first.
LEAST_IMPORTANT = ("of seeds", "Params", "ms", "ECE ↓", "Follows", "DEE ↑")

console = Console()  # results
errors = Console(stderr=True)
chatter = Console()  # progress; --quiet silences it


def complain(sentence: str) -> None:
    """Print an error in one line of at most 300 characters."""
    print_to(errors, one_line(f"polyphony: {sentence}"), "bold red")


def working(text: str) -> Status:
    """A spinner on a terminal; nothing elsewhere."""
    return chatter.status(f"{escape(text)} …")


def line(text: str, style: str | None = None) -> None:
    """Print a result as one line."""
    print_to(console, text, style)


def say(text: str) -> None:
    """Print a line about progress; --quiet omits it."""
    print_to(chatter, text)


def note(text: str) -> None:
    """Print a line about progress to standard error, for commands whose output programs read."""
    if not chatter.quiet:
        print_to(errors, text)


def print_to(where: Console, text: str, style: str | None = None) -> None:
    """Print a line without markup, since a name may look like markup, and without breaking a path."""
    where.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def plain(text: str) -> None:
    """Print text for programs."""
    console.file.write(f"{text.rstrip()}\n")


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table. Long cells are folded; cells have no markup, since a name may look like it."""
    columns = (Column(heading, overflow="fold") for heading in headings)
    table = Table(*columns, title=title and escape(title))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def frameless(title: str, rows: Sequence[Mapping[str, str]], optional: Sequence[str] = ()) -> Table:
    """A table without frames whose cells are not wrapped; `rows` map headings to cells.

    If it is wider than the terminal, long cells of the first column lose their middle. If that is not enough,
    the table loses `optional` columns, in this order, and a caption names them.
    """
    headings, left_out = list(rows[0]), list[str]()
    if table_width(rows, headings) > console.width:
        name, longest = headings[0], int(LONGEST_NAME * console.width)
        rows = [{**row, name: cut(row[name], longest)} for row in rows]
    for heading in (name for name in optional if name in rows[0]):
        if table_width(rows, headings) > console.width:
            headings.remove(heading)
            left_out.append(heading)
    caption = f"Left out to fit {console.width} columns: {', '.join(left_out)}" if left_out else None
    table = Table(title=escape(title), caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[heading]) for heading in headings))
    return table


def table_width(rows: Sequence[Mapping[str, str]], headings: Sequence[str]) -> int:
    """The width of a frameless table: two spaces between columns, and three at the sides."""
    widths = (max(map(cell_len, (heading, *(row[heading] for row in rows)))) for heading in headings)
    return 1 + sum(2 + width for width in widths)


def show_recipe(recipe: Recipe) -> None:
    text = json.dumps(recipe.model_dump(mode="json", exclude_none=True), indent=2)
    console.print(Syntax(text, "json", background_color="default"))


def show_json(recipe: Recipe, **more: object) -> None:
    """Print the recipe and more as JSON."""
    table = recipe.model_dump(mode="json", exclude_none=True)
    plain(json.dumps({"recipe": table, **more}, indent=1))


def show_answers(answers: Sequence[PredictionCost], shares: dict[str, float]) -> None:
    """Print what one image costs, and which share of the weights has rank-one members."""
    heads = ("model", "parameters", "with\nmembers", "multiply-\nadds", "weights", "time\nhere")
    rows = [
        (
            each.name,
            f"{each.parameters:,}",
            f"{shares[each.name]:.1%}" if each.name in shares else "–",
            f"{each.multiply_adds / 1e6:,.3g} M",
            f"{each.weights / 1e6:,.3g} MB",
            f"{each.milliseconds:.2g} ms",
        )
        for each in answers
    ]
    show_table(heads, rows, "One answer")
    line("Times are estimates for one image in PyTorch, judging by a few measured passes.")


def show_costs(costs: Sequence[Cost], at_once: int) -> None:
    """Print the cost of a study, measured here and estimated for a GPU."""
    rows = []
    for cost in costs:
        flops = cost.runs * cost.flops
        numbers = f"{flops / 1e15:.3g}", duration(cost.seconds), duration(flops / GPU_SPEED)
        rows.append((cost.name, str(cost.runs), *numbers))
    show_table(("training", "runs", "PFLOP", "each, here", "all, one GPU"), rows, "Cost")
    line(f"{estimate(costs, at_once)} GPU times assume a sustained {GPU_SPEED / 1e12:.0f} TFLOP/s.")


def estimate(costs: Sequence[Cost], at_once: int) -> str:
    """How long all trainings take together."""
    total = sum(cost.runs * cost.seconds for cost in costs) / at_once
    longest = max((cost.seconds for cost in costs), default=0.0)  # lower bound: one training cannot be split
    time = f"About {duration(max(total, longest))} at this machine's speed, {at_once} at a time"
    return f"{time}, judging by a few measured steps."


def show_outcome(study: Study, outcome: Outcome) -> None:
    """Print what was done, the table, the verdict, and where the files are."""
    from polyphony.report.verdict import verdict
    from polyphony.runs.run import Run

    show_work(study.folder, outcome)
    if outcome.scores:
        run = Run.open(study.folder)
        result = verdict(run)
        console.print(score_table(run))
        line(result.sentence)
        for headline in result.headlines:
            line(f"{headline.about}: {headline.number} {headline.meaning}.")
        for note in result.notes:
            line(note)
        line(f"Scores: {study.folder / 'scores.csv'}")


def show_work(folder: Path, outcome: Outcome | SweepOutcome, nothing_lost: bool = True) -> None:
    """Print how many jobs ran, were done before, and were taken over from other runs."""
    before = outcome.skipped - outcome.adopted
    if outcome.adopted:
        line(f"Taken over from other runs in {folder.parent}: {counted(outcome.adopted, 'training')}.")
    if outcome.ran == outcome.adopted == 0 and nothing_lost:
        line(f"Nothing to do: all {before} jobs of {folder} are done and unchanged.")
    elif before:
        line(f"{outcome.ran} jobs were run, {before} were done before.")


def score_table(run: Run) -> Table:
    """Calibrated scores of all models on test images: means over seeds, the NLL with its s.d."""
    seeds = counted(len(run.recipe.seeds), "seed")
    title = f"{run.recipe.name}: test images, calibrated; mean over {seeds}, NLL ± s.d."
    return frameless(title, [cells(run, model) for model in run.models], LEAST_IMPORTANT)


def cells(run: Run, model: str) -> dict[str, str]:
    """A row of the table: the model's name, cost and scores as text, by heading."""
    from polyphony.runs.scores import TEACHERS

    price, dee, follows = run.price(model), run.dee(model), run.follows(model)
    name = f"{run.members} {TEACHERS}" if model == TEACHERS else model
    cost = {"ms": f"{price.milliseconds:.3g}"} if price else {"Params": short_number(run.params(model))}
    acc, ece = (run.text(model, column).partition(" ±")[0] for column in ("acc", "ece"))
    return {
        "Model": name,
        **cost,
        "NLL ↓": narrow(run.text(model, "nll")),
        "ACC ↑": acc,
        "ECE ↓": ece,
        "DEE ↑": dee.text if dee else "–",
        "of seeds": dee.seeds_text(1, "–") or "–" if dee else "–",
        "Follows": "–" if follows is None else f"{round(100 * follows)} %",
    }


def narrow(score: str) -> str:
    """A score without the space after ±."""
    return score.replace("± ", "±")
