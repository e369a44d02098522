"""The stored form of a run: keys, schemas, plan, shards, parts, commits and attempts.

Other packages mostly use `plan.Plan` and `load_plan`, `shard.read_shard`, the image types in
`image` and the object names in `keys`. Imports `models`, `imaging` and their dependencies.
"""
