"""Operators of PyTorch that dispatch to slots."""
