# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn


class Model(nn.Module):
    """Two inputs and a number."""

    def forward(self, a, b, factor):
        return a * factor + torch.tanh(b)


def get_inputs():
    return [torch.randn(64, 512), torch.randn(64, 512), 0.5]


def get_init_inputs():
    return []
