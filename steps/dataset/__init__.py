"""Reading runs: the images that are ok, of one run or of all runs in an output.

Imports `runs` and its dependencies. torch and datasets are imported only for their datasets.
"""
