"""What is known of a model, its adapters and its LoRAs without loading them.

Alone imports huggingface_hub. Imports `job` and what is below it.
"""
