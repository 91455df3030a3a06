from __future__ import annotations

import csv
import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from filelock import FileLock
from rich.console import Console

from polyphony._util.text import SettingError
from polyphony.cli import exit_code, terminal
from polyphony.cli.study import expected_costs
from polyphony.cli.terminal import score_table
from polyphony.execute.cluster import Cluster, Share
from polyphony.execute.processes import WorkerLostError
from polyphony.execute.runner import Here
from polyphony.nn.conversion import ConversionError
from polyphony.recipe import Recipe, read_recipe
from polyphony.runs.rows import Score, to_csv
from polyphony.runs.run import Run
from polyphony.runs.store import ChangedError, FolderError
from polyphony.serve import AnswerError
from polyphony.study.cost import TooLargeError
from polyphony.study.study import Study
from polyphony.training.tally import DivergedError

MORE = (
    "seeds=[0, 1]",
    "teachers.extra=1",
    "methods={scratch={}, kd={perturb='clean'}, kd-ods={perturb='ods'}}",
)


@pytest.fixture
def settings(tiny_digits: tuple[str, ...]) -> list[str]:
    """The options that make the digits recipe tiny."""
    return [part for override in (*tiny_digits, *MORE) for part in ("--set", override)]


@pytest.fixture
def tiny(settings: list[str]) -> Callable[..., list[object]]:
    """`VERB digits` with the recipe made tiny, in one process, and more arguments."""
    return lambda verb, *more: [verb, "digits", "--workers", "1", "--device", "cpu", *settings, *more]


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run folder that is there: what a study in it will cost is not measured."""
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder


# Help


LIGHT = """
import sys
from polyphony.cli import main

def say(*arguments, code=0):
    try:
        main(arguments)
    except SystemExit as stop:
        assert (stop.code or 0) == code

def imported(*names):
    return [name for name in names if name in sys.modules]

for arguments in (["--help"], ["study", "--help"], ["sweep", "--help"], ["data", "--help"], ["--version"]):
    say(*arguments)
say("study", "digits", "--nonsense", code=2)
say("predict", "runs/digits", code=2)
assert imported("torch", "numpy", "scipy", "pydantic", "sklearn", "matplotlib", "optuna") == []
import polyphony
assert imported("torch") == []
polyphony.ODS
assert imported("torch") == ["torch"]
"""


def test_no_command_waits_for_libraries_that_it_does_not_need(environment):
    """Help and wrong commands import no PyTorch, nor does the package until a public name is used."""
    done = subprocess.run([sys.executable, "-c", LIGHT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for verb in ("study", "teach", "distill", "evaluate", "show", "data"):
        assert f" {verb} " in done.stdout
    for option in ("--alpha", "--temperature", "--step-size", "--method", "--seeds", "--trials"):
        assert option in done.stdout


# A study


def test_a_study_from_the_command_line_then_again_then_changed(say, tiny, refused, tmp_path, monkeypatch):
    first = say(*tiny("study", "--no-analyses"))
    assert first.code == 0, first.err
    folder = tmp_path / "runs" / "digits"
    with (folder / "scores.csv").open() as file:
        header, *rows = csv.reader(file)
    assert ",".join(header).startswith("model,seed,split,calibration,acc,nll,bs,ece,dee,kld,params")
    assert len(rows) == 2 * (4 + 2 + 3 * 2 * 3)
    assert "±" in first.out
    assert "Your best single network has" in first.out
    assert "scores.csv" in first.out
    assert (folder / "report.html").is_file()

    scores = (folder / "scores.csv").read_bytes()
    monkeypatch.setattr("polyphony.report.write_report", lambda *_: "as before")  # it takes the longest
    second = say(*tiny("study", "--no-analyses"))
    assert second.code == 0
    assert "Nothing to do" in second.out
    assert (folder / "scores.csv").read_bytes() == scores

    again = say("evaluate", folder, "--device", "cpu", "--workers", "1")
    assert again.code == 0
    assert "Nothing to do" in again.out
    assert (folder / "scores.csv").read_bytes() == scores

    other = ("--set", "methods.kd-ods.alpha=0.5")
    refused(say(*tiny("study", *other)), "method.alpha (0.9, now 0.5)", "--out", "--redo")
    assert (folder / "scores.csv").read_bytes() == scores

    redone = say(*tiny("study", *other, "--redo", "--no-analyses"))
    assert redone.code == 0
    assert "Nothing to do" not in redone.out
    assert (folder / "scores.csv").read_bytes() != scores


def test_the_parts_add_up_to_a_study(say, tiny, begun, tmp_path):
    assert say(*tiny("teach", "--out", begun)).code == 0
    assert sorted(path.name for path in (begun / "teachers").iterdir()) == ["0", "1", "2"]
    assert not (begun / "students").exists()
    distilled = say(*tiny("distill", "--out", begun))
    assert "6 jobs were run, 3 were done before" in distilled.out
    assert not (begun / "scores.csv").exists()
    assert say("evaluate", begun, "--workers", "1").code == 0
    assert (begun / "scores.csv").exists()
    assert not (tmp_path / "runs").exists()


def test_show_prints_the_recipe_the_parameters_and_the_cost_and_writes_nothing(say, settings, tmp_path):
    shown = say("show", "digits", "--device", "cpu", *settings)
    assert shown.code == 0, shown.err
    recipe = json.loads(shown.out[shown.out.index("{") : shown.out.rindex("}") + 1])
    assert recipe["members"] == 2
    assert recipe["student"]["step_size"] == pytest.approx(24 / 255)
    # ResNet-8 of width 2: stem 18, blocks 36·2 + 72+144 + 288+576, norms 2·(2 + 2·2 + 2·4 + 2·8), head 90
    assert f"{2 * (18 + 72 + 216 + 864 + 60 + 90):,}" in shown.out
    for name in ("one teacher", "multiply-", "weights", "teacher", "scratch", "kd", "kd-ods"):
        assert name in shown.out
    assert [path for path in tmp_path.iterdir() if path.name != ".cache"] == []


@pytest.fixture
def printed_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Recipe], str]:
    """Print the score table of a recipe's methods, with invented scores, on a terminal of 80 columns."""
    monkeypatch.setattr(terminal, "console", Console(width=80))
    numbers = {
        "acc": 0.9123,
        "nll": 0.2345,
        "bs": 0.1234,
        "ece": 0.0123,
        "dee": 2.5,
        "kld": 0.1,
        "params": 464_154,
    }
    kinds = ("standard", "calibrated")

    def print_table(recipe: Recipe) -> str:
        rows = [Score("teachers", None, "test", kind, **numbers) for kind in kinds]
        rows += [Score("best teacher", 1, "test", kind, **numbers) for kind in kinds]
        for name, seed, kind in product(recipe.methods, recipe.seeds, kinds):
            own = {**numbers, "nll": 0.2 + 0.01 * seed, "dee": 2.5 - seed}
            rows.append(Score(name, seed, "test", kind, **own, voice=0.062))
        facts = {"recipe": recipe.model_dump(mode="json", exclude_none=True)}
        (tmp_path / "recipe.json").write_text(json.dumps(facts))
        (tmp_path / "scores.csv").write_text(to_csv(rows, Score))
        terminal.console.print(score_table(Run.open(tmp_path)))
        return capsys.readouterr().out

    return print_table


@pytest.mark.parametrize("recipe", ["digits", "students-cifar10"])
def test_the_table_names_every_method_whole_on_a_terminal_of_80_columns(printed_table, recipe):
    printed = printed_table(read_recipe(recipe, ["seeds=[0, 1, 2]"]))
    for part in (
        "4 teachers",
        "best teacher",
        *read_recipe(recipe).methods,
        "91.23",
        "0.210",
        "±0.010",
        "1.50",
        "62 %",
    ):
        assert part in printed


def test_a_table_of_many_methods_with_long_names_has_one_line_for_each(printed_table):
    names = [f"kd-confods-tau-{i}-step-{i}-over-255-of-a-large-grid" for i in range(30)]
    methods = ["methods={scratch={}}", *(f"methods.{name}.perturb=ods" for name in names)]
    recipe = read_recipe("digits", ["seeds=[0, 1, 2]", *methods])
    lines = printed_table(recipe).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line.strip().startswith("kd-confods")]
    assert len(rows) == len({row[0] for row in rows}) == 30
    assert all(row[1:] == ["0.210", "±0.010", "91.23", "0.012", "1.50", "62", "%"] for row in rows)
    assert lines[-1].strip() == "Left out to fit 80 columns: of seeds, Params"


# Faults


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("student.alfa=1", "student has no key 'alfa'; did you mean 'alpha'?"),
        ("members=four", "members must be a valid integer, not 'four'"),
        ("student.alpha=2", "student.alpha must be less than or equal to 1, not 2"),
        ("members=0", "members must be greater than 0, not 0"),
        ("teachers.batch=5000", "a batch of 5000 is larger than the data's 50 training images"),
        ("student.batch=51", "a batch of 51 is larger than the data's 50 training images"),
        ("data.valid=5000", "5000 validation images were asked for"),
        ("data.name=digist", "did you mean 'digits'?"),
        ("members", "a change is key=value"),
    ],
)
@pytest.mark.parametrize("verb", ["study", "show"])
def test_a_bad_recipe_is_one_sentence_and_leaves_no_folder(
    say, settings, refused, tmp_path, verb, override, sentence
):
    where = ["--device", "cpu", "--data", tmp_path / "nowhere"]
    where += [] if verb == "show" else ["--out", "run"]
    refused(say(verb, "digits", *where, *settings, "--set", override), sentence)
    assert [path for path in tmp_path.iterdir() if path.name != ".cache"] == []


def test_a_study_without_its_data_is_refused_but_can_be_shown(say, refused, tmp_path):
    settings = ["--device", "cpu", "--data", tmp_path / "nowhere", "--set", "teachers.network.width=2"]
    missing = say("study", "evidence-2-cifar10", "--out", "run", *settings)
    refused(missing, "cifar10 is not in", "'polyphony data get cifar10'")
    result = say("show", "evidence-2-cifar10", *settings)
    assert result.code == 0, result
    assert "Counted with the official 4,000 training images" in result.err.replace("\n", " ")
    assert [path for path in tmp_path.iterdir() if path.name != ".cache"] == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"members: 4\n", "odd.toml is not TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "odd.toml: the recipe needs the key 'members'"),
        (None, "there is no file 'odd.toml'"),
    ],
    ids=["yaml", "bytes", "empty", "missing"],
)
def test_a_recipe_file_that_is_none_is_one_sentence(say, refused, tmp_path, content, sentence):
    if content is not None:
        (tmp_path / "odd.toml").write_bytes(content)
    refused(say("study", "odd.toml"), sentence)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["study"], "RECIPE"),
        (["studdy", "digits"], "study"),
        (["study", "digits", "--sett", "members=2"], "--set"),
        (["study", "digits", "--set"], "--set"),
        (["study", "digits", "more"], "more"),
        (["study", "digits", "--workers", "two"], "two"),
        (["study", "digits", "--workers", "0"], "workers"),
        (["study", "digits", "--workers", "-1"], "workers"),
        (["study", "digits", "--device", "gpu"], "there is no device 'gpu' here: use cuda, mps, cpu or auto"),
        (["study", "./x.toml"], "there is no file './x.toml'"),
        (["report", "runs/nope"], "runs/nope is not a run folder; 'polyphony study RECIPE' makes one"),
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["predict", "run", "a.png", "--page", "a.png"], "html"),  # which would be replaced
        (["report", "run", "--out", "scores.csv"], "html"),
        (["data", "preview", "mine.npz", "--out", "mine.npz"], "png"),
        (["study", "digits", "--out", ""], "--out needs a value"),  # Path("") would be the current folder
        (["study", "digits", "--data="], "--data= needs a value"),
        (["pack", "run", "kd", "--out", ""], "--out needs a value"),
        (["report", ""], "report needs a value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_that_cannot_be_followed_is_one_line(say, refused, tmp_path, arguments, part):
    started = mock.Mock(side_effect=AssertionError("it was started"))
    patched = [mock.patch(f"polyphony.study.{name}", started) for name in ("run.run_study", "cost.costs")]
    with patched[0], patched[1]:
        refused(say(*arguments), part)
    assert [path for path in tmp_path.iterdir() if path.name != ".cache"] == []


def test_results_cannot_go_where_a_file_is(say, tiny, refused, tmp_path):
    (tmp_path / "taken").write_text("mine")
    refused(say(*tiny("study", "--out", tmp_path / "taken")), "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_disk_that_is_full_is_one_sentence_and_the_same_command_goes_on(
    say, tiny, refused, begun, tmp_path
):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = tiny("teach", "--out", begun, "--set", "teachers.extra=0")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))  # of any file: that of the cache is larger
    try:
        result = say(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    refused(result, begun / "teachers" / "0" / "resume.pt", "cannot be written (File too large): free disk")
    assert [path.name for path in tmp_path.rglob("*.part")] == []
    assert say(*command).code == 0
    assert len(list(begun.rglob("weights.safetensors"))) == 2


def test_a_folder_in_use_is_refused(say, tiny, refused, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with FileLock(folder / ".lock"):
        refused(say(*tiny("study", "--out", folder)), "in use by another process")


@pytest.mark.parametrize("verb", ["study", "teach", "distill", "sweep", "evaluate", "analyse"])
@pytest.mark.parametrize("fault", [ChangedError, FolderError])
def test_only_options_that_a_verb_has_are_advised(say, refused, verb, fault):
    with (
        mock.patch("polyphony.recipe.read_recipe", side_effect=fault("runs/digits cannot be used")),
        mock.patch("polyphony.study.provenance.open_study", side_effect=fault("runs/digits cannot be used")),
    ):
        result = say(verb, "digits")
    refused(result, "runs/digits cannot be used: ")
    assert ("--out" in result.err) == ("--out" in say(verb, "--help").out)
    assert ("polyphony study RECIPE --redo" in result.err) == (
        fault is ChangedError and verb in ("evaluate", "analyse")
    )


def test_a_damaged_run_is_one_sentence(say, refused, tmp_path):
    (tmp_path / "recipe.json").write_text('{"recipe"')
    refused(say("evaluate", tmp_path), "recipe.json is not JSON")
    (tmp_path / "recipe.json").write_text('{"recipe": null}')
    refused(say("evaluate", tmp_path), "recipe.json does not hold a recipe")
    (tmp_path / "recipe.json").write_text('{"recipe": {}}')
    refused(say("evaluate", tmp_path), "recipe.json: the recipe needs the key")


def test_a_training_that_diverges_ends_with_exit_code_1_and_one_sentence(say, tiny, begun):
    result = say(*tiny("teach", "--out", begun, "--set", "teachers.learning_rate=1e30"))
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "step" in result.err
    assert "checkpoint" in result.err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_says_how_to_go_on(say, tiny, begun, sent, code):
    started_with = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
    before = signal.getsignal(sent)
    with mock.patch("polyphony.study.run.run_study", side_effect=lambda *_, **__: signal.raise_signal(sent)):
        result = say(*tiny("study", "--out", begun))
    assert (result.code, result.err) == (code, "polyphony: stopped; run the same command to continue\n")
    assert signal.getsignal(sent) is before
    signal.signal(signal.SIGINT, started_with)


def test_a_batch_larger_than_the_memory_is_refused_before_anything_is_written(say, tiny, refused, tmp_path):
    with mock.patch("polyphony.study.cost.memory", return_value=10**5):
        refused(say(*tiny("study", "--out", tmp_path / "run")), "a step needs at least", "smaller batch")
    assert not (tmp_path / "run").exists()


def test_what_is_too_large_for_this_machine_is_not_refused_on_a_cluster(tiny_digits, tmp_path):
    study = Study(read_recipe("digits", tiny_digits), tmp_path / "run")
    with mock.patch("polyphony.study.cost.memory", return_value=10**5):
        assert expected_costs(study, Cluster("auto", study.folder, Share(1))) == []
        with pytest.raises(TooLargeError):
            expected_costs(study, Here(1))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "Unable to allocate 9 GiB"),
        (
            RuntimeError("x can't allocate memory: you tried to allocate 9 bytes. y"),
            "tried to allocate 9 bytes",
        ),
    ],
)
def test_memory_that_runs_out_is_one_sentence(say, error, fault):
    with mock.patch("polyphony.recipe.read_recipe", side_effect=error):
        result = say("show", "digits")
    message = f"polyphony: there is too little memory ({fault}): take smaller images, batches or networks\n"
    assert (result.code, result.err) == (1, message)


def test_no_sentence_has_more_than_300_characters(say, refused):
    result = say("study", "x" * 5000)
    refused(result, "there is no recipe 'xxx")
    assert len(result.err) == 301  # the last is the line's end


def test_a_fault_of_ours_keeps_its_traceback(say, tiny, begun):
    with (
        mock.patch("polyphony.study.run.run_study", side_effect=RuntimeError("ours")),
        pytest.raises(RuntimeError, match="ours"),
    ):
        say(*tiny("study", "--out", begun))


def test_what_a_person_can_mend_is_a_sentence_whoever_raises_it():
    for error in (ConversionError("no"), AnswerError("no"), SettingError("no"), FileNotFoundError("no")):
        assert exit_code(error) == 2
    for error in (DivergedError("no"), WorkerLostError("no"), MemoryError("no")):
        assert exit_code(error) == 1
    assert exit_code(ValueError("ours")) is None


def test_a_lost_worker_is_one_sentence_that_says_what_to_try(say, tiny, begun):
    lost = WorkerLostError("a worker process ended early (exit codes [-9, None])")
    with mock.patch("polyphony.study.run.run_study", side_effect=lost):
        result = say(*tiny("study", "--out", begun))
    assert result.code == 1
    assert "exit codes [-9, None]): if it ran out of memory, give a smaller number of --workers" in result.err
