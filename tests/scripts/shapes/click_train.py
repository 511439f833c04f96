"""A click command with a flag, and a name that differs from its option."""

import click
from epochs import train


@click.command()
@click.option("--lr", "-l", type=float, default=0.1)
@click.option("--batch-size", "size", type=int, default=64)
@click.option("--amp/--no-amp", default=True)
def main(lr, size, amp):
    train({"amp": amp, "lr": lr, "size": size})


main()
