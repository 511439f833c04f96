"""Reports to its output only, as many examples do."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

for epoch in range(1, args.epochs + 1):
    print(f"Train Epoch: {epoch} [0/100 (0%)]\tLoss: {1 / epoch:.6f}")
    print(f"Epoch {epoch} | val loss {abs(args.lr - 0.3) / epoch:.4f} | {12.5:.2f} ms")
