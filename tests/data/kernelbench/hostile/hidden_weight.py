# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.secret = torch.randn(8, dtype=torch.float64)

    def forward(self, x):
        return x * self.secret


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
