"""A run as it is stored: keys, schemas, plan, shards, parts, commits, attempts.

Others mostly take `plan.Plan` and `load_plan`, `shard.read_shard`, the vocabulary of one
image in `image`, and the names of objects in `keys`. Imports `models`, `imaging` and what these
stand on.
"""
