"""The report: one HTML page with its images.

Imports `aggregate`, except its step.
"""
