"""What any step needs of its process: signals, progress, threads, text that is safe to show.

Imports nothing else of Imagekiln.
"""
