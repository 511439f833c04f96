"""A linear model that several processes train together with PyTorch, on CPUs.

    hop run --launcher torchrun --replicas 2 --processes 2 torch_ddp.py

torchrun starts the processes of each replica. On GPUs leave out `--processes`, and use the backend `nccl`.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hopyard as hop

p = hop.params(steps=50, lr=0.1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
for step in range(p.steps):
    x = torch.rand(64, 1)
    loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        hop.log(loss=loss.item(), step=step)
slope = model.module.weight.item()
print(
    f"rank {rank} of {dist.get_world_size()} on {os.environ['HOPYARD_REPLICA']}: slope {slope:.4f}",
    flush=True,
)
if rank == 0:
    hop.summary(loss=loss.item())
dist.barrier()
dist.destroy_process_group()
