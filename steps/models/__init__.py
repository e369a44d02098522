"""Facts about a model, its adapters and its LoRAs, without loading them.

Imports huggingface_hub, as only `export` does besides, to push. Imports `job` and what is below it.
"""
