from __future__ import annotations

import re
from pathlib import Path

import polyphony
from polyphony import metrics


def test_every_public_name_is_used_outside_of_metrics():
    """By another module of the package: a name for its tests alone is not public."""
    package = Path(polyphony.__file__).parent
    others = [path.read_text() for path in package.rglob("*.py") if path.parent.name != "metrics"]
    used = {name for text in others for name in re.findall(r"\bmetrics\.(\w+)", text)}
    imported = (re.findall(r"from polyphony\.metrics import (.+)", text) for text in others)
    used |= {name for lines in imported for line in lines for name in line.split(", ")}
    assert set(metrics.__all__) <= used
