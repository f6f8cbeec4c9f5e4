"""Ten pure stages, one file each: its records and its public functions.

trace -> profile -> drift -> hypothesis -> experiment -> verdict -> proposal -> gate -> swap
-> watch
"""
