"""Flags of absl."""

from absl import app, flags
from epochs import train

FLAGS = flags.FLAGS
flags.DEFINE_float("lr", 0.1, "The learning rate.")
flags.DEFINE_integer("batch_size", 64, "Samples in a batch.")
flags.DEFINE_bool("amp", False, "Whether half precision is used.")


def main(_argv):
    train({"amp": FLAGS.amp, "batch_size": FLAGS.batch_size, "lr": FLAGS.lr})


app.run(main)
