"""One step of several partitions at once, of a Keras model on any backend: gradients of each, averaged in the
order of partitions.

`train_on_batch` computes gradients and applies them in one go, so the gradients are computed here, as each
backend does it; loss, scaling, clipping, weight decay and schedules stay the model's and the optimiser's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.trainables.protocol import Reduce, average
from hopyard.trainables.torch_gradient_averaging import RandomStreams

GradientPass = Callable[[Any, Any], tuple[list[Any], list[Any]]]
"""From inputs and targets of a batch: the gradients of the trainable variables, and what the others are
afterwards."""


class GradientAveraging:
    """Of one model: what was traced or compiled once is used again."""

    def __init__(self, keras: Any, model: Any) -> None:
        self._keras, self._model = keras, model
        self._trainable_variables = list(model.trainable_variables)
        known = {id(variable) for variable in self._trainable_variables}
        # running means, seeds of layers
        self._other_variables = [variable for variable in model.variables if id(variable) not in known]
        self._float_indices = [
            at for at, variable in enumerate(self._other_variables) if "float" in str(variable.dtype)
        ]
        made = {
            "torch": self._make_torch_pass,
            "tensorflow": self._make_tensorflow_pass,
            "jax": self._make_jax_pass,
        }
        self._gradient_pass: GradientPass = made[keras.backend.backend()]()

    def step(
        self, batches: Sequence[Callable[[], tuple[Any, Any]]], streams: RandomStreams, reduce: Reduce
    ) -> None:
        """Train on one batch of each partition of this process, and of all others.
        Running means of layers are averaged, too; each pass begins with them as they are now."""
        before = [self._to_numpy(variable) for variable in self._other_variables]
        found: list[list[Array]] = []
        after: list[Array] = []
        for at, batch in enumerate(batches):
            self._assign(self._other_variables, before)
            with streams.use(at):
                gradients, left = self._gradient_pass(*batch())
            after = [self._to_numpy(value) for value in left]
            zeros = (
                np.zeros(tuple(variable.shape), dtype=np.float32) for variable in self._trainable_variables
            )
            grads = [
                zero if given is None else self._to_numpy(given)
                for zero, given in zip(zeros, gradients, strict=True)
            ]
            found.append([*grads, *(after[at] for at in self._float_indices)])
        means = list(reduce(average(found)))
        self._apply(
            [self._keras.ops.convert_to_tensor(mean) for mean in means[: len(self._trainable_variables)]]
        )
        for at, mean in zip(self._float_indices, means[len(self._trainable_variables) :], strict=True):
            after[at] = mean
        self._assign(self._other_variables, after)

    def _to_numpy(self, value: Any) -> Array:
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
                self._model.optimizer.apply(gradients, self._trainable_variables)
        else:
            self._model.optimizer.apply(gradients, self._trainable_variables)

    # -- backends --------------------------------------------------------------------------------------------

    def _make_torch_pass(self) -> GradientPass:
        def passed(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            self._model.zero_grad()
            self._loss(self._tensors(inputs), self._tensors(targets)).backward()
            gradients = [variable.value.grad for variable in self._trainable_variables]
            return gradients, [variable.value for variable in self._other_variables]

        return passed

    def _make_tensorflow_pass(self) -> GradientPass:
        import tensorflow as tf

        def computed(inputs: Any, targets: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                loss = self._loss(inputs, targets)
            found = tape.gradient(loss, [variable.value for variable in self._trainable_variables])
            # of an embedding it is sparse
            return [None if one is None else tf.convert_to_tensor(one) for one in found]

        traced = computed if self._model.run_eagerly else tf.function(computed, reduce_retracing=True)

        def passed(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            gradients = traced(self._tensors(inputs), self._tensors(targets))
            return list(gradients), [variable.value for variable in self._other_variables]

        return passed

    def _make_jax_pass(self) -> GradientPass:
        import jax

        def loss_of(
            trained: list[Any], others: list[Any], inputs: Any, targets: Any
        ) -> tuple[Any, list[Any]]:
            state = [
                *zip(self._trainable_variables, trained, strict=True),
                *zip(self._other_variables, others, strict=True),
            ]
            with self._keras.StatelessScope(state_mapping=state, collect_losses=True) as scope:
                loss = self._loss(inputs, targets)
                return loss, [scope.get_current_value(variable) for variable in self._other_variables]

        compiled: Any = jax.grad(loss_of, has_aux=True)
        compiled = compiled if self._model.run_eagerly else jax.jit(compiled)

        def passed(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            values = (
                [variable.value for variable in variables]
                for variables in (self._trainable_variables, self._other_variables)
            )
            gradients, others = compiled(*values, self._tensors(inputs), self._tensors(targets))
            return list(gradients), list(others)

        return passed

    def _tensors(self, arrays: Any) -> Any:
        return self._keras.tree.map_structure(self._keras.ops.convert_to_tensor, arrays)
