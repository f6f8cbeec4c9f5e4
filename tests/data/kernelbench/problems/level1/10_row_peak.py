# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn


class Model(nn.Module):
    """Two outputs, one of them whole numbers."""

    def forward(self, x):
        found = torch.max(x, dim=1)
        return found.values, found.indices


def get_inputs():
    return [torch.randn(128, 300)]


def get_init_inputs():
    return []
