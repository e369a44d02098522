"""What any step needs of its process: signals, progress, threads, prefetching, text that is safe to print.

Imports nothing else of Imagekiln.
"""
