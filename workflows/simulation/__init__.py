"""A run of a job on many GPUs, played through without a cluster: time, cost and limits.

Imports `templates`, `client`'s limits, and below.
"""
