"""Work on existing runs: verify, retry, reproduce, diff, forget and gc.

Imports every other step.
"""
