"""The programs of docs/own.md on the way out run as they stand, but for the names of files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

PAGE = Path(__file__).parents[2] / "docs" / "own.md"


def test_the_programs_on_the_way_out_run(say, run, images, tmp_path):
    out = PAGE.read_text(encoding="utf-8").partition("\n## Out\n")[2]
    commands = re.search(r"```\n(.*?)```", out, re.DOTALL)[1]
    programs = re.findall(r"```python\n(.*?)```", out, re.DOTALL)
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(("a.jpg", "b.png", "photos/c.png")):
        Image.fromarray(images.images[number, 0].numpy()).save(tmp_path / name)
    names = {"runs/mine": str(run), "ods-3": "single"}
    for line in commands.splitlines():
        words = [names.get(word, word) for word in line.split()[1:]]
        assert say(*words).code == 0, line
    assert {"uncertain.html", "student.onnx", "my-student"} <= {path.name for path in tmp_path.iterdir()}
    predictions = []
    for program in programs:
        for name, here in names.items():
            program = program.replace(name, here)
        namespace: dict[str, object] = {}
        exec(program, namespace)
        predictions.append(
            namespace["answers"].probabilities if "answers" in namespace else namespace["probabilities"]
        )
    in_python, by_onnxruntime = predictions
    assert in_python.shape == (2, 10)
    np.testing.assert_allclose(by_onnxruntime, in_python, atol=1e-5)
