# ruff: noqa
# mypy: ignore-errors
import torch
import torch.nn as nn

M, K, N = 48, 256, 96


class Model(nn.Module):
    def forward(self, left, right):
        return torch.matmul(left, right)


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
