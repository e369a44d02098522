"""GPU profiles: what a pod asks of the cluster for a GPU.

Imports `steps.job` and the errors.
"""
