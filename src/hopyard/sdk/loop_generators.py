"""The own generators of the iterables of all loops, from one pass to the next and across a resume.

The name of a loop identifies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.sdk import bound_objects as binding
from hopyard.sdk.bound_objects import BoundObjects
from hopyard.sdk.checkpoints import LoopPosition
from hopyard.sdk.iterable_generators import (
    capture_generators,
    find_generators,
    find_started_loaders,
    has_started_workers,
    restore_generators,
    start_workers,
)
from hopyard.sdk.object_state import capture_rng, restore_rng
from hopyard.sdk.resumable_loop import Loop
from hopyard.sdk.warn_once import warn_once


class LoopGenerators:
    """Restores the generators of loaders, whether they are bound or not."""

    def __init__(self) -> None:
        self._by_loop: dict[str, tuple[Loop[Any], dict[str, Any]]] = {}
        self._restored: dict[str, Any] = {}  # states of a checkpoint, until their loop begins
        self._bound_paths: set[str] = set()
        self._entry_states: dict[str, Any] = {}
        self._entered: dict[str, Any] = {}  # generators of the loop that began last

    def resume_from(self, states: object) -> None:
        """Sets the states of the checkpoint, by loop."""
        self._restored = dict(states) if isinstance(states, dict) else {}

    def capture(self) -> dict[str, Any]:
        """Returns the current states, by loop."""
        return {key: _capture(loop, generators) for key, (loop, generators) in self._by_loop.items()}

    def enter(
        self, loop: Loop[Any], bound: BoundObjects, position: LoopPosition | None = None
    ) -> dict[str, Any]:
        """A loop begins: continues its generators. position: in the checkpoint. Returns their states."""
        key, generators = loop.name, find_generators(loop.iterable)
        bound_ids = {id(value) for value in binding.bound_objects(bound).values()}
        self._bound_paths = {path for path, value in generators.items() if id(value) in bound_ids}
        if bound_ids and key not in self._by_loop:
            self._check_start(loop, generators)
        restored = self._restored.pop(key, None)
        if restored is not None:
            # if the completed items are drawn again, their pass may have started the workers itself
            begin = _replayed_from(loop, position)
            _warm_up(loop, restored if begin is None else begin)
            unbound = {path: value for path, value in generators.items() if path not in self._bound_paths}
            restore_generators(unbound, restored["states"])
        self._entered = generators
        if generators or getattr(loop.iterable, "persistent_workers", False):
            self._by_loop[key] = loop, generators
        self._entry_states = capture_generators(generators)
        return _capture(loop, generators)

    def _check_start(self, loop: Loop[Any], generators: Mapping[str, Any]) -> None:
        """Warns of a pass that has begun before its loop, so that a resumed run cannot repeat its draws."""
        started = find_started_loaders(loop.iterable)
        has_workers = any(getattr(loader, "_num_workers", 0) for loader in started)
        if started and (has_workers or len(generators) > len(self._bound_paths)):
            warn_once(
                f"the loop `{loop.name}` gets an iterator that has drawn from its loader's generator: a "
                "resumed run may have another order; give the loader itself to the loop, as in "
                f"`enumerate(hop.loop(loader))`{'' if has_workers else ', or bind the generator'}",
                kind=f"started-{loop.name}",
            )

    def replay(self, loop: Loop[Any], begin: Mapping[str, Any] | None, *, is_rank_0: bool) -> None:
        """The completed items are drawn again: from the states as the pass began."""
        if begin is None:
            return
        _warm_up(loop, begin)
        selected = {
            path: value for path, value in self._entered.items() if is_rank_0 or path in self._bound_paths
        }
        restore_generators(selected, begin["states"])

    def catch_up(self) -> None:
        """The completed items are drawn: the states of the checkpoint apply again."""
        if self._entry_states:
            restore_generators(self._entered, self._entry_states)
            self._entry_states = {}


def _replayed_from(loop: Loop[Any], position: LoopPosition | None) -> Mapping[str, Any] | None:
    """Returns the states at the start of the pass with items that are drawn again; None without such."""
    if position is None or position.rng_state is None or position.complete:
        return None
    if loop.total is not None and position.iterations >= loop.total:
        return None
    begin: Mapping[str, Any] | None = position.rng_state.get("own")
    return begin


def _capture(loop: Loop[Any], generators: Mapping[str, Any]) -> dict[str, Any]:
    return {"states": capture_generators(generators), "started": has_started_workers(loop.iterable)}


def _warm_up(loop: Loop[Any], state: Mapping[str, Any]) -> None:
    if state.get("started") and not has_started_workers(loop.iterable):
        generators = find_generators(loop.iterable)
        states, global_states = capture_generators(generators), capture_rng()
        start_workers(loop.iterable)
        restore_generators(generators, states)
        restore_rng(global_states)
