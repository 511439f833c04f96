"""A script that knows nothing of Hopyard: `hop run examples/plain/train.py -- --steps 200` tracks it all the
same.

It fits a line by gradient descent, draws a progress bar with carriage returns, and writes TensorBoard files
where the package `tensorboardX` is installed; Hopyard turns those into metrics.
"""

import argparse
import random
import sys
import time

try:
    from tensorboardX import SummaryWriter
except ImportError:
    SummaryWriter = None


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--lr", type=float, default=0.3)
    arguments.add_argument("--pause", type=float, default=0.01, help="seconds to rest after each step")
    given = arguments.parse_args()

    random.seed(0)
    points = [(x / 50, 3 * x / 50 + 1 + random.gauss(0, 0.05)) for x in range(50)]
    slope, offset, loss = 0.0, 0.0, 0.0
    writer = SummaryWriter("runs") if SummaryWriter else None
    for step in range(given.steps):
        errors = [(slope * x + offset - y, x) for x, y in points]
        loss = sum(error**2 for error, _ in errors) / len(points)
        slope -= given.lr * 2 * sum(error * x for error, x in errors) / len(points)
        offset -= given.lr * 2 * sum(error for error, _ in errors) / len(points)
        if writer:
            writer.add_scalar("loss", loss, step)
        done = (step + 1) * 30 // given.steps
        sys.stdout.write(f"\r[{'#' * done}{'.' * (30 - done)}] step {step + 1}/{given.steps} loss {loss:.4f}")
        sys.stdout.flush()
        time.sleep(given.pause)
    if writer:
        writer.close()
    print(f"\ny = {slope:.2f} x + {offset:.2f}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
