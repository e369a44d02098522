"""The command line: each command reads its arguments, calls one function and prints the result.

Alone imports click and cloup. Commands import what they call only when they run, so that help is
instant.
"""
