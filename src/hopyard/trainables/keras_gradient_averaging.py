"""One training step of a Keras model on several partitions: their gradients, averaged in the order of
partitions.

`train_on_batch` computes and applies gradients at once, so the gradients are computed here for each backend.
Loss, scaling, clipping, weight decay and schedules are those of the model and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.trainables.protocol import Reduce, average
from hopyard.trainables.torch_gradient_averaging import RandomStreams

GradientPass = Callable[[Any, Any], tuple[list[Any], list[Any]]]
"""Takes inputs and targets of a batch; returns the gradients of the trainable variables, and the new
values of the others."""


class GradientAveraging:
    """Averages gradients for one model; traced or compiled functions are reused."""

    def __init__(self, keras: Any, model: Any) -> None:
        self._keras, self._model = keras, model
        self._trainable_variables = list(model.trainable_variables)
        trainable_ids = {id(variable) for variable in self._trainable_variables}
        # running means and seeds of layers
        self._other_variables = [
            variable for variable in model.variables if id(variable) not in trainable_ids
        ]
        self._float_indices = [
            index for index, variable in enumerate(self._other_variables) if "float" in str(variable.dtype)
        ]
        pass_factories = {
            "torch": self._make_torch_pass,
            "tensorflow": self._make_tensorflow_pass,
            "jax": self._make_jax_pass,
        }
        self._gradient_pass: GradientPass = pass_factories[keras.backend.backend()]()

    def step(
        self, batches: Sequence[Callable[[], tuple[Any, Any]]], streams: RandomStreams, reduce: Reduce
    ) -> None:
        """Trains on one batch of each partition of this process and of all others. Running means of layers
        are averaged too; each pass starts from their current values."""
        old_values = [self._to_numpy(variable) for variable in self._other_variables]
        gradient_lists: list[list[Array]] = []
        new_values: list[Array] = []
        for index, batch in enumerate(batches):
            self._assign(self._other_variables, old_values)
            with streams.use(index):
                gradients, other_values = self._gradient_pass(*batch())
            new_values = [self._to_numpy(value) for value in other_values]
            zeros = (
                np.zeros(tuple(variable.shape), dtype=np.float32) for variable in self._trainable_variables
            )
            grads = [
                zero if gradient is None else self._to_numpy(gradient)
                for zero, gradient in zip(zeros, gradients, strict=True)
            ]
            gradient_lists.append([*grads, *(new_values[index] for index in self._float_indices)])
        means = list(reduce(average(gradient_lists)))
        self._apply(
            [self._keras.ops.convert_to_tensor(mean) for mean in means[: len(self._trainable_variables)]]
        )
        for index, mean in zip(self._float_indices, means[len(self._trainable_variables) :], strict=True):
            new_values[index] = mean
        self._assign(self._other_variables, new_values)

    def _to_numpy(self, value: Any) -> Array:
        return np.array(self._keras.ops.convert_to_numpy(value))

    def _assign(self, variables: Sequence[Any], values: Sequence[Array]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def _loss(self, inputs: Any, targets: Any) -> Any:
        outputs = self._model(inputs, training=True)
        loss = self._model.compute_loss(x=inputs, y=targets, y_pred=outputs)
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
        def run_pass(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            self._model.zero_grad()
            self._loss(self._tensors(inputs), self._tensors(targets)).backward()
            gradients = [variable.value.grad for variable in self._trainable_variables]
            return gradients, [variable.value for variable in self._other_variables]

        return run_pass

    def _make_tensorflow_pass(self) -> GradientPass:
        import tensorflow as tf

        def compute(inputs: Any, targets: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                loss = self._loss(inputs, targets)
            gradients_or_none = tape.gradient(
                loss, [variable.value for variable in self._trainable_variables]
            )
            # the gradient of an embedding is sparse
            return [
                None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients_or_none
            ]

        traced = compute if self._model.run_eagerly else tf.function(compute, reduce_retracing=True)

        def run_pass(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            gradients = traced(self._tensors(inputs), self._tensors(targets))
            return list(gradients), [variable.value for variable in self._other_variables]

        return run_pass

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

        def run_pass(inputs: Any, targets: Any) -> tuple[list[Any], list[Any]]:
            values = (
                [variable.value for variable in variables]
                for variables in (self._trainable_variables, self._other_variables)
            )
            gradients, others = compiled(*values, self._tensors(inputs), self._tensors(targets))
            return list(gradients), list(others)

        return run_pass

    def _tensors(self, arrays: Any) -> Any:
        return self._keras.tree.map_structure(self._keras.ops.convert_to_tensor, arrays)
