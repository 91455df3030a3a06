"""The arguments and options that verbs have in common, and the device and runner that they choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from polyphony._util.files import cores

if TYPE_CHECKING:
    from polyphony.execute.cluster import Share
    from polyphony.execute.runner import Runner
    from polyphony.study.study import Study


class UsageError(ValueError):
    """Raised for arguments that are invalid or contradict each other."""


def flag(help: str, name: str | None = None) -> Parameter:  # noqa: A002 (the name in cyclopts)
    """An option without a value."""
    return Parameter(name=name, negative="", show_default=False, help=help)


def repeatable(what: str) -> Parameter:
    """An option that takes one name and can be repeated."""
    return Parameter(negative="", show_default=False, metavar="NAME", help=f"{what} Repeatable.")


def file_option(ext: str, help: str) -> Parameter:  # noqa: A002 (the name in cyclopts)
    """An option that names a file to write with this extension."""
    return Parameter(validator=validators.Path(ext=ext), help=help)


def output(help: str) -> Parameter:  # noqa: A002 (the name in cyclopts)
    """The option that names the file or folder to write."""
    return Parameter(name=("--out", "--to"), help=help)


RecipeName = Annotated[
    str, Parameter(help="A TOML file, or the name of a shipped recipe (see polyphony recipes).")
]
RunFolder = Annotated[Path, Parameter(name="RUN", help="Folder of a run, for example runs/digits.")]
DataRoot = Annotated[
    Path | None,
    Parameter(
        name="--data",
        help="Folder of the data sets (default: $POLYPHONY_DATA, or the user's data folder).",
    ),
]
Method = Annotated[str | None, Parameter(help="Method of the student (default: best on validation images).")]
Seed = Annotated[int | None, Parameter(help="Seed of the student (default: best on validation images).")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        metavar="KEY=VALUE",
        show_default=False,
        help="Change one key of the recipe, for example student.alpha=0.5. Repeatable.",
    ),
]
Device = Annotated[str, Parameter(help="cuda, mps, cpu or auto (the best available).")]
AtLeastOne = validators.Number(gte=1)


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Where the jobs of a command run. The text below an option is its help."""

    device: Device = "auto"
    workers: Annotated[int | None, Parameter(validator=AtLeastOne)] = None
    """Number of jobs at a time (default: as many as fit the cores or GPUs)."""
    cluster: Annotated[str | None, Parameter(metavar="ADDRESS")] = None
    """Run jobs on a Ray cluster: auto, local or HOST:PORT of a node."""
    gpus_per_job: Annotated[float | None, Parameter(validator=validators.Number(gt=0))] = None
    """GPUs of one job (default: 1 on cuda). With 0.5, two jobs share a GPU; 2 or more need --cluster."""
    processes_per_job: Annotated[int | None, Parameter(validator=AtLeastOne)] = None
    """Processes of one training on a cluster (default: one for each of its GPUs)."""
    memory_per_job: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 2.0
    """GiB of memory that a job needs on a cluster."""


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """Options of the verbs that run a recipe."""

    out: Path | None = None
    """Output folder (default: runs/RECIPE)."""
    overrides: Overrides = ()
    data: DataRoot = None
    where: Where = Where()
    redo: Annotated[bool, flag("Replace results that were made with another recipe.")] = False
    dry_run: Annotated[bool, flag("Show what would be done, and write nothing.")] = False
    tensorboard: Annotated[bool, flag("Also write the training logs for TensorBoard.")] = False


def find_device(device: str) -> str:
    """The device that `--device` means; raises a UsageError if this machine does not have it."""
    from polyphony.compute.devices import choose_device

    try:
        return choose_device(device)
    except ValueError as error:
        raise UsageError(f"{error}; leave out --device to take the best available one") from error


def device_for_jobs(where: Where) -> str:
    """The device for jobs. With --cluster, this machine need not have the device."""
    return where.device if where.cluster and where.device != "auto" else find_device(where.device)


def runner(study: Study, where: Where) -> Runner:
    """The runner that the options describe; raises a UsageError if they contradict each other."""
    from polyphony.compute.parallel import group_from_environment
    from polyphony.execute.cluster import Cluster
    from polyphony.execute.processes import Processes, default_workers, visible_gpus
    from polyphony.execute.ranks import Together
    from polyphony.execute.runner import Here

    group, on_cpu = group_from_environment(), study.device == "cpu"
    if where.cluster:
        if group.size > 1 or where.workers:
            raise UsageError("--cluster starts the jobs: leave out --workers and torchrun")
        return Cluster(where.cluster, study.folder, share(study, where), study.device)
    if processes(where) > 1:
        raise UsageError(
            "a training in several processes needs --cluster, or"
            f" torchrun --nproc-per-node {processes(where)} -m polyphony"
        )
    if group.size > 1:
        return Together(study.threads(), group=group)
    at_once = where.workers or default_workers(study.device, study.threads(), where.gpus_per_job or 1.0)
    if at_once == 1:
        return Here(study.threads())
    threads = max(1, cores() // at_once)
    if on_cpu:
        threads = study.recipe.threads or min(threads, study.threads())
    return Processes(at_once, threads, visible_gpus(study.device))


def share(study: Study, where: Where) -> Share:
    """What a job needs of a cluster node; on GPUs, each of its processes has its own GPU."""
    from polyphony.execute.cluster import Share

    count, on_cpu = processes(where), study.device == "cpu"
    gpus = where.gpus_per_job or (0.0 if on_cpu else float(count))
    return Share(count * (study.threads() if on_cpu else 1), gpus, where.memory_per_job, count)


def processes(where: Where) -> int:
    """The number of processes of one training; raises a UsageError if the options contradict each other."""
    gpus = where.gpus_per_job or 1.0
    if gpus > 1 and not gpus.is_integer():
        raise UsageError(f"--gpus-per-job {gpus:g}: give a fraction below 1, or an integer")
    if where.gpus_per_job and where.processes_per_job and where.processes_per_job != max(1, gpus):
        raise UsageError("every process uses one GPU: leave out --processes-per-job or --gpus-per-job")
    return where.processes_per_job or max(1, int(gpus))
