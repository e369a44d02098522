"""The commands from a sweep to a hub, killed at random: the dataset is that of an undisturbed one.

`CHAINS` is how many are made, and `CHAIN_SEED` the first seed.
"""

import os
from pathlib import Path

from tests.chain import CANDIDATES, VERSION, Chain
from tests.dataset_hub import dataset_hub
from tests.steps.export.test_loading import load

COUNT = int(os.environ.get("CHAINS", "20"))
SEED = int(os.environ.get("CHAIN_SEED", "0"))
SEEDS = (10, 20, 30)


def test_whatever_is_killed_the_published_dataset_is_the_same(tmp_path: Path) -> None:
    with dataset_hub() as hub:
        chain = Chain(tmp_path, hub, SEEDS)
        undisturbed = chain.make_undisturbed()
        for seed in range(SEED, SEED + COUNT):
            assert chain.make_killed(seed) == undisturbed, chain.log
        rows, streamed, manifest = load(hub.endpoint, tmp_path / "home", [VERSION])
        assert len(rows) == len(streamed) == len(manifest) == 2 * 2 * len(SEEDS)
        assert len({row["sha256"] for row in rows}) == len(rows)
        assert CANDIDATES * len(rows) == chain.planned_images()
