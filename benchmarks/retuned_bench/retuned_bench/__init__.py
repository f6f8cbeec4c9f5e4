"""Satellites of Retuned: KernelBench scoring, FlashInfer-Bench exchange, data sets of experiments.

A separate distribution, ``retuned-bench``. `commands` adds its commands to ``retuned``. The
packages import nothing by themselves, so that ``retuned --help`` loads signatures only.
"""
