"""A frozen backbone before the models of all trials: its outputs are computed once per partition and stored
on the node.

Their key consists of the partition's key, the backbone's weights and structure, and the source of the
transform: another backbone has other features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import blake2b
from typing import IO, Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.build_once import build_once
from hopyard.datasets.partitions.memory_budget import DEFAULT_BUDGET, budget_bytes
from hopyard.datasets.partitions.npy_layout import read_npz_layout
from hopyard.datasets.partitions.partition import Partition
from hopyard.datasets.partitions.reader import ArrayReader
from hopyard.datasets.partitions.seeded_order import derive_seed
from hopyard.errors import SpecError
from hopyard.trainables.config import Config
from hopyard.trainables.seeding import seeded_generators
from hopyard.trainables.torch_data import as_inputs, as_targets, as_tensor

_BATCH_ROWS = 256


class FrozenBackbone:
    """make() -> nn.Module. transform: as in TorchTrainable; called with a config without parameters."""

    def __init__(self, make: Callable[[], Any], transform: Callable[..., Any] | None) -> None:
        self._make_module, self._transform = make, transform
        self._module: Any = None
        self._digest = ""
        self._cached_features: dict[str, Partition] = {}

    def module(self, device: Any) -> Any:
        """Returns the frozen backbone on the device."""
        if self._module is None:
            # so that a backbone with random weights is the same on all nodes, too
            with seeded_generators(derive_seed("trunk")):
                module = self._make_module()
            self._module = module.eval().requires_grad_(False).to(device)
            self._digest = _digest(module, self._transform)
        return self._module

    def features(self, partition: Partition, device: Any) -> Partition:
        """Returns the partition with columns x, the outputs of the backbone, and y."""
        module = self.module(device)
        name = blake2b(f"{partition.key}\0{self._digest}".encode(), digest_size=32).hexdigest()
        key = name if partition.key else f"{id(partition)}"
        if key not in self._cached_features:
            self._cached_features[key] = partition.like(
                ArrayReader(self._arrays(partition, module, device, name)), what=f"features {self._digest}"
            )
        return self._cached_features[key]

    def _arrays(self, partition: Partition, module: Any, device: Any, name: str) -> dict[str, Array]:
        if partition.folder is None or not partition.key:
            return self._compute(partition, module, device)

        def write(file: IO[bytes]) -> None:
            arrays: dict[str, Any] = self._compute(partition, module, device)
            np.savez(file, **arrays)

        path = build_once(
            partition.folder / "features" / f"{name}.npz",
            write,
            is_valid=lambda path: _is_complete(path.parent, path.name),
        )
        stored = read_npz_layout(path.parent, path.name)
        size = sum(layout.row_bytes * len(partition) for layout in stored.values())
        if size > budget_bytes(DEFAULT_BUDGET, partition.of):
            return {column: layout.memory_map(path.parent) for column, layout in stored.items()}
        with np.load(path) as archive:
            return {column: archive[column] for column in archive.files}

    def _compute(self, partition: Partition, module: Any, device: Any) -> dict[str, Array]:
        import torch

        result: dict[str, Array] = {}
        offset = 0
        with torch.no_grad():
            for batch in partition.batches(_BATCH_ROWS):
                tensors = {column: as_tensor(array, device) for column, array in batch.items()}
                inputs, targets = (
                    self._transform(tensors, Config({}), False)
                    if self._transform
                    else (tensors["x"], tensors["y"])
                )
                outputs = module(*inputs) if isinstance(inputs, tuple) else module(as_inputs(inputs))
                if not torch.is_tensor(outputs) or not torch.is_tensor(targets):
                    raise SpecError(
                        f"the trunk returned {type(outputs).__name__} for targets {type(targets).__name__}",
                        hints=("both must be tensors",),
                    )
                for column, rows in (("x", outputs), ("y", as_targets(targets))):
                    if column not in result:
                        result[column] = np.empty(
                            (len(partition), *rows.shape[1:]), dtype=rows.cpu().numpy().dtype
                        )
                    result[column][offset : offset + len(rows)] = rows.cpu().numpy()
                offset += len(targets)
        return result


def _is_complete(folder: Any, name: str) -> bool:
    try:
        return bool(read_npz_layout(folder, name))
    except SpecError:
        return False


def _digest(module: Any, transform: Callable[..., Any] | None) -> str:
    import torch

    digest = blake2b(repr(module).encode(), digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    if transform is not None:
        try:
            digest.update(inspect.getsource(transform).encode())
        except (OSError, TypeError):  # defined in a shell: only its byte code is available
            digest.update(getattr(getattr(transform, "__code__", None), "co_code", b""))
    return digest.hexdigest()
