"""A script with its settings in a JSON file."""

import json
from pathlib import Path

print(json.dumps(json.loads(Path("config.json").read_text()), sort_keys=True))
