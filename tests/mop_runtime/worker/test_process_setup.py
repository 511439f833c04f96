"""How a worker's process is set up."""

import os
import platform
import subprocess
import sys

import pytest

_BATCHES = """
import resource, sys
if "settled" in sys.argv:
    from hopyard.mop_runtime.worker import process_setup
    process_setup.apply_determinism(deterministic=True, threads=1)
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
def test_freed_memory_is_retained_for_next_batch_unless_user_overrides() -> None:
    def pages(*words: str, **more: str) -> int:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        result = subprocess.run(
            [sys.executable, "-c", _BATCHES, *words],
            env=environ | more,
            capture_output=True,
            text=True,
            check=True,
        )
        return int(result.stdout)

    all_pages = 5 * 4 * (20 << 20) // 4096  # of all later batches
    assert pages() > all_pages / 2  # otherwise there is nothing to retain
    assert pages("settled") < all_pages / 100
    user_settings = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
    assert pages("settled", **user_settings) > all_pages / 2
