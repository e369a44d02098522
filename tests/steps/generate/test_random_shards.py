"""An image's bytes are its own in random shards, where calls fail and pods are killed."""

from pathlib import Path

import pytest

from tests import histories, models, shard_histories

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


@pytest.mark.slow
def test_an_image_has_the_same_bytes_in_any_shard_whatever_fails_in_it(tmp_path: Path) -> None:
    model = histories.plan_model(tmp_path, "sd")
    shard_histories.check_random_histories(model, examples=2)
