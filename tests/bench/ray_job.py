"""The same work as a Ray Data job: one actor with the pipeline, `map_batches`, `write_parquet`."""

import io
from pathlib import Path

import numpy as np
import ray
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from imagekiln.steps.bundled import local


class Painter:
    """Loads the pipeline once, then draws batches."""

    def __init__(self, steps: int) -> None:
        """Load the bundled model."""
        self._steps = steps
        self._pipe = DiffusionPipeline.from_pretrained(
            local("bundled:shapes"), dtype=torch.float32, use_safetensors=True
        )
        self._pipe.set_progress_bar_config(disable=True)

    def __call__(self, batch: dict[str, "np.ndarray[tuple[int], np.dtype[np.object_]]"]) -> dict[str, list[object]]:
        """Draw a batch and encode it as PNG."""
        texts = [str(text) for text in batch["prompt"]]
        images = self._pipe(
            prompt=texts,
            generator=[torch.Generator().manual_seed(int(seed)) for seed in batch["seed"]],
            num_inference_steps=self._steps,
            guidance_scale=3.0,
            output_type="np",
        ).images
        return {"prompt": [*texts], "image": [png(image) for image in images]}


def png(image: "np.ndarray[tuple[int, int, int], np.dtype[np.float32]]") -> bytes:
    """An image in [0, 1], (height, width, 3), as PNG."""
    sink = io.BytesIO()
    Image.fromarray((image * 255).round().astype(np.uint8)).save(sink, "PNG", compress_level=1)
    return sink.getvalue()


def write_dataset(texts: list[str], batch: int, steps: int, folder: Path) -> None:
    """Draw every text and write Parquet files into `folder`."""
    rows = ray.data.from_items([{"prompt": text, "seed": seed} for seed, text in enumerate(texts)])
    drawn = rows.map_batches(
        Painter, fn_constructor_args=(steps,), batch_size=batch, compute=ray.data.ActorPoolStrategy(size=1), num_cpus=2
    )
    drawn.write_parquet(str(folder))
