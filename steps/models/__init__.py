"""Facts about a model, its adapters and its LoRAs, without loading them.

The only package besides `export` that imports huggingface_hub. Imports `job` and what is below it.
"""
