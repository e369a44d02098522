"""The same work as a Ray Data job: one actor with the pipeline, `map_batches`, `write_parquet`."""

import io
from pathlib import Path

import numpy as np
import ray
from PIL import Image

from tests.bench.contenders import seeded
from tests.bench.work import Work, call_settings, load_pipeline


class Painter:
    """Loads the pipeline once, then draws batches."""

    def __init__(self, work: Work) -> None:
        """Load the model."""
        self._work = work
        self._pipe = load_pipeline(work)

    def __call__(
        self, batch: dict[str, "np.ndarray[tuple[int], np.dtype[np.object_]]"]
    ) -> dict[str, list[object]]:
        """Draw a batch and encode it as PNG."""
        texts = [str(text) for text in batch["prompt"]]
        generators = [seeded(int(seed)) for seed in batch["seed"]]
        result = self._pipe(
            prompt=texts,
            generator=generators,
            output_type="np",
            **call_settings(self._work),
        )
        pictures = [encode_png(image) for image in result.images]
        return {"prompt": [*texts], "image": [*pictures]}


def encode_png(image: "np.ndarray[tuple[int, int, int], np.dtype[np.float32]]") -> bytes:
    """An image in [0, 1], (height, width, 3), as PNG."""
    pixels = (image * 255).round().astype(np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG", compress_level=1)
    return sink.getvalue()


def write_dataset(texts: list[str], work: Work, folder: Path) -> None:
    """Draw every text and write Parquet files into `folder`."""
    rows = ray.data.from_items([{"prompt": text, "seed": seed} for seed, text in enumerate(texts)])
    drawn = rows.map_batches(
        Painter,
        fn_constructor_args=(work,),
        batch_size=work.batch,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=2,
        num_gpus=1 if work.device == "cuda" else 0,
    )
    drawn.write_parquet(str(folder))
