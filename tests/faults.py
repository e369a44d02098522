"""Prompts that fail for a while: a fault that goes away, as faults do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.run import open_run, read_shard_manifest
from imagekiln.steps.storage.store import Store


@contextmanager
def failing(*prompts: str) -> Iterator[list[str]]:
    """While the block runs, drawing these prompts raises; gives every prompt that is drawn."""
    drawn: list[str] = []
    draw = Denoiser.draw

    def faulty(
        self: Denoiser, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
    ) -> Sequence[DrawnImage]:
        texts = [row.parameters.prompt for row in rows]
        if bad := [text for text in texts if text in prompts]:
            raise RuntimeError(f"cannot draw {bad[0]!r}")
        drawn.extend(texts)
        return draw(self, rows, size, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Denoiser, "draw", faulty)
        yield drawn


def manifests(uri: str) -> list[dict[str, Any]]:
    """Every row of a run's manifest, by its highest commit."""
    run = open_run(uri)
    return [
        row
        for number in range(len(run.plan.shards))
        for row in read_shard_manifest(run, number).to_pylist()
    ]


def manifest_names(uri: str) -> tuple[str, ...]:
    """The names of a run's manifests, by its highest commit."""
    return open_run(uri).head.commit.manifests


def image(store: Store, row: dict[str, object]) -> bytes:
    """The bytes of an image, by its manifest row alone."""
    start, size = row["byte_offset"], row["byte_size"]
    assert isinstance(start, int)
    assert isinstance(size, int)
    return store.read(str(row["part"]))[start : start + size]
