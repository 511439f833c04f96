"""Three epochs with a checkpoint of the script's own. `kill` names a file that marks the kill as done."""

import json
import os
import signal
from pathlib import Path


def train(values):
    """Prints the values, the first epoch and a loss, and kills its process once after the second epoch.
    The loss is best in the second epoch and for the learning rate 0.3."""
    state, kill = Path("ckpt/epoch.json"), Path("kill")
    begin = json.loads(state.read_text()) + 1 if state.exists() else 0
    print(json.dumps(values, sort_keys=True))
    print("begins at", begin, flush=True)
    groups = (values, *(group for group in values.values() if isinstance(group, dict)))
    distance = abs(next(group["lr"] for group in groups if "lr" in group) - 0.3)
    state.parent.mkdir(exist_ok=True)
    for epoch in range(begin, 3):
        print(f"epoch {epoch} loss {round(distance * (1 + abs(epoch - 1)), 3)}", flush=True)
        state.write_text(json.dumps(epoch))
        if epoch == 1 and kill.exists() and not Path(kill.read_text()).exists():
            Path(kill.read_text()).touch()
            os.kill(os.getpid(), signal.SIGKILL)
