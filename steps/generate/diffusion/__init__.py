"""A loaded diffusers pipeline that draws batches.

Alone imports torch, diffusers, transformers, peft and torchao. Knows nothing of the step around it.
"""
