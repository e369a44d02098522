"""Settings of a job and columns of a prompt row, with their bounds.

This package reads job and tuning files, and reports mistakes in them.

Imports `storage` and what is below it.
"""
