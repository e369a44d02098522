"""The report of a run: an HTML page with images.

Imports `aggregate`, except its step.
"""
