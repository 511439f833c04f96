"""The context of a process of a study: the study, its place in the gang, its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.schemas.study_json import study_from_json
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError

# the file that the replica wrote: {"spec": StudySpec, "secret": hexadecimal digits}
STUDY_VARIABLE = "HOPYARD_STUDY"


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """One process of a study's attempt.

    replica_dir: the replica's own. gang_dir: shared by all replicas on this node. driver_address: host and
    port at which workers connect to the driver. secret: known only to the replicas of this attempt.
    dataset_dirs: the mounted folder of each dataset. restored_dir: the folder of the checkpoint that the
    attempt started from, or None. untrusted: that checkpoint is another user's.
    """

    spec: StudySpec
    run: RunId
    run_name: str
    attempt: AttemptId
    role: str
    role_rank: int
    rank: int
    replica_dir: Path
    gang_dir: Path
    driver_address: tuple[str, int]
    secret: bytes
    dataset_dirs: Mapping[str, Path]
    restored_dir: Path | None = None
    restored_step: int | None = None
    untrusted: bool = False

    @property
    def streams_dir(self) -> Path:
        return self.replica_dir / "streams"

    @property
    def dataset_dir(self) -> Path | None:
        """The folder of the dataset that the study's workers share, if any."""
        return self.dataset_dirs.get(self.spec.mop.dataset) if self.spec.mop is not None else None


def load_process_context(environ: Mapping[str, str] | None = None) -> ProcessContext:
    """Returns the context of this process. Raises SpecError if it is not a replica of a study."""
    env = os.environ if environ is None else environ
    file = env.get(STUDY_VARIABLE)
    if not file:
        raise SpecError(
            "this process is not part of a study", hints=("start one with `hop search search.yaml`",)
        )
    try:
        content = json.loads(Path(file).read_bytes())
        spec, secret = study_from_json(content["spec"]), bytes.fromhex(content["secret"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{file} cannot be read: {error}") from error
    folder = Path(env["HOPYARD_REPLICA_DIR"])
    restored, step = env.get("HOPYARD_RESTORE_DIR"), env.get("HOPYARD_RESTORE_STEP")
    return ProcessContext(
        spec=spec,
        run=RunId(env["HOPYARD_RUN_ID"]),
        run_name=env.get("HOPYARD_RUN", ""),
        attempt=AttemptId(env["HOPYARD_ATTEMPT"]),
        role=env.get("ROLE_NAME", ""),
        role_rank=int(env.get("ROLE_RANK", "0")),
        rank=int(env.get("RANK", "0")),
        replica_dir=folder,
        gang_dir=Path(env.get("HOPYARD_GANG_DIR") or folder),
        driver_address=(env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "0"))),
        secret=secret,
        dataset_dirs={
            name: Path(path) for name, path in json.loads(env.get("HOPYARD_DATASETS") or "{}").items()
        },
        restored_dir=Path(restored) if restored else None,
        restored_step=int(step) if restored and step else None,
        untrusted=env.get("HOPYARD_RESTORE_FOREIGN") == "1",
    )
