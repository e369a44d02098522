"""Work on a run after it ended: verify, retry, reproduce, diff and gc.

Imports every other step.
"""
