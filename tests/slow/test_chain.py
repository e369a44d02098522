"""The commands from a sweep to a hub, killed at random: the dataset is that of an undisturbed one.

`CHAINS` is how many are made, and `CHAIN_SEED` the first seed.
"""

import os
from pathlib import Path

from tests.chain import Chain
from tests.dataset_hub import dataset_hub

COUNT = int(os.environ.get("CHAINS", "20"))
SEED = int(os.environ.get("CHAIN_SEED", "0"))


def test_whatever_is_killed_the_published_dataset_is_the_same(tmp_path: Path) -> None:
    with dataset_hub() as hub:
        chain = Chain(tmp_path, hub)
        undisturbed = chain.make_undisturbed()
        assert undisturbed.version
        for seed in range(SEED, SEED + COUNT):
            published = chain.make_killed(seed)
            assert published.run == undisturbed.run, chain.log
            assert published.export == undisturbed.export, chain.log
            assert published.version == undisturbed.version, chain.log
