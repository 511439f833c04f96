"""A function that Fire makes a command of."""

import json

import fire


def train(lr=0.1, layers=(1,), name="none"):
    print(json.dumps({"layers": layers, "lr": lr, "name": name}))


if __name__ == "__main__":
    fire.Fire(train)
