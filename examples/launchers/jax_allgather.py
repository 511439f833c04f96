"""Processes of JAX that exchange arrays. `initialize` finds the others without arguments.

hop run --launcher jax --replicas 2 jax_allgather.py
"""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import hopyard as hop

jax.distributed.initialize()
rank, size = jax.process_index(), jax.process_count()
squares = multihost_utils.process_allgather(jnp.array([rank * rank], dtype=jnp.float32))
print(f"rank {rank} of {size}: sum {float(squares.sum()):.0f}", flush=True)
if rank == 0:
    hop.summary(sum=float(squares.sum()))
