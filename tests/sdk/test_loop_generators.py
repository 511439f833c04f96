"""A loader with a generator of its own resumes with the same order of items."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.sdk import bound_objects as binding
from hopyard.sdk.iterable_generators import find_generators, find_started_loaders
from hopyard.sdk.resumable_loop import Loop
from hopyard.sdk.session import Session


class Shuffled:
    """Draws its order as a pass begins, from its own generator."""

    def __init__(self) -> None:
        self.generator = random.Random(3)

    def __iter__(self) -> Iterator[int]:
        order = list(range(8))
        self.generator.shuffle(order)
        yield from order


class Persistent(Shuffled):
    """A loader with persistent workers: their start draws a seed."""

    persistent_workers = True

    def __init__(self) -> None:
        super().__init__()
        self._iterator: object = None

    def __iter__(self) -> Iterator[int]:
        if self._iterator is None:
            self._iterator = self.generator.random()
        return super().__iter__()


class Noise:
    """A dataset that draws from generators of its own, one of them in a dict."""

    def __init__(self) -> None:
        self.generators = {"noise": random.Random(5)}


class Stream:
    """Has no length, although it has the method, as a loader over an iterable dataset."""

    def __init__(self) -> None:
        self.dataset = Noise()

    def __len__(self) -> int:
        raise TypeError("no length")

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            yield self.dataset.generators["noise"].randrange(10**6)


class Draws:
    """The iterable dataset of a loader of PyTorch."""

    def __init__(self, base: type) -> None:
        generator = random.Random(6)

        class Dataset(base):  # type: ignore[misc]
            def __init__(self) -> None:
                self.generator = generator

            def __iter__(self) -> Iterator[int]:
                return (generator.randrange(10**6) for _ in range(16))

        self.dataset = Dataset()


def torch_stream() -> Any:
    torch = pytest.importorskip("torch")
    dataset = Draws(torch.utils.data.IterableDataset).dataset
    return torch.utils.data.DataLoader(dataset, batch_size=2)


def torch_loader() -> Any:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(7)
    return torch.utils.data.DataLoader(range(16), batch_size=2, shuffle=True, generator=generator)


class Killed(Exception):
    pass


def train(
    folder: Path,
    loader: Any,
    *,
    bound: bool = False,
    kill_at: int = -1,
    restore: Path | None = None,
    wrap: Callable[[Any], Any] = lambda loader: loader,
) -> list[str]:
    """Runs three epochs, or until the item `kill_at`. Returns the items. wrap: makes what a loop iterates
    over."""
    (folder / "streams").mkdir(parents=True)
    environ = {"HOPYARD_RUN_ID": "r1", **({"HOPYARD_RESTORE_DIR": str(restore)} if restore else {})}
    session = Session(str(folder), environ, offline=True)
    seen: list[str] = []
    binding.bind_objects(
        session.bound,
        {"seen": seen}
        | ({"own": loader.generator} if bound and hasattr(loader, "generator") and loader.generator else {}),
    )
    try:
        for _ in Loop(range(3), session, save_every=1, name="epoch"):
            for item in Loop(wrap(loader), session, save_every=1, name="item"):
                seen.append(str(item))
                if len(seen) == kill_at:
                    raise Killed
    except Killed:
        pass
    return seen


class Odd:
    """A part of a dataset that is no generator."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: the connection is closed")


class Simulator:
    def get_state(self, body: str) -> str:
        return body

    set_state = get_state


def test_other_parts_of_a_dataset_are_no_generators() -> None:
    loader = Stream()
    vars(loader.dataset).update(parts=[Odd()], simulator=Simulator())
    assert list(find_generators(loader)) == ["dataset.generators['noise']"]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        Shuffled,
        Persistent,
        Stream,
        pytest.param(torch_loader, marks=pytest.mark.torch),
        pytest.param(torch_stream, marks=pytest.mark.torch),
    ],
)
def test_order_continues_after_a_kill(tmp_path: Path, make: Any, bound: bool) -> None:
    expected = train(tmp_path / "whole", make(), bound=bound)
    assert len(set(expected)) > 8 or make in (Shuffled, Persistent)
    for kill_at in (4, 9, 13):  # in an epoch, at the first item of one, in the next
        folder = tmp_path / str(kill_at)
        train(folder, make(), bound=bound, kill_at=kill_at)
        newest = max((folder / "checkpoints").iterdir(), key=lambda saved: int(saved.name))
        resumed = train(tmp_path / f"resumed{kill_at}", make(), bound=bound, restore=newest)
        assert resumed == expected


class Progress:
    """Iterates over another object, as tqdm and loaders that move batches to a device."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __iter__(self) -> Iterator[Any]:
        yield from self.wrapped


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


SHARED_LOADER = Shuffled()


def from_module() -> Iterator[Any]:
    yield from SHARED_LOADER


@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        (Shuffled, lambda loader: zip(loader, loader, strict=True)),
        (Shuffled, lambda loader: itertools.islice(endless(loader), 8)),
        (Shuffled, lambda loader: Progress(enumerate(Progress(loader)))),
        pytest.param(torch_loader, Progress, marks=pytest.mark.torch),
    ],
)
def test_order_of_a_wrapped_loader_continues_after_a_kill(tmp_path: Path, make: Any, wrap: Any) -> None:
    expected = train(tmp_path / "whole", make(), wrap=wrap)
    for kill_at in (4, 9):  # in an epoch, at the first item of one
        train(tmp_path / str(kill_at), make(), kill_at=kill_at, wrap=wrap)
        newest = max((tmp_path / str(kill_at) / "checkpoints").iterdir(), key=lambda saved: int(saved.name))
        resumed = train(tmp_path / f"resumed{kill_at}", make(), restore=newest, wrap=wrap)
        assert resumed == expected


def test_generators_of_what_a_generator_function_uses_are_found() -> None:
    assert list(find_generators(from_module())) == ["SHARED_LOADER.generator"]


def test_global_generators_and_cycles_end_the_search() -> None:
    wrapped = Progress(None)
    wrapped.wrapped = [wrapped, random]
    assert find_generators(wrapped) == {}


@pytest.mark.torch
def test_a_loader_that_has_drawn_before_its_loop_needs_a_bound_generator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = train(tmp_path / "whole", torch_loader(), wrap=enumerate, bound=True)
    train(tmp_path / "killed", torch_loader(), wrap=enumerate, bound=True, kill_at=9)
    newest = max((tmp_path / "killed" / "checkpoints").iterdir(), key=lambda saved: int(saved.name))
    resumed = train(tmp_path / "resumed", torch_loader(), wrap=enumerate, bound=True, restore=newest)
    assert resumed == expected
    assert "drawn from" not in capsys.readouterr().err
    train(tmp_path / "unbound", torch_loader(), wrap=enumerate, kill_at=1)
    assert (
        "give the loader itself to the loop, as in `enumerate(hop.loop(loader))`" in capsys.readouterr().err
    )


@pytest.mark.torch
def test_started_loaders_are_found() -> None:
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(range(4), num_workers=1)
    (found,) = find_started_loaders(Progress(enumerate(loader)))
    assert found._num_workers == 1
    assert find_started_loaders(Progress(loader)) == []
