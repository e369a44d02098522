"""Prompts that fail for a while: a fault that goes away, as faults do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.keys import manifest_key
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
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


def manifests(uri: str) -> list[dict[str, object]]:
    """Every row of a run's manifest."""
    store = open_store(uri)
    return [
        row for number in range(len(load_plan(store).shards)) for row in _manifest(store, number)
    ]


def image(store: Store, row: dict[str, object]) -> bytes:
    """The bytes of an image, by its manifest row alone."""
    start, size = row["byte_offset"], row["byte_size"]
    assert isinstance(start, int)
    assert isinstance(size, int)
    return store.read(str(row["part"]))[start : start + size]


def _manifest(store: Store, number: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = read_table(store, manifest_key(number)).to_pylist()
    return rows
