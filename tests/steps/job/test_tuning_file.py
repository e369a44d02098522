"""The tuning file: its entries, and what is said of a wrong one."""

import re
from pathlib import Path

import pytest
import yaml

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.tuning_file import (
    TuningFile,
    add_tuning_entries,
    parse_tuning_file,
    read_tuning_file,
    read_tuning_file_or_empty,
)
from tests.tuned import entry, tuned_file


def _values(**changes: object) -> dict[str, object]:
    return entry().model_dump(mode="json") | changes


def _parsed(text: str) -> TuningFile:
    return parse_tuning_file(text.encode(), "t.yaml")


def test_what_is_added_is_read_back(tmp_path: Path, store_uri: str) -> None:
    for file in (f"{tmp_path}/new/tuning.yaml", f"{store_uri}/tuning.yaml"):
        first, second = entry(), entry(width=128, batch=1)
        add_tuning_entries(file, first)
        add_tuning_entries(file, second)
        assert read_tuning_file(file).entries == (first, second)


def test_an_entry_takes_the_place_of_the_one_with_its_key(tmp_path: Path) -> None:
    file = str(tmp_path / "t.yaml")
    add_tuning_entries(file, entry(batch=4))
    add_tuning_entries(
        file, entry(batch=8, gpu_gib=79.9)
    )  # a driver that keeps a little more for itself
    assert [entry.batch for entry in read_tuning_file(file).entries] == [8]


def test_file_says_what_it_is_and_is_read_by_people(tmp_path: Path) -> None:
    text = Path(tuned_file(tmp_path, entry())).read_text()
    assert text.startswith("# What `imagekiln tune` measured.")
    assert yaml.safe_load(text)["version"] == 1
    assert "  batch: 4\n" in text
    assert "null" not in text


def test_absent_file_is_an_error_or_empty_as_the_caller_asks(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.yaml")
    with pytest.raises(Missing, match=r"absent\.yaml: no such file"):
        read_tuning_file(absent)
    assert read_tuning_file_or_empty(absent) == TuningFile()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "entries[0].batch is 0; it should be greater than or equal to 1."),
        ({"batch": 3}, "entries[0].batch is 3; write a power of two."),
        ({"gpu": "a\0"}, "entries[0].gpu contains a NUL character; remove it."),
        ({"speed": {"compile": "no"}}, "entries[0].speed.compile is "),
        ({"gpus": 2}, "entries[0].gpus is not a setting; write entries[0].gpu."),
        ({"when": "yesterday"}, "entries[0].when is "),
        (
            {"measured": [{"batch": 1}]},
            "entries[0].measured[0].images_per_second is missing; add it.",
        ),
    ],
    ids=str,
)
def test_wrong_value_is_reported_with_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        _parsed(yaml.safe_dump({"version": 1, "entries": [_values(**change)]}))
    assert re.sub(r"^t.yaml:\d+: ", "", str(caught.value)).startswith(message)


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
