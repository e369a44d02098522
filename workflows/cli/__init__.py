"""The command line. Each command parses, calls one function and prints.

Alone imports click. Imports everything.
"""
