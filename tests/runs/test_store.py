from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import safetensors.torch
import torch
from filelock import FileLock

from polyphony._util import files
from polyphony._util.files import WriteError, atomic_path, claim
from polyphony.metrics import DirichletPredictions, Predictions
from polyphony.runs import stage as stage_module
from polyphony.runs.predictions import read_predictions, save_predictions, saved_key
from polyphony.runs.stage import Stage, TrainingFolder, difference, locked
from polyphony.runs.store import (
    ChangedError,
    FileError,
    StaleError,
    StoreError,
    read_json,
    spec_key,
    write_atomically,
)

SPEC = {"schedule": {"epochs": 60, "batch": 50}, "seed": 0}
STATE = {"model": {"w": torch.arange(3.0)}, "log": [{"epoch": 0, "loss": 1.5}, {"epoch": 1, "loss": 0.5}]}
WEIGHTS = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(7)}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "teachers" / "0", SPEC)


def finished(stage: Stage) -> Stage:
    started = stage.start()
    started.save(STATE)
    started.finish(WEIGHTS, {"epochs": 2})
    return stage


def one_sentence(caught: pytest.ExceptionInfo[StoreError], *named: object) -> None:
    text = str(caught.value)
    assert "\n" not in text
    assert all(str(name) in text for name in named), text


# Writes are atomic


class PowerCut(BaseException):
    """Nothing catches this."""


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("no space left"), PowerCut()], ids=repr)
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, fails, error):
    path = tmp_path / "weights"
    write_atomically(path, b"old")
    if fails == "fsync":
        patch = mock.patch("os.fsync", side_effect=error)
    elif fails == "replace":
        patch = mock.patch.object(Path, "replace", side_effect=error)
    else:
        real = Path.open

        def opened(self, *arguments, **named):
            file = mock.MagicMock(wraps=real(self, *arguments, **named))
            file.__enter__.return_value = file
            getattr(file, fails).side_effect = error
            return file

        patch = mock.patch.object(Path, "open", opened)
    with patch, pytest.raises(type(error)):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["weights"]


def test_bytes_are_on_the_disk_before_the_file_has_its_name(tmp_path):
    path, states = tmp_path / "deep" / "er" / "file", []
    fsync = os.fsync

    def synced(descriptor):
        fsync(descriptor)
        states.append((path.exists(), os.fstat(descriptor).st_size))

    with mock.patch("os.fsync", synced):
        write_atomically(path, b"12345")
    assert states == [(False, 5)]
    assert path.read_bytes() == b"12345"


def test_a_failed_checkpoint_leaves_the_previous_one(stage):
    stage.save(STATE)
    with mock.patch("os.fsync", side_effect=PowerCut), pytest.raises(PowerCut):
        stage.save({"model": {"w": torch.zeros(1000)}, "log": []})
    assert torch.equal(stage.load()["model"]["w"], STATE["model"]["w"])


# Keys


def test_a_key_is_the_hash_of_the_canonical_json():
    text = '{"schedule":{"batch":50,"epochs":60},"seed":0}'
    assert spec_key(SPEC) == hashlib.sha256(text.encode()).hexdigest()
    assert spec_key({"seed": 0, "schedule": {"batch": 50, "epochs": 60}}) == spec_key(SPEC)
    assert spec_key({"seed": 1, "schedule": {"batch": 50, "epochs": 60}}) != spec_key(SPEC)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ({"a": {"b": 60}}, {"a": {"b": 40}}, "a.b (60, now 40)"),
        ({"a": 1}, {"a": 1, "z": "x"}, "z (its default, now 'x')"),
        ({"a": 1, "b": 2}, {"a": 1}, "b (2, now its default)"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a ([1, 2], now [1, 3])"),
    ],
)
def test_the_first_different_setting_is_named(old, new, words):
    assert difference(old, new) == words


@pytest.mark.parametrize("make", [finished, lambda stage: stage.start() or stage], ids=["done", "started"])
def test_a_folder_with_another_key_is_rejected_and_unchanged(stage, make):
    make(stage)
    before = {path.name: path.is_file() and path.read_bytes() for path in stage.folder.iterdir()}
    other = Stage(stage.folder, {"schedule": {"epochs": 40, "batch": 50}, "seed": 0})
    assert not other.is_done()
    assert other.difference() == "schedule.epochs (60, now 40)"
    with pytest.raises(ChangedError) as caught:
        other.start()
    one_sentence(caught, stage.folder, "schedule.epochs (60, now 40)")
    assert {path.name: path.is_file() and path.read_bytes() for path in stage.folder.iterdir()} == before


def test_a_result_of_another_spec_can_be_removed(stage):
    finished(stage)
    assert Stage(stage.folder, SPEC).difference() == ""
    other = Stage(stage.folder, {"seed": 1})
    assert other.difference()
    other.remove()
    assert not stage.folder.exists()
    other.start()
    assert not other.is_done()
    assert other.load() is None


def test_is_done_does_not_create_the_folder(stage):
    assert not stage.is_done()
    assert stage.load() is None
    assert stage.difference() == ""
    assert not stage.folder.exists()


def test_an_interrupted_removal_leaves_nothing_to_resume(stage, monkeypatch):
    stage.start().save(STATE)
    monkeypatch.setattr("shutil.rmtree", lambda folder: (folder / "started.json").unlink())
    stage.remove()
    other = Stage(stage.folder, {"seed": 1})
    assert other.difference() == ""
    assert other.load() is None


def test_a_state_without_a_record_is_not_resumed(stage):
    stage.start().save(STATE)
    (stage.folder / "started.json").unlink()
    assert Stage(stage.folder, {"seed": 1}).start().load() is None


# What is written comes back


def test_weights_are_read_back_exactly_and_resume_files_are_gone(stage):
    weights = TrainingFolder(finished(stage).folder).weights()
    assert weights.keys() == WEIGHTS.keys()
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)
    assert sorted(file.name for file in stage.folder.iterdir()) == [
        "done.json",
        "log.jsonl",
        "weights.safetensors",
    ]
    done = TrainingFolder(stage.folder).record()
    assert done["epochs"] == 2
    assert done["spec"] == SPEC
    assert done["weights"] == hashlib.sha256((stage.folder / "weights.safetensors").read_bytes()).hexdigest()


def test_unfinished_files_of_a_killed_process_are_removed_at_the_end(stage):
    stage.start()
    (stage.folder / ".resume.pt.12345.part").write_bytes(b"half")
    assert sorted(path.name for path in finished(stage).folder.iterdir()) == [
        "done.json",
        "log.jsonl",
        "weights.safetensors",
    ]


def test_only_the_later_of_two_attempts_can_write(stage):
    first = stage.start()
    first.save(STATE)
    second = stage.start()
    for write in (lambda: first.save({"log": []}), lambda: first.finish({"w": torch.zeros(9)}, {})):
        with pytest.raises(StaleError) as caught:
            write()
        one_sentence(caught, stage.folder, "a later attempt")
    assert torch.equal(second.load()["model"]["w"], STATE["model"]["w"])
    second.finish(WEIGHTS, {})
    assert stage.start() is None
    assert TrainingFolder(stage.folder).weights().keys() == WEIGHTS.keys()
    assert sorted(path.name for path in stage.folder.iterdir()) == [
        "done.json",
        "log.jsonl",
        "weights.safetensors",
    ]


def test_a_run_inside_the_folder_of_another_keeps_its_attempts(tmp_path):
    outer, inner = tmp_path / "runs", tmp_path / "runs" / "inner"
    with locked(inner):
        attempt = Stage(inner / "teachers" / "0", {}).start()
        with locked(outer):
            attempt.save(STATE)


def test_an_attempt_that_was_paused_during_a_write_changes_nothing(stage):
    late = atomic_path(stage.folder / "weights.safetensors", stage.start().attempt)
    late.__enter__().write_bytes(b"of the first")
    finished(stage)
    with pytest.raises(WriteError):
        late.__exit__(None, None, None)
    assert TrainingFolder(stage.folder).weights().keys() == WEIGHTS.keys()


def test_one_of_several_simultaneous_attempts_can_write(stage):
    with ThreadPoolExecutor(8) as pool:
        attempts = [claimed.result() for claimed in [pool.submit(can_start, stage) for _ in range(40)]]
    writing = [attempt for attempt in attempts if attempt is not None and can_write(attempt)]
    assert len(writing) == 1
    assert [path for path in stage.folder.iterdir() if path.is_dir()] == [writing[0].attempt]


def test_an_attempt_creates_its_folder_before_it_removes_others(tmp_path, monkeypatch):
    """Of two that claim at once, one would otherwise not see the other: both could write."""
    claim(tmp_path)
    claimed, remove = [], files.remove

    def remove_late(folder: Path) -> None:
        monkeypatch.setattr(files, "remove", remove)
        claimed.append(claim(tmp_path))  # of another process, while this one removes folders
        remove(folder)

    monkeypatch.setattr(files, "remove", remove_late)
    mine = claim(tmp_path)
    assert sorted(tmp_path.iterdir()) == claimed
    assert not mine.exists()


def test_a_result_that_comes_while_a_folder_is_claimed_is_kept(stage, monkeypatch):
    earlier, claim = stage.start(), stage_module.claim

    def claim_late(folder: Path) -> Path:
        earlier.finish(WEIGHTS, {"epochs": 7})
        return claim(folder)

    monkeypatch.setattr(stage_module, "claim", claim_late)
    assert stage.start() is None
    assert TrainingFolder(stage.folder).record()["epochs"] == 7
    assert sorted(path.name for path in stage.folder.iterdir()) == ["done.json", "weights.safetensors"]


def test_an_attempt_whose_folder_is_being_removed_is_stale(stage, monkeypatch):
    attempt = stage.start()

    def write(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "its files go first")

    monkeypatch.setattr("polyphony.runs.stage.write_atomically", write)
    with pytest.raises(StaleError):
        attempt.save(STATE)


def can_start(stage: Stage) -> Stage | None:
    """The stage of a new attempt, unless a later one was faster."""
    try:
        return stage.start()
    except StaleError:
        return None


def can_write(stage: Stage) -> bool:
    """Whether an attempt still has its folder."""
    try:
        stage.save(STATE)
    except StaleError:
        return False
    return True


def test_equal_weights_make_equal_files(tmp_path):
    files = [finished(Stage(tmp_path / name, SPEC)).folder / "weights.safetensors" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_weights_in_any_memory_layout_can_be_saved(stage):
    stage.start()
    wild = {
        "channels_last": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "transposed": torch.rand(3, 2).T,
        "empty": torch.zeros(0),
    }
    wild["tied"] = wild["transposed"]
    stage.finish(wild, {})
    weights = TrainingFolder(stage.folder).weights()
    assert all(torch.equal(weights[name], wild[name]) for name in wild)


def test_weights_that_share_memory_are_all_saved(stage):
    weight = torch.rand(3, 4)
    stage.start()
    shared = {"backbone.0.weight": weight, "features.0.weight": weight, "part": weight[1:]}
    stage.finish(shared, {})
    assert all(
        torch.equal(value, shared[name]) for name, value in TrainingFolder(stage.folder).weights().items()
    )
    assert TrainingFolder(stage.folder).weights().keys() == shared.keys()


def test_the_log_is_one_json_object_a_line(stage):
    stage.save(STATE)
    lines = (stage.folder / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == STATE["log"]


def test_a_stage_killed_before_done_json_can_be_finished_again(stage):
    stage.start()
    stage.save(STATE)
    with (
        mock.patch("polyphony.runs.stage.as_json", side_effect=PowerCut),
        pytest.raises(PowerCut),
    ):
        stage.finish(WEIGHTS, {})
    assert not stage.is_done()
    assert stage.load()["log"] == STATE["log"]
    stage.finish(WEIGHTS, {})
    assert stage.is_done()


def test_predictions_are_read_back_with_their_key(tmp_path):
    path = tmp_path / "teachers" / "test.safetensors"
    logits = torch.randn(3, 4, 5).transpose(0, 1)
    assert saved_key(path) is None
    save_predictions(path, Predictions(logits, torch.arange(3)), "k")
    assert saved_key(path) == "k"
    predictions = read_predictions(path)
    assert torch.equal(predictions.logits, logits)
    assert torch.equal(predictions.labels, torch.arange(3))


@pytest.mark.parametrize("kind", [Predictions, DirichletPredictions])
def test_saved_predictions_keep_their_kind(tmp_path, kind):
    path = tmp_path / "test.safetensors"
    save_predictions(path, kind(torch.randn(1, 3, 4), torch.arange(3)), "k")
    assert type(read_predictions(path)) is kind


def test_predictions_without_a_kind_are_plain_members(tmp_path):
    path = tmp_path / "test.safetensors"
    safetensors.torch.save_file({"logits": torch.randn(1, 3, 4), "labels": torch.arange(3)}, path)
    assert type(read_predictions(path)) is Predictions
    assert saved_key(path) is None


def test_predictions_of_an_unknown_kind_are_one_sentence(tmp_path):
    path = tmp_path / "test.safetensors"
    tensors = {"logits": torch.randn(1, 3, 4), "labels": torch.arange(3)}
    safetensors.torch.save_file(tensors, path, metadata={"logits": "logistic normal"})
    with pytest.raises(FileError) as caught:
        read_predictions(path)
    one_sentence(caught, path, "'logistic normal'")


# Damage


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "noise": lambda data: bytes(range(256)) * 8,
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "text": lambda data: b"hello\nworld\n",
}


def damage(path: Path, kind: str) -> None:
    path.write_bytes(DAMAGE[kind](path.read_bytes()))


@pytest.mark.parametrize("kind", ["empty", "cut", "noise", "text"])
def test_a_damaged_checkpoint_is_one_sentence(stage, kind):
    stage.save(STATE)
    damage(stage.folder / "resume.pt", kind)
    with pytest.raises(StoreError) as caught:
        stage.load()
    one_sentence(caught, stage.folder / "resume.pt", "delete")


@pytest.mark.parametrize("content", [[1, 2], {"model": {}}, torch.zeros(2), "text"], ids=repr)
def test_a_checkpoint_of_something_else_is_one_sentence(stage, content):
    stage.save(STATE)
    torch.save(content, stage.folder / "resume.pt")
    with pytest.raises(StoreError) as caught:
        stage.load()
    one_sentence(caught, stage.folder / "resume.pt", "delete")


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("writer", ["pickle", "torch"])
def test_a_hostile_checkpoint_is_refused_and_never_executed(stage, tmp_path, writer):
    victim = tmp_path / "executed"
    stage.save(STATE)
    path = stage.folder / "resume.pt"
    if writer == "pickle":
        path.write_bytes(pickle.dumps({"model": Hostile(victim)}))
    else:
        torch.save({"model": Hostile(victim)}, path)
    with pytest.raises(StoreError) as caught:
        stage.load()
    one_sentence(caught, path)
    assert not victim.exists()
    if writer == "pickle":  # the file does do harm where it is trusted
        pickle.loads(path.read_bytes())
        assert victim.exists()


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_weights_are_one_sentence(stage, kind):
    finished(stage)
    damage(stage.folder / "weights.safetensors", kind)
    with pytest.raises(StoreError) as caught:
        TrainingFolder(stage.folder).weights()
    one_sentence(caught, stage.folder / "weights.safetensors", "delete")


def test_missing_weights_are_one_sentence(stage):
    finished(stage)
    (stage.folder / "weights.safetensors").unlink()
    with pytest.raises(StoreError) as caught:
        TrainingFolder(stage.folder).weights()
    one_sentence(caught, stage.folder / "weights.safetensors")


@pytest.mark.parametrize("kind", ["empty", "cut", "noise", "text"])
def test_damaged_predictions_are_one_sentence(tmp_path, kind):
    path = tmp_path / "test.safetensors"
    save_predictions(path, Predictions(torch.randn(2, 3, 4), torch.arange(3)), "k")
    damage(path, kind)
    with pytest.raises(StoreError) as caught:
        read_predictions(path)
    one_sentence(caught, path, "damaged")


@pytest.mark.parametrize("kind", ["empty", "cut", "noise", "text"])
@pytest.mark.parametrize("name", ["done.json", "started.json"])
def test_damaged_records_are_one_sentence(stage, name, kind):
    stage.start() if name == "started.json" else finished(stage)
    damage(stage.folder / name, kind)
    for attempt in (stage.is_done, stage.difference):
        with pytest.raises(StoreError) as caught:
            attempt()
        one_sentence(caught, stage.folder / name)


@pytest.mark.parametrize("record", [{}, {"key": 3}, {"spec": {}}, [], 3, None], ids=repr)
def test_a_record_without_required_keys_is_one_sentence(stage, record):
    finished(stage)
    (stage.folder / "done.json").write_text(json.dumps(record))
    trained = TrainingFolder(stage.folder)
    for attempt in (stage.is_done, stage.difference, trained.weights, trained.record):
        with pytest.raises(StoreError) as caught:
            attempt()
        one_sentence(caught, stage.folder / "done.json")


def test_missing_json_is_one_sentence(tmp_path):
    with pytest.raises(StoreError) as caught:
        read_json(tmp_path / "recipe.json")
    one_sentence(caught, tmp_path / "recipe.json", "check that it is there")


@pytest.mark.parametrize("text", ["{", "[]", "\xff", 100_000 * "["], ids=["cut", "list", "bytes", "deep"])
def test_json_that_cannot_be_used_is_one_sentence_with_a_way_out(tmp_path, text):
    path = tmp_path / "recipe.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(StoreError) as caught:
        read_json(path)
    one_sentence(caught, path, "delete it")


def test_a_file_error_can_be_pickled():
    error = FileError(Path("run/scores.csv"), "is not there")
    error.add_note("where it was raised")
    sent = pickle.loads(pickle.dumps(error))
    assert (type(sent), str(sent), sent.path) == (FileError, "run/scores.csv is not there", error.path)
    assert sent.__notes__ == error.__notes__


# The lock


def test_a_locked_folder_is_rejected_until_it_is_released(tmp_path):
    folder = tmp_path / "run"
    with locked(folder), pytest.raises(StoreError) as caught, locked(folder):
        pass
    one_sentence(caught, folder, "in use")
    with locked(folder):
        pass


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path, below):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(StoreError) as caught, locked(tmp_path / "taken" / below):
        pass
    one_sentence(caught, tmp_path / "taken", "cannot be written")


def test_a_lock_is_released_when_the_work_fails(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    FileLock(tmp_path / ".lock", timeout=0).acquire().lock.release()


def test_leftovers_of_killed_processes_are_removed_and_files_in_use_stay(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead, living, foreign = (
        tmp_path / "deep" / name
        for name in (f".scores.csv.{ended.pid}.part", f".page.html.{os.getpid()}.part", ".notes.txt.part")
    )
    dead.parent.mkdir()
    for path in (dead, living, foreign):
        path.write_text("half")
    with locked(tmp_path):
        assert not dead.exists()
        assert living.exists()
        assert foreign.exists()


def test_resume_files_beside_a_result_are_removed(stage, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Stage, "clean", lambda stage: None)
        finished(stage)
    assert (stage.folder / "resume.pt").exists()
    with locked(stage.folder.parents[1]):
        assert stage.is_done()
    assert sorted(path.name for path in stage.folder.iterdir()) == [
        "done.json",
        "log.jsonl",
        "weights.safetensors",
    ]


@pytest.mark.parametrize("written", [0, 1], ids=["before the first file", "between the two"])
def test_an_interrupted_save_leaves_no_state_without_its_log(tmp_path, monkeypatch, written):
    """A training that was killed then has nothing left to do in its last epoch, and would not log it."""
    stage, log = Stage(tmp_path, SPEC), [{"epoch": 0}, {"epoch": 1}]
    stage.save({"log": log[:1]})
    allowed = iter(range(written))
    real = stage_module.write_atomically

    def write_atomically(path, data, attempt):
        if next(allowed, None) is None:
            raise KeyboardInterrupt
        real(path, data, attempt)

    monkeypatch.setattr(stage_module, "write_atomically", write_atomically)
    with pytest.raises(KeyboardInterrupt):
        stage.save({"log": log})
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert stage.load()["log"] == [json.loads(line) for line in lines][:1]
    assert len(lines) == 1 + written
