"""One step of several partitions at once: gradients of each, averaged in the order of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hopyard.sdk import rng_state
from hopyard.trainables.protocol import Reduce, average
from hopyard.trainables.seeding import seed_generators


class RandomStreams:
    """Random numbers of each partition of a unit. One process that trains several keeps their streams apart,
    so that each draws what it would draw in a process of its own."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = list(seeds)
        self._states: list[Any] = [None] * len(seeds)

    @contextmanager
    def use(self, index: int) -> Iterator[None]:
        """Draw from the stream of the at-th."""
        if len(self._seeds) == 1:
            yield  # the unit's own stream is this one
            return
        if self._states[index] is None:
            seed_generators(self._seeds[index])
        else:
            rng_state.restore(self._states[index])
        yield
        self._states[index] = rng_state.capture()


def average_gradients(
    model: Any, passes: Sequence[Callable[[], Any]], streams: RandomStreams, reduce: Reduce
) -> None:
    """Leave in the model the mean of the gradients of these losses, one of each partition, and of all other
    processes' likewise; and of its buffers of floats, which each pass begins with as they are now."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = list(model.buffers())
    floats = [buffer for buffer in buffers if buffer.is_floating_point()]
    before = [buffer.clone() for buffer in buffers]
    found = []
    for at, loss in enumerate(passes):
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
        model.zero_grad(set_to_none=True)
        with streams.use(at):
            loss().backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        found.append([tensor.detach().cpu().numpy().copy() for tensor in (*grads, *floats)])
    means = [torch.from_numpy(mean) for mean in reduce(average(found))]
    for parameter, mean in zip(parameters, means, strict=False):
        parameter.grad = mean.to(parameter.device)
    with torch.no_grad():
        for buffer, mean in zip(floats, means[len(parameters) :], strict=True):
            buffer.copy_(mean)
