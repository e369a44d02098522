"""What only a pod does around a step: its request, several GPUs, outputs, and how it ended.

Imports `client` and what is below it.
"""
