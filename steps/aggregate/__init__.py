"""The aggregate step: manifest, summary, verdict and dataset card of a run.

Imports `runs` and what is below it.
"""
