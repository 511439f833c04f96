"""A YAML file of settings."""

from pathlib import Path

import yaml
from loss import log_loss

log_loss(yaml.safe_load(Path("settings.yaml").read_text())["optim"]["lr"])
