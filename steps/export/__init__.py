"""Export of runs: images copied into fewer, larger files, with one manifest.

Imports `dataset`, `aggregate` and their dependencies.
"""
