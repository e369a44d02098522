"""The Argo objects of a job.

Alone imports hera. Imports `profiles` and `objects`.
"""
