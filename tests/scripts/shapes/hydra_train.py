"""A Hydra application with a folder of settings and an interpolation."""

import json

import hydra
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(settings):
    print(json.dumps(OmegaConf.to_container(settings, resolve=True), sort_keys=True))


main()
