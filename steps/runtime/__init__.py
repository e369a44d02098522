"""Services for any step: signals, progress, threads, sanitized output.

Imports nothing else of Imagekiln.
"""
