"""What an experiment is made of: contract, compilers, harness, oracle and statistics.

The lab measures and never decides: decisions are ``retuned.stages.verdict``. Candidates run in
killable children that hold neither the expected answers nor the verdict.
"""
