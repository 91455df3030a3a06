"""The wheel, installed in an environment of its own, runs the demo in an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = (
    "members=2",
    "data.limit=100",
    "data.test=60",
    "teachers.network.width=2",
    "teachers.epochs=1",
    "student.epochs=1",
    "seeds=[0]",
)


@pytest.mark.slow
def test_an_installed_wheel_runs_the_demo(tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("polyphony_distill-*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # PyTorch is not installed again
    assert site == Path(run(python, "-c", "import polyphony; print(polyphony.__file__)").strip()).parents[1]

    settings = [word for override in TINY for word in ("--set", override)]
    run(python.with_name("polyphony"), "study", "demo", *settings)
    assert (folder / "runs" / "demo" / "report.html").is_file()
