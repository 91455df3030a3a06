"""The nodes of a Ray cluster, and whether each has what jobs need."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polyphony._util.text import UserError, first_line

CHECK_SECONDS = 600.0  # for every node to answer


class ClusterError(UserError, RuntimeError):
    """A cluster cannot be used; the message says why."""


def nodes() -> list[dict[str, Any]]:
    """The nodes that are alive and have a CPU for tasks."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def on_node(identity: str) -> dict[str, Any]:
    """Ray's option that binds a task or actor to a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(identity, soft=False)}


def check_nodes(ray: Any, folder: Path) -> None:
    """Raise a ClusterError unless every node sees the folder and has the same versions as this process."""
    token = folder.resolve() / f".token-{secrets.token_hex(8)}"
    look, alive = looker(), nodes()
    token.touch()
    task = ray.remote(num_cpus=0, max_retries=0)(look)
    try:
        here = look(str(token))
        tasks = [task.options(**on_node(node["NodeID"])).remote(str(token)) for node in alive]
        answers = ray.get(tasks, timeout=CHECK_SECONDS)
    except ray.exceptions.RayError as error:
        raise ClusterError(f"a node of the cluster does not answer ({first_line(error)})") from error
    finally:
        token.unlink()
    for node, there in zip(alive, answers, strict=True):
        compare(node["NodeManagerHostname"], here, there, folder)


def compare(node: str, here: Mapping[str, str], there: Mapping[str, str], folder: Path) -> None:
    """Raise a ClusterError for the first difference between a node and this process."""
    for name, ours in here.items():
        if there[name] != ours and name == "folder":
            raise ClusterError(
                f"node {node} does not see {folder}: results need a folder that all nodes share"
            )
        if there[name] != ours:
            raise ClusterError(
                f"node {node} has {name} {there[name]}, and here is {ours}: they must be the same"
            )


def looker() -> Callable[[str], dict[str, str]]:
    """A function that describes a node. Ray sends its code, so that the node needs no Polyphony."""

    def look(token: str) -> dict[str, str]:
        import hashlib
        import importlib.util
        import pathlib
        import platform

        import ray

        ours, spec = "missing", importlib.util.find_spec("polyphony")
        for folder in (spec and spec.submodule_search_locations) or ():
            sources = [path.read_bytes() for path in sorted(pathlib.Path(folder).rglob("*.py"))]
            digest = hashlib.sha256(b"".join(sources)).hexdigest()
            ours = f"{importlib.import_module('polyphony').__version__} ({digest[:8]})"
        sees = str(pathlib.Path(token).exists())
        return {
            "folder": sees,
            "Polyphony": ours,
            "Python": platform.python_version(),
            "Ray": ray.__version__,
        }

    return look
