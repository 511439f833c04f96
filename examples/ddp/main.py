"""The same digits, learned by several processes together (PyTorch's DistributedDataParallel on gloo or NCCL).

    hop run --replicas 2 --cpus 1 examples/ddp/main.py -d mnist

Hopyard sets the variables that torchrun would set, so `torchrun --nproc-per-node 2 examples/ddp/main.py`
works as well.
"""

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hopyard as hop

VALIDATION = 1000


def load(name: str) -> tuple[TensorDataset, TensorDataset]:
    """Training and validation digits: images (784,) as floats 0 … 1, and their classes."""
    folder = hop.dataset_path(name)
    images = torch.from_numpy(np.load(folder / "images.npy")).float().div(255).flatten(1)
    labels = torch.from_numpy(np.load(folder / "labels.npy")).long()
    return TensorDataset(images[:-VALIDATION], labels[:-VALIDATION]), TensorDataset(
        images[-VALIDATION:], labels[-VALIDATION:]
    )


def main() -> None:
    cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        if cuda
        else torch.device("cpu")
    )
    dist.init_process_group("nccl" if cuda else "gloo")
    train(device)
    dist.barrier()  # nobody leaves while another still needs him
    dist.destroy_process_group()


def train(device: torch.device) -> None:
    p = hop.params(lr=0.003, batch_size=64, epochs=3, seed=0)
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} on {device}")

    torch.manual_seed(p.seed)
    torch.set_num_threads(1)
    training, validation = load("mnist")
    sampler = DistributedSampler(training, seed=p.seed)
    batches = DataLoader(training, batch_size=p.batch_size // world, sampler=sampler)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=p.lr)
    hop.bind(model=model, optimizer=optimizer)

    for epoch in hop.loop(range(p.epochs)):
        sampler.set_epoch(epoch)  # another order each time, the same split for all ranks
        for images, labels in batches:
            loss = F.cross_entropy(parallel(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over all ranks
            optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            accuracy = evaluate(model, validation, device)
            hop.log(train_loss=mean / world, val_acc=accuracy, step=epoch)
            print(
                f"epoch {epoch + 1}/{p.epochs}  train loss {mean.item() / world:.4f}  validation "
                f"{accuracy:.1%}"
            )
    if rank == 0:
        hop.summary(val_acc=evaluate(model, validation, device))


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    """The share of right answers."""
    images, labels = (tensor.to(device) for tensor in data.tensors)
    return (model(images).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
