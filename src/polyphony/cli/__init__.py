"""The command-line program. PyTorch is imported when work starts, so that --help answers at once."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise

from cyclopts import CycloptsError, MissingArgumentError

from polyphony._util.files import Terminated, WriteError, out_of_memory, terminable
from polyphony._util.text import UserError, first_line
from polyphony.cli.advice import advice, missing_data
from polyphony.cli.app import app
from polyphony.cli.options import UsageError
from polyphony.cli.terminal import complain

WITH_REDO = ("study", "teach", "distill", "sweep")  # the verbs that take --out and --redo
ARGUMENT_ERRORS = CycloptsError | UsageError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. An expected error prints one sentence; a bug is raised."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        refuse_empty(words)
        run(words)
    except KeyboardInterrupt as stop:
        complain("stopped; run the same command to continue")
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        if "--debug" in words:
            traceback.print_exc()
        verb = next((word for word in words if not word.startswith("-")), "")
        complain(error_message(error, verb))
        sys.exit(code)


def refuse_empty(words: Sequence[str]) -> None:
    """Raise a UsageError for an empty argument: Path("") would mean the current folder."""
    for before, word in pairwise(["polyphony", *words]):
        if not word or re.fullmatch("--[a-z-]+=", word):
            raise UsageError(f"{word or before} needs a value")


def run(arguments: Sequence[str]) -> None:
    """Run the command in this process; under torchrun, in the first of its processes."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from polyphony.execute.ranks import run_together

        run_together(lambda: call(arguments))  # torchrun handles SIGTERM itself
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of torch.distributed would abort the process while Python shuts down
    else:
        with terminable():
            call(arguments)


def call(arguments: Sequence[str]) -> None:
    """Run the command, and report errors from the user's own code as one sentence."""
    try:
        app.meta(arguments)
    except (Exception, SystemExit):
        if "polyphony.recipe" not in sys.modules:  # no user code has run
            raise
        from polyphony.recipe import report_user_errors

        with report_user_errors():
            raise


def error_message(error: Exception, verb: str) -> str:
    """The error as one sentence. The library says what is wrong; this function adds what to type."""
    if isinstance(error, MissingArgumentError) and error.argument and error.keyword is None:
        command = " ".join(["polyphony", *(error.command_chain or ())])
        return f"{command} needs {error.argument.name}: see '{command} --help'"
    if isinstance(error, ARGUMENT_ERRORS):  # before PyTorch is imported
        return str(error)
    from polyphony.data import MissingDataError
    from polyphony.execute.processes import WorkerLostError
    from polyphony.runs.store import ChangedError, CodeError, FileError, FolderError
    from polyphony.serve.int8 import WorseError

    replace = "give --out another folder, or --redo to replace it"
    undo = "undo that, or replace it by 'polyphony study RECIPE --redo'"
    what_to_type: dict[type[Exception], str] = {
        ChangedError: replace if verb in WITH_REDO else undo,
        CodeError: "give --code if you trust it",
        FolderError: "give --out another folder" if verb in WITH_REDO else "try again when it can be used",
        WorseError: "give --allow a larger number to write it all the same",
        WorkerLostError: "if it ran out of memory, give a smaller number of --workers",
        WriteError: "free disk space or choose a writable folder, then run the same command to continue",
    }
    if type(error) in what_to_type:
        return f"{error}: {what_to_type[type(error)]}"
    if isinstance(error, MissingDataError):
        return missing_data(error)
    if out_of_memory(error):
        request = re.search(r"tried to allocate [\d.]+ \w+", str(error), re.IGNORECASE)
        reason = request[0] if request else first_line(error)
        return f"there is too little memory ({reason}): take smaller images, batches or networks"
    if isinstance(error, OSError):
        where = error.filename or "the system says"
        return f"{where}: {error.strerror or error}; check the path and the disk"
    if isinstance(error, FileError):
        return f"{error}: {advice(error.path)}"
    return str(error)


def exit_code(error: Exception) -> int | None:
    """2 for an error that the user can fix, 1 for a training that failed, None for a bug."""
    if isinstance(error, ARGUMENT_ERRORS | UserError | OSError):
        return 2
    from polyphony.compute.parallel import GroupError
    from polyphony.execute.runner import JobError
    from polyphony.training.tally import DivergedError

    failed = isinstance(error, DivergedError | GroupError | JobError) or out_of_memory(error)
    return 1 if failed else None
