"""Generate the missing parts of a shard: denoise, encode, check and commit images."""
