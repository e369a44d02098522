"""The report: one HTML page with its pictures.

Imports `aggregate`, but for its step.
"""
