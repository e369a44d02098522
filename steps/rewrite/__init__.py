"""Rewrite prompts by a language model, before a run is planned. `language_model` imports torch.

Imports `plan`, `runs`, `models`, the device of `generate` and what is below them.
"""
