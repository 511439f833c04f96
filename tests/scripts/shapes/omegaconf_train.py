"""A script with settings of its own that `OmegaConf.from_cli` changes."""

from epochs import train
from omegaconf import OmegaConf

settings = OmegaConf.merge({"lr": 0.1, "model": {"dim": 8}}, OmegaConf.from_cli())
train(OmegaConf.to_container(settings))
