"""Options that many commands share."""

import pytest

from polyphony.cli.options import Where, runner
from polyphony.execute.processes import Processes
from polyphony.recipe import read_recipe
from polyphony.study.study import Study


@pytest.mark.parametrize(
    ("workers", "recipe_threads", "threads"), [(2, None, 4), (8, None, 1), (16, None, 1), (4, 3, 3)]
)
def test_workers_share_the_cores_unless_the_recipe_sets_threads(
    tmp_path, monkeypatch, workers, recipe_threads, threads
):
    for module in ("cli.options", "study.study"):
        monkeypatch.setattr(f"polyphony.{module}.cores", lambda: 8)
    recipe = read_recipe("cifar10-resnet32-be4").model_copy(update={"threads": recipe_threads})
    study = Study(recipe, tmp_path, device="cpu").outlined()
    assert study.threads() == (recipe_threads or 8)  # images of 32×32 pixels use all cores
    chosen = runner(study, Where(device="cpu", workers=workers))
    assert isinstance(chosen, Processes)
    assert (chosen.at_once, chosen.threads) == (workers, threads)
