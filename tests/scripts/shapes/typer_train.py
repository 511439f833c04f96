"""A Typer function: an argument and options, one of them with a name of its own."""

import json
from typing import Annotated

import typer


def main(
    model: str,
    lr: float = 0.1,
    batch_size: Annotated[int, typer.Option("--size", "-s")] = 64,
    amp: bool = True,
):
    print(json.dumps({"amp": amp, "lr": lr, "model": model, "size": batch_size}))


typer.run(main)
