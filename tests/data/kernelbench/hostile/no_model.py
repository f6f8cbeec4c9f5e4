# ruff: noqa
# mypy: ignore-errors
import torch

X = 1
