"""What malloc does with freed memory, counted in page faults of a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
from calibration.profile.machine.allocator import keep_freed_memory, return_free_memory, set_thresholds

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(int(keep_freed_memory()), faults(), faults(), int(return_free_memory()), faults(), faults())
print(int(set_thresholds(2**16, 2**17)), faults(), faults())
"""


def test_kept_memory_faults_once_and_returned_memory_again() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    (kept, first, second, returned, third, fourth), (tight, fifth, sixth) = (
        map(int, line.split()) for line in run.stdout.splitlines()
    )
    if not (kept and returned and tight):
        pytest.skip("this C library has no mallopt")
    assert second * 4 < first
    assert fourth * 4 < third
    assert min(fifth, sixth) > second  # a block with a mapping of its own is returned each time
