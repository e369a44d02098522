"""What a person asks for: the settings of a job with their bounds, job and tuning files, and messages for mistakes.

Imports `storage` and what is below it.
"""
