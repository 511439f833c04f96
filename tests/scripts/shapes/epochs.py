"""Three epochs with a checkpoint of the script's own. `kill` names a file that marks the kill as done."""

import json
import os
import signal
from pathlib import Path


def train(values):
    """Prints the values and the first epoch, and kills its process once in the second one."""
    state, kill = Path("ckpt/epoch.json"), Path("kill")
    begin = json.loads(state.read_text()) + 1 if state.exists() else 0
    print(json.dumps(values, sort_keys=True))
    print("begins at", begin, flush=True)
    state.parent.mkdir(exist_ok=True)
    for epoch in range(begin, 3):
        state.write_text(json.dumps(epoch))
        if epoch == 1 and kill.exists() and not Path(kill.read_text()).exists():
            Path(kill.read_text()).touch()
            os.kill(os.getpid(), signal.SIGKILL)
