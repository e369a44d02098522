"""A local web page that shows the images of runs, from an index of their manifests.

Imports `maintain` and what is below it. Never modifies a run.
"""
