"""Runs published: their images copied into fewer, larger files, with one manifest of all of them.

Imports `dataset`, `aggregate` and what is below them.
"""
