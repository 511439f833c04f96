"""Overrides of Hydra."""

import hydra
from loss import log_loss


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(settings):
    log_loss(settings.optim.lr)


main()
