"""A loaded diffusers pipeline that generates batches of images.

The only package that imports torch, diffusers, transformers, peft and torchao.
"""
