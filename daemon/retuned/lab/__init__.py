"""Lab parts of an experiment: contract, compilers, harness, oracle and statistics.

The lab measures and does not decide: decisions are in ``retuned.stages.verdict``. Candidates run in
killable children that hold neither the expected outputs nor the verdict.
"""
