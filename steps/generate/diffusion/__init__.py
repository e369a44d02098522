"""A loaded diffusers pipeline that draws batches.

The only package that imports torch, diffusers, transformers, peft and torchao.
"""
