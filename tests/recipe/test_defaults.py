"""A default is no part of a stage's key: one that changes makes other trainings of the same key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from polyphony._util.settings import Settings as Table
from polyphony._util.settings import as_spec
from polyphony.study.plan import FORMAT

KEPT = Path(__file__).parent / "defaults.json"  # written once for each FORMAT, by `written`


def tables(kind: type[Table] = Table) -> Iterator[type[Table]]:
    """Every table of the package."""
    for each in kind.__subclasses__():
        if each.__module__.startswith("polyphony."):
            yield each
            yield from tables(each)


def defaults() -> dict[str, object]:
    """Table and key → the key's default, of all keys that have one."""
    return {
        f"{table.__name__}.{name}": as_spec(field.get_default(call_default_factory=True))
        for table in tables()
        for name, field in table.model_fields.items()
        if not field.is_required()
    }


def written() -> str:
    """The file of today's defaults."""
    return json.dumps({"format": FORMAT, "defaults": defaults()}, indent=1, sort_keys=True) + "\n"


def test_defaults_change_only_with_the_format():
    stored, today = json.loads(KEPT.read_text()), json.loads(written())
    assert stored["format"] == FORMAT, "the format was raised: write the file again"
    assert stored["defaults"]
    changed = [key for key, value in stored["defaults"].items() if today["defaults"].get(key, value) != value]
    assert not changed, "raise FORMAT in study/plan.py, and write the file again"
