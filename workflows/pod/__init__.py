"""Work that only pods do around a step.

`request` reads the job from the workflow's parameters, `workers` runs a process for each GPU of a
pod, `outputs` writes what Argo passes to later steps, and `outcome` reports the end of a workflow.
Imports `client` and its dependencies.
"""
