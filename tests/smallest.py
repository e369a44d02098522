"""The settings that a job cannot do without."""

SMALLEST = {"name": "a", "prompts": "p.parquet", "output": "out", "model": {"id": "bundled:shapes"}}
