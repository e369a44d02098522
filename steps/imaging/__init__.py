"""Image codecs, metadata and signatures of image files, and measures of pixels.

Imports `job` and what is below it.
"""
