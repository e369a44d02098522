"""A run after its end: verified, retried, reproduced, compared, cleaned up.

Imports every other step.
"""
