"""The plan step: prompt rows are read, validated, deduplicated, ordered and cut into shards.

Imports `runs` and what is below it.
"""
