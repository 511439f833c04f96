"""One step of several partitions at once, of a Keras model on any backend: gradients of each, averaged in the
order of partitions.

`train_on_batch` computes gradients and applies them in one go, so the gradients are computed here, as each
backend does it; loss, scaling, clipping, weight decay and schedules stay the model's and the optimiser's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.studies.trainable.protocol import Reduce, average
from hopyard.studies.trainable.torch_together import Streams

Pass = Callable[[Any, Any], tuple[list[Any], list[Any]]]
"""From inputs and targets of a batch: the gradients of the trainable variables, and what the others are
afterwards."""


class Together:
    """Of one model: what was traced or compiled once is used again."""

    def __init__(self, keras: Any, model: Any) -> None:
        self._keras, self._model = keras, model
        self._trained = list(model.trainable_variables)
        known = {id(variable) for variable in self._trained}
        # running means, seeds of layers
        self._others = [variable for variable in model.variables if id(variable) not in known]
        self._floats = [at for at, variable in enumerate(self._others) if "float" in str(variable.dtype)]
        made = {"torch": self._of_torch, "tensorflow": self._of_tensorflow, "jax": self._of_jax}
        self._pass: Pass = made[keras.backend.backend()]()

    def step(
        self, batches: Sequence[Callable[[], tuple[Any, Any]]], streams: Streams, reduce: Reduce
    ) -> None:
        """Train on one batch of each partition of this process, and of all others.
        Running means of layers are averaged, too; each pass begins with them as they are now."""
        before = [self._array(variable) for variable in self._others]
        found: list[list[Array]] = []
        after: list[Array] = []
        for at, batch in enumerate(batches):
            self._assign(self._others, before)
            with streams.of(at):
                gradients, left = self._pass(*batch())
            after = [self._array(value) for value in left]
            zeros = (np.zeros(tuple(variable.shape), dtype=np.float32) for variable in self._trained)
            grads = [
                zero if given is None else self._array(given)
                for zero, given in zip(zeros, gradients, strict=True)
            ]
            found.append([*grads, *(after[at] for at in self._floats)])
        means = list(reduce(average(found)))
        self._apply([self._keras.ops.convert_to_tensor(mean) for mean in means[: len(self._trained)]])
        for at, mean in zip(self._floats, means[len(self._trained) :], strict=True):
            after[at] = mean
        self._assign(self._others, after)

    def _array(self, value: Any) -> Array:
        return np.array(self._keras.ops.convert_to_numpy(value))

    def _assign(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _loss(self, inputs: Any, targets: Any) -> Any:
        given = self._model(inputs, training=True)
        loss = self._model.compute_loss(x=inputs, y=targets, y_pred=given)
        return self._model.optimizer.scale_loss(loss)

    def _apply(self, gradients: list[Any]) -> None:
        if self._keras.backend.backend() == "torch":
            import torch

            with torch.no_grad():
                self._model.optimizer.apply(gradients, self._trained)
        else:
            self._model.optimizer.apply(gradients, self._trained)

    # -- backends
    # ------------------------------------------------------------------------------------------------

    def _of_torch(self) -> Pass:
        def passed(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            self._model.zero_grad()
            self._loss(self._tensors(inputs), self._tensors(targets)).backward()
            gradients = [variable.value.grad for variable in self._trained]
            return gradients, [variable.value for variable in self._others]

        return passed

    def _of_tensorflow(self) -> Pass:
        import tensorflow as tf

        def computed(inputs: Any, targets: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                loss = self._loss(inputs, targets)
            found = tape.gradient(loss, [variable.value for variable in self._trained])
            # of an embedding it is sparse
            return [None if one is None else tf.convert_to_tensor(one) for one in found]

        traced = computed if self._model.run_eagerly else tf.function(computed, reduce_retracing=True)

        def passed(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            gradients = traced(self._tensors(inputs), self._tensors(targets))
            return list(gradients), [variable.value for variable in self._others]

        return passed

    def _of_jax(self) -> Pass:
        import jax

        def loss_of(
            trained: list[Any], others: list[Any], inputs: Any, targets: Any
        ) -> tuple[Any, list[Any]]:
            state = [*zip(self._trained, trained, strict=True), *zip(self._others, others, strict=True)]
            with self._keras.StatelessScope(state_mapping=state, collect_losses=True) as scope:
                loss = self._loss(inputs, targets)
                return loss, [scope.get_current_value(variable) for variable in self._others]

        compiled: Any = jax.grad(loss_of, has_aux=True)
        compiled = compiled if self._model.run_eagerly else jax.jit(compiled)

        def passed(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            values = (
                [variable.value for variable in variables] for variables in (self._trained, self._others)
            )
            gradients, others = compiled(*values, self._tensors(inputs), self._tensors(targets))
            return list(gradients), list(others)

        return passed

    def _tensors(self, arrays: Any) -> Any:
        return self._keras.tree.map_structure(self._keras.ops.convert_to_tensor, arrays)
