"""The Argo objects of a job.

Which failures Argo retries: `pod_retries`.

Alone imports hera. Imports `profiles` and `objects`.
"""
