"""Makes the spec of a run from a `hop.yaml` and uploaded code, in a process of its own."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from hopyard.domain.ids import Digest
from hopyard.errors import ServerFault
from hopyard.server.code_folder import code_folder
from hopyard.server.services import Services

_PROGRAM = "hopyard.client.compose_run"  # a program: the server imports nothing of it
_TIMEOUT_S = 60.0


async def compose_run(
    services: Services, file: str, code: Digest | None, base: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[tuple[Digest, bytes]]]:
    """Returns the response of the program, and the blobs that the spec needs. base: the environment of an
    earlier run. Raises MissingBlobs, SpecError (the code is no tree), ServerFault."""
    async with code_folder(services, code) as folder:
        request = {"folder": str(folder), "file": file, "base": base, "has_code": code is not None}
        output = await _run_program(msgspec.json.encode(request))
    result: dict[str, Any] = msgspec.json.decode(output)
    blobs = result.pop("blobs", {})
    return result, [(Digest(digest), base64.b64decode(data)) for digest, data in blobs.items()]


async def _run_program(request: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-B", "-m", _PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        cwd="/",
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(request), _TIMEOUT_S)
    except TimeoutError:
        raise ServerFault("the code could not be read in time", hints=("try again",)) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode or not output:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise ServerFault(f"the code could not be read: {last or f'exit code {process.returncode}'}")
    return output
