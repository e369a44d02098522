import pytest

from tests.tuned import entry


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "sha256:0"},
        {"dtype": "bfloat16"},
        {"speed": {"compile": "off"}},
        {"gpu": "a GPU MIG 1g.10gb"},
        {"gpu_gib": 9.5},
        {"width": 128},
        {"height": 128},
        {"guided": False},
    ],
    ids=str,
)
def test_whatever_decides_the_speed_has_an_entry_of_its_own(change: dict[str, object]) -> None:
    assert entry(**change).tuning_key != entry().tuning_key


def test_what_decides_nothing_is_no_part_of_the_key() -> None:
    assert (
        entry(model="the/same", batch=2, steps=9, seconds_per_image=1.0, versions={}).tuning_key
        == entry().tuning_key
    )
