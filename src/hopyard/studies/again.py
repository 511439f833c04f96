"""`python -m hopyard.studies.again JOURNAL CODE DATA`: does a study of model hopper parallelism again and
compares, for `hop search replay`.

A process of its own, in the study's interpreter: libraries read their number of threads as they are loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopyard.config.studyjson import study_of_json
from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.study import StudySpec
from hopyard.errors import HopyardError, NotFound, SpecError
from hopyard.studies.journal import read_records
from hopyard.studies.replay import Record, Replayed, replay_study, replay_trial
from hopyard.studies.trainable.load import load
from hopyard.studies.worker import process
from hopyard.studies.worker.opening import data_of_folder

_TELL_EVERY_S = 5.0


def main(words: Sequence[str] | None = None) -> int:
    """0 where all is the same, 1 where something differs or could not be done."""
    parser = argparse.ArgumentParser(prog="python -m hopyard.studies.again", description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("code", type=Path, help="folder of the study's code")
    parser.add_argument("data", type=Path, help="folder of its dataset")
    parser.add_argument("--beginning", type=Path, help="file of the state that a forked study began with")
    parser.add_argument("--trial", action="append", default=[], metavar="N")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    try:
        return _again(asked)
    except HopyardError as error:
        print(
            "\n".join([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)]),
            file=sys.stderr,
        )
        return 1


def _again(asked: argparse.Namespace) -> int:
    records = list(read_records(asked.journal.read_bytes()))
    spec = _spec(records)
    assert spec.mop is not None
    process.begin_again_with(process.environment(spec.mop.deterministic, spec.mop.threads))
    process.settle(spec.mop.deterministic, spec.mop.threads)
    code, data = asked.code.resolve(), asked.data.resolve()
    os.chdir(code)
    trainable = load(spec.mop.trainable, code)
    process.settle(spec.mop.deterministic, spec.mop.threads)  # the user's code may be what imported PyTorch
    with tempfile.TemporaryDirectory(prefix="hopyard-partitions-") as cache:
        partitions = data_of_folder(data, Path(cache), dataset=spec.mop.dataset)(spec.mop.partitions)
        opened: dict[tuple[PartitionId, Kind], Partition] = {}

        def open_partition(index: PartitionId, kind: Kind) -> Partition:
            if (index, kind) not in opened:
                opened[index, kind] = partitions.open(index, kind)
            return opened[index, kind]

        trials = [TrialId(trial) for trial in asked.trial]
        found: list[Replayed] = []
        told_at = time.monotonic()
        for one in _replayed(records, spec, trials, trainable, open_partition, asked.beginning):
            found.append(one)
            if not one.agrees:
                break
            if time.monotonic() - told_at > _TELL_EVERY_S:
                told_at = time.monotonic()
                print(f"{len(found)} hops and evaluations were the same so far", file=sys.stderr, flush=True)
    return _tell(found, as_json=asked.json)


def _replayed(
    records: Sequence[Record],
    spec: StudySpec,
    trials: Sequence[TrialId],
    trainable: Any,
    opened: Any,
    beginning: Path | None,
) -> Any:
    assert spec.mop is not None
    given = (
        {}
        if spec.beginning is None or beginning is None
        else {spec.beginning.kept_as: beginning.read_bytes()}
    )
    parts, seed = spec.mop.partitions.parts, spec.seed
    if not trials:
        yield from replay_study(records, trainable, opened, parts=parts, seed=seed, given=given)
        return
    known = {str(record["trial"]) for record in records if record.get("kind") == "hop"}
    for trial in trials:
        if trial not in known:
            raise NotFound(
                f"the study has no hop of trial {trial}",
                hints=(f"it has trials {', '.join(sorted(known, key=int))}",),
            )
        yield from replay_trial(records, trial, trainable, opened, parts=parts, seed=seed, given=given)


def _spec(records: Sequence[Record]) -> StudySpec:
    said = next((record["spec"] for record in records if record.get("kind") == "study"), None)
    if said is None:
        raise SpecError(
            "the study has not begun: there is nothing to train again",
            hints=("`hop search show` tells how it stands",),
        )
    spec = study_of_json(said)
    if spec.mop is None:
        raise SpecError(
            "the trials of this study are runs of their own", hints=("`hop fork RUN` runs one of them again",)
        )
    return spec


def _tell(found: Sequence[Replayed], *, as_json: bool) -> int:
    hops = [one for one in found if isinstance(one.found, str)]
    differs = next((one for one in found if not one.agrees), None)
    unnamed = sum(one.recorded == "" for one in hops)
    if as_json:
        about = {
            "equal": differs is None,
            "hops": len(hops),
            "evaluations": len(found) - len(hops),
            "without_digest": unnamed,
            "first_difference": None if differs is None else str(differs),
        }
        print(json.dumps(about, indent=2))
    elif differs is None:
        rest = f" ({unnamed} of them have no digest in the journal)" if unnamed else ""
        print(
            f"the same, bit for bit: {len(hops)} hops of {len({one.trial for one in hops})} "
            f"trials{rest}, {len(found) - len(hops)} evaluations"
        )
    else:
        print(f"it differs: {differs}")
        print(
            "hint: it can only be the same with the same libraries and number of threads, on the CPU, "
            "with `deterministic: true`",
            file=sys.stderr,
        )
    return 0 if differs is None else 1


if __name__ == "__main__":
    sys.exit(main())
