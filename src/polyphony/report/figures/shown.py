"""How much of their disagreement the teachers show where a student is taught, at each temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from polyphony.report.chart import Absent, Chart, Panel
from polyphony.report.hints import share_shown
from polyphony.report.run import Run
from polyphony.report.style import MUTED, Look
from polyphony.report.tables import Numbers
from polyphony.scores import TEACHERS

TEMPERATURES = (1.0, 2.0, 4.0, 8.0)


def shown_by_temperature(run: Run) -> Chart | Absent:
    """The teachers' mean-KLD on training images, as they are and moved, beside that on validation images."""
    title = "What the teachers show"
    clean, held = (run.pooled(TEACHERS, split) for split in ("train", "valid"))
    if clean is None or held is None or not held.mean_kld():
        return Absent(title, "the teachers' predictions are not in the run folder, or do not differ.")
    seen = {Look("training images", MUTED, "o"): clean}
    for names, each in run.moved:
        own = run.look[names[0]]
        seen[Look(f"moved as in {', '.join(names)}", own.ink, own.marker)] = each
    shares = {look: [share_shown(each, held, t) for t in TEMPERATURES] for look, each in seen.items()}
    rows = [(look.label, *at) for look, line in shares.items() for at in zip(TEMPERATURES, line, strict=True)]
    reading = (
        "The teachers’ mean-KLD on training images at each temperature, as a share of that on validation"
        " images at the same one. A student cannot learn what they do not show: near 0 it learns labels; at 1"
        " training images show as much as new ones. Temperature and perturbation are two ways up."
    )
    panel = Panel("", partial(_draw, shares=shares), 1.5)
    return Chart(
        "shown", title, reading, [panel], Numbers(["images", "temperature", "share"], rows), list(shares)
    )


def _draw(axes: Axes, *, shares: Mapping[Look, Sequence[float]]) -> None:
    for look, line in shares.items():
        axes.plot(TEMPERATURES, line, **look.mark, markersize=5.5)
    axes.axhline(1, color=MUTED.light, linewidth=1.0, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(TEMPERATURES, [f"{temperature:g}" for temperature in TEMPERATURES])
    axes.set(xlabel="temperature τ", ylabel="share of that on validation", ylim=(0, None))
