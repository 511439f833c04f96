"""A script with settings of its own that `OmegaConf.from_cli` changes."""

import json

from omegaconf import OmegaConf

settings = OmegaConf.merge({"lr": 0.1, "model": {"dim": 8}}, OmegaConf.from_cli())
print(json.dumps(OmegaConf.to_container(settings), sort_keys=True))
