"""The aggregate step: parts against the plan, then the manifest, the summary, the verdict and the dataset card.

Imports `runs` and what is below it.
"""
