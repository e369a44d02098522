"""A cluster from Python: HTTP, access, status, logs, submission and schedules.

Alone imports requests. Imports `templates` and what is below it.
"""
