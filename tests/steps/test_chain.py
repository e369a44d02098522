"""The commands from a sweep to a hub, each killed once: many more are in `tests/slow`."""

from pathlib import Path

from tests.chain import Chain
from tests.dataset_hub import dataset_hub


def test_a_sweep_whose_commands_are_killed_is_published_as_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    with dataset_hub() as hub:
        chain = Chain(tmp_path, hub)
        undisturbed = chain.make_undisturbed()
        assert chain.make_killed(seed=1, max_kills=1) == undisturbed, chain.log
