"""What a person asks for: settings and their bounds, job and tuning files, messages for mistakes.

Imports `storage` and what is below it.
"""
