"""The generate step: the missing parts of a shard are drawn, encoded, checked and committed.

Tuning draws the same way.

Imports `runs` and what is below it.
"""
