"""Stochastic gradient descent with MPI: each process computes a gradient, and all of them average it.

    hop run --launcher mpi --replicas 2 --processes 2 mpi_allreduce.py

It needs the package mpi4py, and Open MPI on the node or the package openmpi.
"""

import os

from mpi4py import MPI

import hopyard as hop

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
slope = 0.0
for step in range(100):
    x = (rank + 1) / size  # the data of this process
    gradient = 2 * (slope - 3) * x * x
    slope -= 0.5 * world.allreduce(gradient) / size
    if rank == 0:
        hop.log(slope=slope, step=step)
print(f"rank {rank} of {size} on {os.environ['HOPYARD_REPLICA']}: slope {slope:.3f}", flush=True)
if rank == 0:
    hop.summary(slope=slope)
