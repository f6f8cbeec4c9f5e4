# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn

open("/tmp/retuned-kernelbench-was-here", "w").write("x")


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
