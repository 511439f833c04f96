"""The parameters that the code of a study names. A parameter may be read in one branch only, so a trial that
has not read it proves nothing if the code names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hopyard.domain.script_analysis.param_reads import names_in_params_calls, read_names
from hopyard.domain.script_analysis.source_tree import SourceTree, read_sources
from hopyard.domain.study import StudySpec

# ended trials without a parameter that the code reads under some condition
MAX_UNREAD_TRIALS = 10


def declared_names(spec: StudySpec, folder: Path) -> frozenset[str]:
    """Returns the parameters that calls of `hop.params` name in the scripts of trials that are runs."""
    roles = (spec.trial or {}).get("roles") or ()
    words = [str(word) for role in roles for word in role.get("command") or ()]
    return names_in_params_calls(_sources(words, folder))


def trainable_reads(trainable: str, folder: Path) -> frozenset[str]:
    """Returns the names that the code of a trainable reads from any object, such as `config.lr`."""
    return read_names(_sources([trainable.partition(":")[0]], folder))


def unread_note(names: Sequence[str]) -> str:
    """Returns a sentence for parameters that no trial of an ended study has read."""
    listed = ", ".join(f"`{name}`" for name in names)
    return f"warning: no trial has read {listed}, so the values of the search had no effect"


def _sources(words: Iterable[str], folder: Path) -> Iterator[SourceTree]:
    def read(path: str) -> bytes | None:
        try:
            return (folder / path).read_bytes()
        except (OSError, ValueError):
            return None

    for word in words:
        path = word if word.endswith(".py") else f"{word.replace('.', '/')}.py"
        yield from read_sources(path, read)
