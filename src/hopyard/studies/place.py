"""What a replica of a study knows of its place: the study, who it is in the gang, where its files lie."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.studyjson import study_of_json
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.study import StudySpec
from hopyard.errors import SpecError

# the file that the replica wrote: {"spec": StudySpec, "secret": hexadecimal digits}
VARIABLE = "HOPYARD_STUDY"


@dataclass(frozen=True, slots=True)
class Place:
    """One process of a study's attempt.

    folder: the replica's own. gang: one that all replicas on this node see. meet: host and port where workers
    look for the driver. secret: known to the replicas of this attempt alone. datasets: name -> mounted
    folder. restored: the folder of the checkpoint that the attempt began with, None where there is none.
    foreign: that is another user's.
    """

    spec: StudySpec
    run: RunId
    run_name: str
    attempt: AttemptId
    role: str
    role_rank: int
    rank: int
    folder: Path
    gang: Path
    meet: tuple[str, int]
    secret: bytes
    datasets: Mapping[str, Path]
    restored: Path | None = None
    restored_step: int | None = None
    foreign: bool = False

    @property
    def streams(self) -> Path:
        return self.folder / "streams"

    @property
    def dataset(self) -> Path | None:
        """The folder of the dataset that the study's workers share, where it has one."""
        return self.datasets.get(self.spec.mop.dataset) if self.spec.mop is not None else None


def find_place(environ: Mapping[str, str] | None = None) -> Place:
    """Of this process. Raises SpecError where it is no replica of a study."""
    env = os.environ if environ is None else environ
    file = env.get(VARIABLE)
    if not file:
        raise SpecError("this process is not part of a study", hints=("`hop search search.yaml` starts one",))
    try:
        said = json.loads(Path(file).read_bytes())
        spec, secret = study_of_json(said["spec"]), bytes.fromhex(said["secret"])
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise SpecError(f"{file} cannot be read: {bad}") from bad
    folder = Path(env["HOPYARD_REPLICA_DIR"])
    restored, step = env.get("HOPYARD_RESTORE_DIR"), env.get("HOPYARD_RESTORE_STEP")
    return Place(
        spec=spec,
        run=RunId(env["HOPYARD_RUN_ID"]),
        run_name=env.get("HOPYARD_RUN", ""),
        attempt=AttemptId(env["HOPYARD_ATTEMPT"]),
        role=env.get("ROLE_NAME", ""),
        role_rank=int(env.get("ROLE_RANK", "0")),
        rank=int(env.get("RANK", "0")),
        folder=folder,
        gang=Path(env.get("HOPYARD_GANG_DIR") or folder),
        meet=(env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "0"))),
        secret=secret,
        datasets={name: Path(path) for name, path in json.loads(env.get("HOPYARD_DATASETS") or "{}").items()},
        restored=Path(restored) if restored else None,
        restored_step=int(step) if restored and step else None,
        foreign=env.get("HOPYARD_RESTORE_FOREIGN") == "1",
    )
