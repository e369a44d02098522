"""The plan step: prompt rows are read, checked, identified, deduplicated, ordered, cut into shards and frozen.

Imports `runs` and what is below it.
"""
