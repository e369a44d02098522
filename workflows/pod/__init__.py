"""Work that only pods do around a step.

`request` reads the job from the workflow's parameters, `workers` runs a process for each of a pod's
GPUs, `outputs` writes what Argo hands to later steps, `outcome` reports how it all ended.
Imports `client` and below.
"""
