"""A page that shows the images of runs: served on this machine, from an index of the manifests.

Imports `maintain` and what is below it. Changes nothing in a run.
"""
