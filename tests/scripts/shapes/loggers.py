"""A training that logs with another library, and saves and loads its own checkpoint."""

import argparse
import json
import os
import signal
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--die-at", type=int, default=-1)
args = parser.parse_args()


def wandb_logger():
    import wandb

    config = {**vars(args), "net": {"width": 3}, "clip": float("inf")}
    run = wandb.init(project="p", config=config, tags=["baseline", "team"], notes="two\nlines")
    run.tags += ("kind",)
    run.define_metric("val/*", step_metric="epoch")
    table = wandb.Table(columns=["a"], data=[[1]])
    yield lambda loss, epoch: run.log({"val": {"loss": loss}, "table": table, "note": "x"}, step=epoch)
    run.summary["final"] = args.lr
    artifact = wandb.Artifact("model", type="model")
    artifact.add_file(str(state))
    run.log_artifact(artifact)
    run.finish()
    with wandb.init(project="p", name="test") as test:
        test.log({"loss": 7.0})


def mlflow_logger():
    import mlflow

    mlflow.set_experiment("p")
    with mlflow.start_run():
        mlflow.set_tags({"kind": "small", "team": "theirs", "mlflow.note.content": "two\nlines"})
        mlflow.log_params({"lr": args.lr, "net.width": 3, "clip": "inf", "code": "007"})
        yield lambda loss, epoch: mlflow.log_metric("val.loss", loss, step=epoch)
        mlflow.log_artifact(str(state))
        with mlflow.start_run(run_name="test", nested=True):
            mlflow.log_metric("loss", 6.0)
            mlflow.log_metric("loss", 7.0)


def tensorboard_logger():
    from tensorboardX import SummaryWriter

    with SummaryWriter("runs/exp__1795618329") as writer:
        yield lambda loss, epoch: writer.add_scalar("val.loss", loss, epoch)
    with SummaryWriter(os.environ["OTHER_LOGS"] + "/test__1795618330") as writer:
        writer.add_scalar("test/loss", 7.0)


state = Path("ckpt/state.json")
state.parent.mkdir(exist_ok=True)
begin = json.loads(state.read_text())["epoch"] + 1 if state.exists() else 0
loggers = {"wandb": wandb_logger, "mlflow": mlflow_logger, "tensorboard": tensorboard_logger}
session = loggers[args.library]()
log = next(session)
for epoch in range(begin, 4):
    log(args.lr * (1 + abs(epoch - 2)), epoch)
    state.write_text(json.dumps({"epoch": epoch}))
    if epoch == args.die_at and begin == 0:
        os.kill(os.getpid(), signal.SIGKILL)
next(session, None)
