"""Settings of a job and columns of a prompt row, each with its bounds.

It reads job and tuning files, and has the messages for mistakes in them.

Imports `storage` and what is below it.
"""
