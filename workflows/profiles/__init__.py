"""GPU profiles: the requests of a pod for a GPU on different clusters.

Imports `steps.job` and the errors.
"""
