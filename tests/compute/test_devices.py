"""The memory that a process keeps for its next tensors."""

import ctypes
import subprocess
import sys

import pytest

ALLOCATE = """
import resource, sys, torch
from polyphony.compute.devices import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def page_faults(times):
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

page_faults(30)
print(page_faults(10))
"""


def page_faults(choice: str) -> int:
    command = [sys.executable, "-c", ALLOCATE, choice]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has mallopt"
)
def test_kept_memory_saves_page_faults():
    assert page_faults("keep") < page_faults("return") / 10
