"""A function that Fire makes a command of."""

import fire
from epochs import train


def fit(lr=0.1, layers=(1,), name="none"):
    train({"layers": layers, "lr": lr, "name": name})


if __name__ == "__main__":
    fire.Fire(fit)
