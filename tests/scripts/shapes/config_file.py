"""A script with its settings in a JSON file."""

import json
from pathlib import Path

from epochs import train

train(json.loads(Path("config.json").read_text()))
