"""The evaluation of a run's checkpoints by another run, which reports its metrics into the first one."""

from __future__ import annotations

from hopyard.backports import dataclass
from hopyard.domain.ids import RunId

EVALUATION_VARIABLE = "HOPYARD_EVALUATION"  # of the processes of an evaluating run: an EvaluationSpec as JSON
EVALUATED_EVENT = "evaluated"  # the kind of an event of the script: a checkpoint is done


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """What a run evaluates.

    newest: skips checkpoints when a newer one is complete. step: only the checkpoint of this step. follow:
    waits for further checkpoints until the evaluated run has ended.
    """

    run: RunId
    newest: bool = False
    step: int | None = None
    follow: bool = True


def evaluation_sentence(name: str, evaluator: RunId) -> str:
    """Returns the detail of the event that links the evaluated run with the run that evaluates it."""
    return f"by {name} ({evaluator})"


def evaluator_of_sentence(sentence: str) -> RunId:
    """Returns the run of `evaluation_sentence`."""
    return RunId(sentence.rpartition("(")[2].rstrip(")"))
