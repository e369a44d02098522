"""Valid and invalid safetensors files, written by hand for tests without torch."""

import json
from pathlib import Path


def write(
    path: Path, names: tuple[str, ...] = ("unet.to_q.lora_A.weight",), data: bytes = b"\1\2\3\4"
) -> Path:
    """A file with one small tensor of each name. https://github.com/huggingface/safetensors#format"""
    size = len(data)
    tensors = {
        name: {"dtype": "U8", "shape": [size], "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(names)
    }
    return raw(path, json.dumps(tensors).encode(), data * len(names))


def raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A file with this header, which claims to be of this many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        (len(header) if length is None else length).to_bytes(8, "little") + header + data
    )
    return path
