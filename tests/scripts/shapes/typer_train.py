"""A Typer function: an argument and options, one of them with a name of its own."""

from typing import Annotated

import typer
from epochs import train


def main(
    model: str,
    lr: float = 0.1,
    batch_size: Annotated[int, typer.Option("--size", "-s")] = 64,
    amp: bool = True,
):
    train({"amp": amp, "lr": lr, "model": model, "size": batch_size})


typer.run(main)
