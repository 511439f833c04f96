"""A line, fitted by one process or several, with a learning rate for the real global batch.

    hop run examples/batch/main.py
    hop run --replicas 2 --cpus 1 examples/batch/main.py -p warmup_steps=100

The given values are for a batch of 64 samples, so two processes train half as many steps at twice the rate.
"""

import torch
import torch.distributed as dist

import hopyard as hop


def main() -> None:
    dist.init_process_group("gloo")
    # gradients are averaged over all processes, so all of their samples form one batch
    p = hop.params(lr=0.05, batch_size=64, warmup_steps=20, steps=200, eval_every=50).per_batch(64)
    generator = torch.Generator().manual_seed(dist.get_rank())
    line = torch.nn.Linear(1, 1)
    with torch.no_grad():
        line.weight.zero_(), line.bias.zero_()
    optimizer = torch.optim.SGD(line.parameters(), lr=p.lr)
    for step in range(p.steps):
        x = torch.rand(p.batch_size, 1, generator=generator) * 2 - 1
        loss = (line(x) - (3 * x + 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in line.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for group in optimizer.param_groups:
            group["lr"] = p.lr_at(step)
        optimizer.step()
        if (step + 1) % p.eval_every == 0:
            hop.log(loss=loss, lr=p.lr_at(step), step=step + 1)
    if dist.get_rank() == 0:
        hop.summary(slope=line.weight, offset=line.bias)
        print(f"y = {line.weight.item():.2f} x + {line.bias.item():.2f} after {p.steps} steps")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
