"""Memory that ran out: whether another attempt may help, and what the sentence says."""

from collections.abc import Sequence

import pytest
import torch

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion.device import explain_device
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from tests.runs import image_row, picture

GIB = 2**30
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _with_memory(monkeypatch: pytest.MonkeyPatch, *, free: float, own: float) -> None:
    """A GPU of 40 GiB, of which this process has reserved some."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * GIB), 40 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(own * GIB))


def test_memory_that_a_neighbour_holds_may_be_free_at_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_memory(monkeypatch, free=1, own=8)
    failure = explain_device("some/model", FULL)
    assert isinstance(failure, TryAgain)
    assert "other processes hold 31.0 of its 40.0 GiB" in str(failure)


def test_memory_that_this_process_has_alone_runs_out_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_memory(monkeypatch, free=0.5, own=39)
    failure = explain_device("some/model", FULL)
    assert isinstance(failure, BadInput)
    assert "this process has all of its 40.0 GiB. Choose a larger GPU" in str(failure)


def _draw_up_to(side: int, drawn: Sequence[ImageRow]) -> list[str]:
    """The statuses of rows where images of more than this side do not fit."""

    def draw(rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:  # noqa: ARG001
        if any(row.parameters.width > side for row in rows):
            raise FULL
        return [picture(row.index_in_part) for row in rows]

    recovery = BatchRecovery(draw, lambda _: 2, usual_pixels=16 * 16)
    return [recovery.draw_prefix([row])[0].status for row in drawn]


def test_image_larger_than_the_jobs_own_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_memory(monkeypatch, free=1, own=38)
    rows = [image_row(width=64, height=64), image_row(), image_row(width=64, height=64)]
    assert _draw_up_to(16, rows) == ["failed", "ok", "failed"]


def test_image_of_the_jobs_own_size_that_never_fits_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_memory(monkeypatch, free=1, own=38)
    with pytest.raises(BadInput, match=r"not even one image fits .* of 16 x 16 pixels .* smaller"):
        _draw_up_to(8, [image_row()])


def test_image_fails_for_no_neighbour_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_memory(monkeypatch, free=1, own=8)
    with pytest.raises(TryAgain, match="other processes hold"):
        _draw_up_to(16, [image_row(), image_row(width=64, height=64)])
