"""A script with its settings in environment variables."""

import json
import os

print(json.dumps({"lr": float(os.environ.get("LR", "0.1")), "name": os.getenv("RUN_NAME", "none")}))
