"""Which failures before the start are the run's own, and which its node's."""

from __future__ import annotations

import errno
import signal
import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from hopyard.config.home import Home
from hopyard.errors import (
    AuthError,
    BlobsOnOtherServer,
    HopyardError,
    IntegrityError,
    MissingBlobs,
    NotFound,
    SpecError,
    StorageFull,
)
from hopyard.replica.errors import NodeFault, PreflightFailed, prepare_error
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.metric_history import MetricHistory
from hopyard.replica.preflight import ReplicaPreflight
from hopyard.replica.prepare import PreparedRun, RunPreparation, _prepare_error
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.run_folder import RunFolder
from hopyard.replica.script_checkpoints import ScriptCheckpoints
from hopyard.replica.server_connection import ServerConnection

from .test_pair_checks import gang


@pytest.mark.parametrize(
    ("number", "path", "is_of_node"),
    [
        (errno.ENOTDIR, "/home/cache/trees/ab", True),
        (errno.ENOTDIR, "/home/attempts/a/0/work/x", False),
        (errno.ENAMETOOLONG, "/home/attempts/a/0/work/x", False),
        (errno.EIO, "/home/attempts/a/0/work/x", True),
        (errno.EMFILE, None, True),
    ],
)
def test_failed_system_call_in_cache_is_node_fault(number: int, path: str | None, is_of_node: bool) -> None:
    result = prepare_error(OSError(number, "it failed", path), "preparing", is_node_fault=Path("/home/cache"))
    assert isinstance(result, NodeFault) is is_of_node


@pytest.mark.parametrize(
    ("failed", "is_of_node"),
    [
        (AuthError("the token is valid for longer than any"), True),
        (StorageFull("no space"), True),
        (BlobsOnOtherServer("they lie elsewhere"), True),
        (HopyardError("the server is confused"), True),
        (SpecError("a manifest leads out"), False),
        (NotFound("no such run"), False),
        (MissingBlobs("gone", digests=["ab"]), False),
        (IntegrityError("damaged"), False),
    ],
)
def test_server_error_fails_run_only_for_invalid_request(failed: HopyardError, is_of_node: bool) -> None:
    assert isinstance(_prepare_error(failed), NodeFault) is is_of_node


def test_check_that_fails_while_another_error_is_handled_is_the_failure(tmp_path: Path) -> None:
    """The handler of SIGTERM may run between any two instructions."""
    with gang("ab") as specs:
        own = specs[0].node.probe_addresses[0]
        spec = replace(specs[0], node=replace(specs[0].node, home=str(tmp_path)))
        folder, home = ReplicaDir(tmp_path / "attempts" / "a.1" / "0"), Home(tmp_path)
        server = ServerConnection(folder, url="http://127.0.0.1:9", token="none", home=home)
        checks, is_signalled = ReplicaPreflight(spec, folder, server), threading.Event()
        checkpoints = ScriptCheckpoints(spec.launch, server, MetricHistory(folder))
        folder.root.mkdir(parents=True)
        gang_folder = GangFolder(folder.root.parent, spec)
        run_folder = RunFolder(gang_folder, None, server, lambda: False, print, list, checkpoints)

        class BadRequirements(HopyardError):
            def __getattribute__(self, name: str) -> object:
                if name == "message":  # the handler of this error reads it
                    checks.raise_if_failed()
                return super().__getattribute__(name)

        class Preparation(RunPreparation):
            def _run(self) -> PreparedRun:
                self.folder.create()
                self.preflight.begin()
                assert is_signalled.wait(60)
                raise BadRequirements("no such package")

        with ExitStack() as stack:
            stack.enter_context(closing(socket.create_server((own.host, own.port))))  # so the check fails
            stack.callback(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            signal.signal(signal.SIGTERM, lambda *_: is_signalled.set())
            preparation = Preparation(folder, spec, server, stack, lambda _: None, run_folder, checks)
            with pytest.raises(PreflightFailed, match="cannot listen at"):
                preparation.run()
        checks.raise_if_failed()  # a signal that arrives late changes nothing
