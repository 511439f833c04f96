"""`python -m hopyard.mop_runtime.replay_main JOURNAL CODE DATA`: replays a study of model hopper parallelism
and compares the results, for `hop search replay`.

It is a separate process in the study's interpreter, because libraries read their number of threads when they
are loaded.
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

from hopyard.config.schemas.study_json import study_from_json
from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.study import StudySpec
from hopyard.errors import HopyardError, NotFound, SpecError
from hopyard.mop_runtime.replay import JournalRecord, ReplayResult, replay_study, replay_trial
from hopyard.mop_runtime.worker import process_setup
from hopyard.mop_runtime.worker.open_partitions import open_dataset_folder
from hopyard.studies.journal import read_records
from hopyard.trainables.load import load

_PROGRESS_INTERVAL_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if all results are equal, 1 if one differs or the replay failed."""
    parser = argparse.ArgumentParser(prog="python -m hopyard.mop_runtime.replay_main", description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("code", type=Path, help="folder of the study's code")
    parser.add_argument("data", type=Path, help="folder of its dataset")
    parser.add_argument("--beginning", type=Path, help="file of the state that a forked study began with")
    parser.add_argument("--trial", action="append", default=[], metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    try:
        return _run_replay(options)
    except HopyardError as error:
        print(
            "\n".join([f"error: {error.message}", *(f"hint: {hint}" for hint in error.hints)]),
            file=sys.stderr,
        )
        return 1


def _run_replay(options: argparse.Namespace) -> int:
    records = list(read_records(options.journal.read_bytes()))
    spec = _spec(records)
    assert spec.mop is not None
    process_setup.restart_with_environment(
        process_setup.environment(spec.mop.deterministic, spec.mop.threads)
    )
    process_setup.apply_determinism(spec.mop.deterministic, spec.mop.threads)
    code, data = options.code.resolve(), options.data.resolve()
    os.chdir(code)
    trainable = load(spec.mop.trainable, code)
    # the user's code may have imported PyTorch
    process_setup.apply_determinism(spec.mop.deterministic, spec.mop.threads)
    with tempfile.TemporaryDirectory(prefix="hopyard-partitions-") as cache:
        partitions = open_dataset_folder(data, Path(cache), dataset=spec.mop.dataset)(spec.mop.partitions)
        opened: dict[tuple[PartitionId, Kind], Partition] = {}

        def open_partition(index: PartitionId, kind: Kind) -> Partition:
            if (index, kind) not in opened:
                opened[index, kind] = partitions.open(index, kind)
            return opened[index, kind]

        trials = [TrialId(trial) for trial in options.trial]
        results: list[ReplayResult] = []
        reported_at = time.monotonic()
        for result in _replay_trials(records, spec, trials, trainable, open_partition, options.beginning):
            results.append(result)
            if not result.matches:
                break
            if time.monotonic() - reported_at > _PROGRESS_INTERVAL_S:
                reported_at = time.monotonic()
                print(
                    f"{len(results)} hops and evaluations were the same so far", file=sys.stderr, flush=True
                )
    return _print_result(results, as_json=options.json)


def _replay_trials(
    records: Sequence[JournalRecord],
    spec: StudySpec,
    trials: Sequence[TrialId],
    trainable: Any,
    open_partition: Any,
    fork_state_file: Path | None,
) -> Any:
    assert spec.mop is not None
    initial_states = (
        {}
        if spec.beginning is None or fork_state_file is None
        else {spec.beginning.fork_state_name: fork_state_file.read_bytes()}
    )
    parts, seed = spec.mop.partitions.parts, spec.seed
    if not trials:
        yield from replay_study(
            records,
            trainable,
            open_partition,
            partition_count=parts,
            seed=seed,
            initial_states=initial_states,
        )
        return
    trained_trials = {str(record["trial"]) for record in records if record.get("kind") == "hop"}
    for trial in trials:
        if trial not in trained_trials:
            raise NotFound(
                f"the study has no hop of trial {trial}",
                hints=(f"it has trials {', '.join(sorted(trained_trials, key=int))}",),
            )
        yield from replay_trial(
            records,
            trial,
            trainable,
            open_partition,
            partition_count=parts,
            seed=seed,
            initial_states=initial_states,
        )


def _spec(records: Sequence[JournalRecord]) -> StudySpec:
    spec_json = next((record["spec"] for record in records if record.get("kind") == "study"), None)
    if spec_json is None:
        raise SpecError(
            "the study has not begun: there is nothing to train again",
            hints=("run `hop search show` to see its state",),
        )
    spec = study_from_json(spec_json)
    if spec.mop is None:
        raise SpecError(
            "the trials of this study are separate runs", hints=("run `hop fork RUN` to repeat one of them",)
        )
    return spec


def _print_result(results: Sequence[ReplayResult], *, as_json: bool) -> int:
    hops = [result for result in results if isinstance(result.actual, str)]
    first_difference = next((result for result in results if not result.matches), None)
    without_digest = sum(result.expected == "" for result in hops)
    if as_json:
        summary = {
            "equal": first_difference is None,
            "hops": len(hops),
            "evaluations": len(results) - len(hops),
            "without_digest": without_digest,
            "first_difference": None if first_difference is None else str(first_difference),
        }
        print(json.dumps(summary, indent=2))
    elif first_difference is None:
        missing_text = f" ({without_digest} of them have no digest in the journal)" if without_digest else ""
        print(
            f"the same, bit for bit: {len(hops)} hops of {len({result.trial for result in hops})} "
            f"trials{missing_text}, {len(results) - len(hops)} evaluations"
        )
    else:
        print(f"it differs: {first_difference}")
        print(
            "hint: it can only be the same with the same libraries and number of threads, on the CPU, "
            "with `deterministic: true`",
            file=sys.stderr,
        )
    return 0 if first_difference is None else 1


if __name__ == "__main__":
    sys.exit(main())
