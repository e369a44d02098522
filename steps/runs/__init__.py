"""What a run is on disk: keys, schemas, plan.json, shards, parts in three formats, statistics, rounds, the image index.

Imports `models`, `imaging` and what is below them.
"""
