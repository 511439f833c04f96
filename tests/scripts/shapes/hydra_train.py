"""A Hydra application with a folder of settings and an interpolation."""

import hydra
from epochs import train
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(settings):
    train(OmegaConf.to_container(settings, resolve=True))


main()
