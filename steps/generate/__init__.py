"""Make the missing parts of a shard: images are drawn, encoded, checked and committed."""
