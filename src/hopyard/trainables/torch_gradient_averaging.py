"""One training step on several partitions: their gradients, averaged in the order of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hopyard.sdk import rng_state
from hopyard.trainables.protocol import Reduce, average
from hopyard.trainables.seeding import seed_generators


class RandomStreams:
    """The random numbers of each partition of a unit. One process that trains several partitions keeps their
    streams separate, so that each draws the same numbers as in a process of its own."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = list(seeds)
        self._states: list[Any] = [None] * len(seeds)

    @contextmanager
    def use(self, index: int) -> Iterator[None]:
        """Draws from the stream of the partition at `index`."""
        if len(self._seeds) == 1:
            yield  # the only stream is the unit's own
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
    """Sets the model's gradients to the mean over the losses of all partitions, here and in other processes.

    The floating point buffers are averaged too. Each pass starts from their current values.
    """
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    buffers = list(model.buffers())
    floats = [buffer for buffer in buffers if buffer.is_floating_point()]
    old_buffers = [buffer.clone() for buffer in buffers]
    gradient_lists = []
    for index, loss in enumerate(passes):
        with torch.no_grad():
            for buffer, value in zip(buffers, old_buffers, strict=True):
                buffer.copy_(value)
        model.zero_grad(set_to_none=True)
        with streams.use(index):
            loss().backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        gradient_lists.append([tensor.detach().cpu().numpy().copy() for tensor in (*grads, *floats)])
    means = [torch.from_numpy(mean) for mean in reduce(average(gradient_lists))]
    for parameter, mean in zip(parameters, means, strict=False):
        parameter.grad = mean.to(parameter.device)
    with torch.no_grad():
        for buffer, mean in zip(floats, means[len(parameters) :], strict=True):
            buffer.copy_(mean)
