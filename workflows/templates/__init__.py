"""Argo objects of a job.

`pod_retries` explains which failures Argo retries.

Only this package imports hera. Imports `profiles` and `objects`.
"""
