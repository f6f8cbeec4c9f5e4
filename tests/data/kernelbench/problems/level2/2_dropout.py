# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn


class Model(nn.Module):
    """Draws random numbers: no two kernels agree on it."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x)


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
