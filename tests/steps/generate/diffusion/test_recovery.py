"""Drawing that survives failures of models and prompts, which stand-ins raise."""

from collections.abc import Sequence

import pytest
import torch

from imagekiln.steps.generate.diffusion.recovery import MAX_ERROR_CHARS, BatchRecovery
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from tests.runs import image_row, picture

ROWS = [image_row(f"prompt {place}", place) for place in range(10)]


class Model:
    """Draws batches up to `fits`; raises `fault` for batches with the prompt `poison`."""

    def __init__(self, fits: int = 8, poison: str = "", fault: BaseException | None = None) -> None:
        self.calls: list[tuple[list[int], int]] = []
        self._fits, self._poison = fits, poison
        self._fault = fault or ValueError(f"cannot draw {poison!r}")

    def __call__(self, rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:
        self.calls.append(([row.index_in_part for row in rows], size))
        if any(row.parameters.prompt == self._poison for row in rows):
            raise self._fault
        if size > self._fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [picture(row.index_in_part) for row in rows]


def _drawn(rescue: BatchRecovery, rows: Sequence[ImageRow] = ROWS) -> list[DrawnImage]:
    return [picture for batch in rescue.draw_batches(rows) for picture in batch]


@pytest.mark.parametrize("fits", [1, 2, 3, 4, 7])
def test_a_batch_that_does_not_fit_is_halved_and_no_row_is_lost_or_doubled(fits: int) -> None:
    rescue = BatchRecovery(Model(fits), lambda _: 8)
    drawn = _drawn(rescue)
    assert [(each.index_in_part, each.status) for each in drawn] == [
        (place, "ok") for place in range(10)
    ]
    assert rescue.batch_size(ROWS[0]) == max(size for size in (1, 2, 4) if size <= fits)


def test_a_batch_that_does_not_fit_halves_others_of_as_many_pixels_and_no_smaller() -> None:
    planned = {64: 2, 32: 4, 16: 4, 128: 2}
    rescue = BatchRecovery(Model(fits=1), lambda row: planned[row.parameters.width])
    rows = {width: image_row(width=width, height=16) for width in planned}
    _drawn(rescue, [rows[64]] * 2)
    assert rescue.max_pixels == 64 * 16
    assert {width: rescue.batch_size(row) for width, row in rows.items()} == {
        64: 1,
        32: 2,
        16: 4,
        128: 1,
    }


def test_an_image_that_does_not_fit_alone_is_failed_where_others_fit() -> None:
    def draw(rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:  # noqa: ARG001
        if any(row.index_in_part == 1 for row in rows):
            raise torch.OutOfMemoryError("out of memory")
        return [picture(row.index_in_part) for row in rows]

    drawn = _drawn(BatchRecovery(draw, lambda _: 1), ROWS[:3])
    assert [(each.index_in_part, each.status) for each in drawn] == [
        (0, "ok"),
        (1, "failed"),
        (2, "ok"),
    ]
    assert drawn[1].error == "OutOfMemoryError: out of memory"


def test_a_poisoned_prompt_fails_alone_with_its_error() -> None:
    drawn = _drawn(BatchRecovery(Model(poison="prompt 5"), lambda _: 4))
    assert [each.status for each in drawn] == ["ok"] * 5 + ["failed"] + ["ok"] * 4
    assert drawn[5].error == "ValueError: cannot draw 'prompt 5'"


def test_a_long_error_is_cut_and_made_valid_text() -> None:
    (drawn,) = _drawn(
        BatchRecovery(
            Model(poison="prompt 0", fault=ValueError("\udcff" + 10_000 * "x")), lambda _: 4
        ),
        ROWS[:1],
    )
    assert drawn.error is not None
    assert len(drawn.error) == MAX_ERROR_CHARS
    assert drawn.error.encode().startswith(b"ValueError: ?xxx")
