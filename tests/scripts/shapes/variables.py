"""A script with its settings in environment variables."""

import os

from epochs import train

train({"lr": float(os.environ.get("LR", "0.1")), "name": os.getenv("RUN_NAME", "none")})
