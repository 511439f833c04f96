"""Packs the code, uploads the blobs that the server lacks, and submits a run exactly once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect
from hopyard.client.build_environment import SECRET_NAME, add_blob, build_environment, reject_secrets
from hopyard.client.code_symlinks import kept_links
from hopyard.client.feedback import (
    Notify,
    ProgressFactory,
    no_progress,
    print_notice,
)
from hopyard.client.git_state import GitProbe
from hopyard.client.ignore_check import find_left_out
from hopyard.client.pack_code import pack_code
from hopyard.config.run_request import RunRequest
from hopyard.domain.ids import new_run_id
from hopyard.domain.urls import find_secrets
from hopyard.errors import MissingBlobs, ServerUnavailable

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.datasets.packed_tree import PackedTree

_MAX_SETTINGS_BYTES = 4 * 1024 * 1024
_SETTINGS_FILE_PATTERN = re.compile(
    r"(requirements|constraints|environment|conda|meta).*\.(txt|in|ya?ml)|.*requirements\.(txt|in)|pyproject\.toml|setup\.(cfg|py)|uv\.(toml|lock)"
    r"|pip\.(conf|ini)|Pipfile(\.lock)?|poetry\.(toml|lock)|pdm\.(toml|lock)|pylock.*\.toml|\.condarc|\.npmrc|\.yarnrc(\.yml)?|\.gitmodules|Dockerfile.*",
    re.IGNORECASE,
)
# Attempts without progress: blobs may be swept, or be found damaged, between a response and the next attempt.
_MAX_FRUITLESS_ATTEMPTS = 5


class _Submission(NamedTuple):
    """A run that is ready for its submission. extras: blobs beside the tree."""

    client: Client
    spec: api.SpecIn
    tree: PackedTree
    extras: dict[str, bytes]


def submit_run(
    request: RunRequest,
    folder: Path,
    *,
    interpreter: str | None = None,
    spec: Callable[..., Mapping[str, Any]] | None = None,
    trial: RunRequest | None = None,
    start_from: str | None = None,
    notify: Notify = print_notice,
    on_progress: ProgressFactory = no_progress,
) -> tuple[Client, api.RunOut]:
    """Submits `request` with the code in `folder`. Returns the run after its first scheduling cycle.

    interpreter: runs the script; by default the caller's, or one that the server builds from requirements.
    spec: makes the RunSpec in place of `request.spec` (a study has more fields than its run). trial: what
    each trial of a study runs. start_from: a checkpoint, `RUN@STEP`. notify: receives each notice.
    on_progress: makes the listener for the progress of packing and of each upload.

    The id is made here, so that a request without a response can be sent again without a second run.
    """
    prepared = _prepare_run(
        request,
        folder,
        interpreter=interpreter,
        spec=spec,
        trial=trial,
        start_from=start_from,
        notify=notify,
        on_progress=on_progress,
    )
    body: api.SubmitIn = {"id": new_run_id(datetime.now(UTC), os.urandom(7)), "spec": prepared.spec}
    return send_with_blobs(
        prepared.client,
        lambda client: client.create_run(body, plan=1),
        prepared.tree,
        prepared.extras,
        on_progress=on_progress,
    )


def preview_run(
    request: RunRequest,
    folder: Path,
    *,
    interpreter: str | None = None,
    start_from: str | None = None,
    notify: Notify = print_notice,
    on_progress: ProgressFactory = no_progress,
) -> api.PreviewOut:
    """Returns when the run of `submit_run` would start. Nothing is uploaded or submitted."""
    prepared = _prepare_run(
        request,
        folder,
        interpreter=interpreter,
        start_from=start_from,
        notify=notify,
        on_progress=on_progress,
    )
    return prepared.client.preview_run({"spec": prepared.spec})


def _prepare_run(
    request: RunRequest,
    folder: Path,
    *,
    interpreter: str | None = None,
    spec: Callable[..., Mapping[str, Any]] | None = None,
    trial: RunRequest | None = None,
    start_from: str | None = None,
    notify: Notify,
    on_progress: ProgressFactory,
) -> _Submission:
    """Packs the code and builds the spec, as `submit_run` describes."""
    probe = GitProbe(folder, notify=notify)
    try:
        extras: dict[str, bytes] = {}
        commands = [role.command for part in (request, trial) if part is not None for role in part.roles]
        files: set[str] = set()
        environment = build_environment(
            request,
            folder,
            interpreter or request.interpreter or None,
            extras,
            notify,
            commands=commands,
            files=files,
            is_study=spec is not None,
        )
        places = [dataset.path for dataset in request.datasets]
        tree = pack_code(
            folder,
            probe,
            commands,
            needed=files,
            omitted=places,
            notify=notify,
            on_progress=on_progress,
        )
        if links := kept_links(tree, places, notify):
            environment["links"] = links
        check_settings_files(tree)
        _notify_of_replaced_folders(request, tree, notify)
        client = connect()
        git = git_json(probe, extras)
    finally:
        probe.close()
    _warn_of_readable_secrets(request, notify)
    run_spec = cast("api.SpecIn", (spec or request.spec)(code=tree.digest, git=git, environment=environment))
    if start_from is not None:
        from hopyard.client.start_checkpoint import find_start_checkpoint  # late: rarely needed

        checkpoint = find_start_checkpoint(client, start_from)
        run_spec["resume"], run_spec["forked_from"] = checkpoint, checkpoint["run"]
    return _Submission(client, run_spec, tree, extras)


def _notify_of_replaced_folders(request: RunRequest, tree: PackedTree, notify: Notify) -> None:
    for dataset in request.datasets:
        path = dataset.path
        is_inside = path and not path.startswith(("/", ".."))
        if is_inside and (tree.root / path).is_dir() and find_left_out(tree.left_out, path) is None:
            notify(f"note: dataset {dataset.name} replaces the folder {dataset.path} of the code in the run")


def send_with_blobs(
    client: Client,
    send: Callable[[Client], api.RunOut],
    tree: PackedTree,
    extras: dict[str, bytes],
    *,
    on_progress: ProgressFactory = no_progress,
) -> tuple[Client, api.RunOut]:
    """Sends the request that makes a run. Uploads blobs of `tree` and `extras` that the server lacks, and
    sends again.

    If the server dies meanwhile, everything goes to its successor. The id in the request prevents a second
    run.
    """
    fruitless_attempts = 0
    uploaded: set[str] = set()  # the server names a limited number of missing blobs per response
    while True:
        try:
            try:
                return client, send(client)
            except MissingBlobs as error:
                if uploaded.issuperset(error.digests):
                    fruitless_attempts += 1
                    if fruitless_attempts == _MAX_FRUITLESS_ATTEMPTS:
                        raise
                upload_blobs(client, tree, extras, error.digests, on_progress=on_progress)
                uploaded.update(error.digests)
        except ServerUnavailable:
            fruitless_attempts += 1
            if fruitless_attempts == _MAX_FRUITLESS_ATTEMPTS:
                raise
            client = connect()


def upload_blobs(
    client: Client,
    tree: PackedTree,
    extras: dict[str, bytes],
    digests: Sequence[str],
    *,
    on_progress: ProgressFactory = no_progress,
) -> None:
    """Uploads the blobs with these digests."""
    from hopyard.datasets.transfer import send_blobs

    small = [(digest, extras[digest]) for digest in digests if digest in extras]
    if small:
        client.put_pack(small)
    code = [digest for digest in digests if digest not in extras]
    if code:
        with on_progress() as progress:
            send_blobs(tree, code, client, progress)


def warn_of_secrets(request: RunRequest, file: str, notify: Notify) -> None:
    """Warns of secret values in a run's file: every user can read the file."""
    names = [
        name
        for name, value in request.env.items()
        if value and (SECRET_NAME.fullmatch(name) or any(True for _ in find_secrets(value)))
    ]
    if names:
        notify(
            f"note: {file} holds the value of {', '.join(names)}, and every user of the server can "
            "read the code of a run"
        )
        notify(f"hint: `hop secret set {names[0]}` once, and write `secrets: [{names[0]}]` in {file} instead")


def _warn_of_readable_secrets(request: RunRequest, notify: Notify) -> None:
    """Warns of secrets in a command: every user can read commands."""
    if any(True for role in request.roles for word in role.command for _ in find_secrets(word)):
        notify("note: the command holds a password or token, and every user of the server can read commands")
        notify(
            "hint: `hop secret set NAME` once, `hop run --secret NAME`, and read it from the "
            "environment in the script"
        )


def check_settings_files(tree: PackedTree) -> None:
    """Raises SpecError for a file of the code that names packages, or settings of programs that fetch them,
    with a password in an address."""
    import json

    for path, size, *_ in json.loads(tree.encoded)["files"]:
        if size <= _MAX_SETTINGS_BYTES and _SETTINGS_FILE_PATTERN.fullmatch(path.rpartition("/")[2]):
            reject_secrets(path, (tree.root / path).read_bytes())


def git_json(probe: GitProbe, extras: dict[str, bytes]) -> api.GitIn | None:
    """Returns the git state of the code, None outside of git. Adds its diff to `extras`."""
    state, diff = probe.collect()
    return None if state is None else {**state, "diff": add_blob(diff, extras) if diff else None}
