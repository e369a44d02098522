"""The plan step: read, validate, deduplicate and order prompt rows, and cut them into shards.

Imports `runs` and what is below it.
"""
