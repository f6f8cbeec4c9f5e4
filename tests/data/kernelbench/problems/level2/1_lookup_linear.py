# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn


class Model(nn.Module):
    """Whole numbers in, a table, a linear layer, and a weight that nothing uses."""

    def __init__(self, words, width, out):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.linear = nn.Linear(width, out)
        self.idle = nn.Linear(3, 3)

    def forward(self, ids):
        return torch.relu(self.linear(self.table(ids)))


def get_inputs():
    return [torch.randint(0, 50, (40,))]


def get_init_inputs():
    return [50, 64, 32]
