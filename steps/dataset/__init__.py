"""Reading runs back: the images that are ok, of one run or of all runs under an output.

Imports `runs` and what is below it; torch and datasets only if a dataset of theirs is asked for.
"""
