"""Command line: each command parses its arguments, calls one function and prints the result.

Only this package imports click and cloup. Commands import the functions that they call at run time,
so that help is instant.
"""
