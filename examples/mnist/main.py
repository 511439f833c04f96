"""A small convolutional network on 5,000 MNIST digits: 96% to 97% in about ten seconds on a CPU.

    hop run examples/mnist/main.py -d mnist
    hop run examples/mnist/main.py -d mnist -p lr=0.01 -p epochs=3

`python examples/mnist/main.py` works too: it is recorded offline, and `hop sync` brings it in later.
"""

import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hopyard as hop

VALIDATION = 1000  # the last so many digits, which the network never trains on


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(24 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(N, 1, 28, 28), 0 … 1, to the scores (N, 10) of the classes."""
        return self.layers(images)


def load(name: str) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) as floats 0 … 1, and their classes (N,)."""
    folder = hop.dataset_path(name)
    images = torch.from_numpy(np.load(folder / "images.npy")).float().div(255).unsqueeze(1)
    return images, torch.from_numpy(np.load(folder / "labels.npy")).long()


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean loss and share of right answers."""
    model.eval()
    scores = model(images)
    return F.cross_entropy(scores, labels).item(), (scores.argmax(1) == labels).float().mean().item()


def main() -> None:
    p = hop.params(lr=0.002, batch_size=64, epochs=8, seed=0)
    torch.manual_seed(p.seed)
    torch.set_num_threads(1)  # in a network this small, several threads mostly wait for each other
    images, labels = load("mnist")
    train, validation = (
        (images[:-VALIDATION], labels[:-VALIDATION]),
        (images[-VALIDATION:], labels[-VALIDATION:]),
    )

    model = Digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=p.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, p.lr * 2, epochs=p.epochs, steps_per_epoch=-(-len(train[0]) // p.batch_size)
    )

    @torch.no_grad()
    def predict(image: Tensor) -> Tensor:
        """The probability of each class for one image (28, 28), 0 … 1."""
        model.eval()
        return model(image.reshape(1, 1, 28, 28)).softmax(1)[0]

    hop.bind(model=model, optimizer=optimizer, schedule=schedule, infer=predict)
    for epoch in hop.loop(range(p.epochs)):
        began, losses = time.perf_counter(), []
        model.train()
        for batch in torch.randperm(len(train[0])).split(p.batch_size):
            loss = F.cross_entropy(model(train[0][batch]), train[1][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        train_loss = sum(losses) / len(losses)
        loss_now, accuracy = evaluate(model, *validation)
        hop.log(train_loss=train_loss, val_loss=loss_now, val_acc=accuracy, step=epoch)
        print(
            f"epoch {epoch + 1}/{p.epochs}  train loss {train_loss:.4f}  validation {loss_now:.4f}, "
            f"{accuracy:.1%}  {time.perf_counter() - began:.1f} s"
        )
    hop.summary(val_acc=evaluate(model, *validation)[1])


if __name__ == "__main__":
    main()
