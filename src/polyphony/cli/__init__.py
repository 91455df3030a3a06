"""The command-line program. PyTorch is imported when work starts, so that --help answers at once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise

from cyclopts import App, CycloptsError, MissingArgumentError

from polyphony._util.files import Terminated, WriteError, out_of_memory, terminable
from polyphony._util.limits import SettingError
from polyphony._util.text import UserError, first_line
from polyphony.cli import analyse, check, data, export, init, predict, report, status, study, sweep
from polyphony.cli.advice import advice, missing_data
from polyphony.cli.terminal import complain
from polyphony.cli.where import UsageError

MAKING = ("study", "teach", "distill", "sweep")  # the verbs that take --out and --redo
MISUSED = CycloptsError | UsageError  # a command that cannot be followed

app = App(
    name="polyphony",
    help="Distil a deep ensemble into one network that keeps the ensemble's diversity.",
    version_flags=["--version"],
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
for verb in (
    study.study,
    study.teach,
    study.distill,
    study.evaluate,
    study.show,
    init.init,
    sweep.sweep,
    analyse.analyse,
    report.report,
    status.status,
    check.check,
    predict.predict,
    export.export,
    export.pack,
):
    app.command(verb)
app.command(data.app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; a foreseeable failure is one sentence and exit code 2 (1 for a training that failed)."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        refuse_empty(words)
        run(words)
    except KeyboardInterrupt as stop:
        complain("stopped; the same command goes on where it was")
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        complain(sentence(error, next(iter(words), "")))
        sys.exit(code)


def refuse_empty(words: Sequence[str]) -> None:
    """UsageError for an empty argument, by which nobody means the current folder that it is as a path."""
    for before, word in pairwise(["polyphony", *words]):
        if not word or re.fullmatch("--[a-z-]+=", word):
            raise UsageError(f"what is given after {word or before} is empty: give a value, or leave it out")


def run(arguments: Sequence[str]) -> None:
    """The command, in this process; where torchrun has started several, in the first of them."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from polyphony.study import run_together

        run_together(lambda: call(arguments))  # which torchrun ends by SIGTERM, and at once
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # torch.distributed's threads abort a process in which Python is taken down around them
    else:
        with terminable():
            call(arguments)


def call(arguments: Sequence[str]) -> None:
    """The command; what code that a recipe names raises, or exits by, is one sentence."""
    try:
        app(arguments)
    except (Exception, SystemExit):
        if "polyphony.recipe" not in sys.modules:  # no recipe was read
            raise
        from polyphony.recipe import own_faults_named

        with own_faults_named():
            raise


def sentence(error: Exception, verb: str) -> str:
    """What is wrong with the command of a verb, and what to type where the library cannot know it."""
    if isinstance(error, MissingArgumentError) and error.argument and error.keyword is None:
        command = " ".join(["polyphony", *(error.command_chain or ())])
        return f"{command} needs {error.argument.name}, which {command} --help explains"
    if isinstance(error, MISUSED):  # for which nobody need wait for PyTorch
        return str(error)
    from polyphony.data import MissingDataError
    from polyphony.runs.store import ChangedError, CodeError, FileError, FolderError
    from polyphony.study.processes import WorkerLostError

    replace = "give --out another folder, or --redo to replace it"
    undo = "undo that, or replace it by 'polyphony study RECIPE --redo'"
    what_to_type: dict[type[Exception], str] = {
        ChangedError: replace if verb in MAKING else undo,
        CodeError: "give --code if you trust it",
        FolderError: "give --out another folder" if verb in MAKING else "try again when it can be used",
        WorkerLostError: "if it ran out of memory, give a smaller number of --workers",
    }
    if type(error) in what_to_type:
        return f"{error}: {what_to_type[type(error)]}"
    if isinstance(error, MissingDataError):
        return missing_data(error)
    if out_of_memory(error):
        asked = re.search(r"tried to allocate [\d.]+ \w+", str(error), re.IGNORECASE)
        said = asked[0] if asked else first_line(error)
        return f"there is too little memory ({said}): take smaller images, batches or networks"
    if isinstance(error, WriteError):
        return f"{error}: make room, or name a place that can be written; the same command goes on"
    if isinstance(error, OSError):
        return (
            f"{error.filename or 'the system says'}: {error.strerror or error}; check the path and the disk"
        )
    return f"{error}: {advice(error.path)}" if isinstance(error, FileError) else str(error)


def exit_code(error: Exception) -> int | None:
    """2 for what the user can mend, 1 for a training that failed, nothing for a fault of ours."""
    if isinstance(error, MISUSED | UserError | SettingError | OSError):
        return 2
    from polyphony.compute.parallel import GroupError
    from polyphony.study import JobError
    from polyphony.training.tally import DivergedError

    failed = isinstance(error, DivergedError | GroupError | JobError) or out_of_memory(error)
    return 1 if failed else None
