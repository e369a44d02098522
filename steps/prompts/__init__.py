"""Prompt templates: their parser, wildcard files, and the rendering of prompts.

Templates run no code, and their prompts are counted before any is rendered.

Imports `storage` and what is below it.
"""
