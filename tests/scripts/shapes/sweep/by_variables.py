"""Environment variables."""

import os

from loss import log_loss

log_loss(float(os.environ.get("LR", "9")))
