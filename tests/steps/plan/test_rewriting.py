from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.plan.rewriting import FrozenModel, Rewriting
from imagekiln.steps.storage import open_store

MODEL = FrozenModel("org/model", "0" * 40, "0" * 64, part_prompts=2)


def test_model_that_another_process_has_frozen_meanwhile_is_not_mixed_with(tmp_path: Path) -> None:
    rewriting = Rewriting(open_store(str(tmp_path)), "0")
    other = FrozenModel("org/model", "1" * 40, "1" * 64, part_prompts=2)
    rewriting.freeze_model(other, check_store=False)
    with pytest.raises(TryAgain, match="another process began at the same time"):
        rewriting.freeze_model(MODEL, check_store=False)
    assert rewriting.read_model() == other
