"""What is done with a run afterwards: verify, retry, reproduce, diff and gc.

Imports every other step.
"""
