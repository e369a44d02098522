"""Prompts made from templates: the language, wildcard files, and what a template makes of them.

No template runs code, and what it may make is counted before any of it is made.

Imports `storage` and what is below it.
"""
