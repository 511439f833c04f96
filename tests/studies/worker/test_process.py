"""How a worker's process is set up."""

import platform
import subprocess
import sys

import pytest

from hopyard.studies.worker import process

_BATCHES = """
import resource
def batch():
    held = [bytearray(20 << 20) for _ in range(4)]
    for one in held:
        one[::4096] = bytes(len(one) // 4096)
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets what glibc knows")
def test_what_a_batch_frees_is_kept_for_the_next_one() -> None:
    def pages(environ: dict[str, str]) -> int:
        said = subprocess.run([sys.executable, "-c", _BATCHES], env=environ, capture_output=True, text=True, check=True)
        return int(said.stdout)

    whole = 5 * 4 * (20 << 20) // 4096  # of all later batches
    assert pages({}) > whole / 2  # else there is nothing to keep
    assert pages(process.environment(deterministic=True, threads=1, environ={})) < whole / 100


def test_what_the_user_says_of_memory_holds() -> None:
    wanted = process.environment(deterministic=True, threads=1, environ={"MALLOC_TRIM_THRESHOLD_": "131072"})
    assert wanted["MALLOC_TRIM_THRESHOLD_"] == "131072" and wanted["MALLOC_MMAP_THRESHOLD_"] == "33554432"
