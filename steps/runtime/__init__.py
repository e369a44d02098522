"""Services for any step: signals, progress, threads, text that is safe to show.

Imports nothing else of Imagekiln.
"""
