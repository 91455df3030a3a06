from __future__ import annotations

import pytest
import torch

import device as simulated
from polyphony.study import check


def test_the_cpu_passes_and_the_command_says_so(say, monkeypatch):
    monkeypatch.delitem(check.CHECKS, "speed")
    said = say("check", "--device", "cpu")
    assert said.code == 0, said
    assert "cpu computes what it should" in said.out
    assert said.out.count("passed") == len(check.CHECKS)


@pytest.mark.parametrize("name", ["members", "ODS direction", "a step's gradients", "resume"])
def test_another_device_passes(name):
    simulated.reset()
    measured, allowed, passed = check.CHECKS[name]("sim")
    assert passed, (measured, allowed)


def test_a_device_that_computes_something_else_fails(say, monkeypatch):
    real = check.gradients
    monkeypatch.setattr(
        check, "CHECKS", {"a step's gradients": check.check_step, "broken": lambda device: 1 / 0}
    )
    wrong = {torch.float32: 1.01, torch.float64: 1.0}
    monkeypatch.setattr(check, "gradients", lambda device, dtype: wrong[dtype] * real(device, dtype))
    said = say("check", "--device", "cpu")
    assert said.code == 1
    assert said.out.count("FAILED") == 2
    assert "did not pass: a step's gradients, broken" in said.err
