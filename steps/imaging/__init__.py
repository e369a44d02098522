"""Pixels to image files and back, what a file says of itself, and measures of pixels.

Imports `job` and what is below it.
"""
