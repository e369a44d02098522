import json
from pathlib import Path

import pytest
import yaml

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job import tuning_file
from imagekiln.steps.job.tuning_file import (
    MAX_TUNING_ENTRIES,
    MAX_TUNING_FILE_BYTES,
    TuningFile,
    add_tuning_entry,
    parse_tuning_file,
    read_tuning_file,
    read_tuning_file_or_empty,
    tuning_to_yaml,
)
from tests.tuned import entry


def _values(**changes: object) -> dict[str, object]:
    return entry().model_dump(mode="json") | changes


def _parsed(text: str) -> TuningFile:
    return parse_tuning_file(text.encode(), "t.yaml")


def test_what_is_added_is_read_back(tmp_path: Path, store_uri: str) -> None:
    for file in (f"{tmp_path}/new/tuning.yaml", f"{store_uri}/tuning.yaml"):
        first, second = entry(), entry(width=128, batch=1)
        add_tuning_entry(file, first)
        add_tuning_entry(file, second)
        assert read_tuning_file(file).entries == (first, second)


def test_an_entry_takes_the_place_of_the_one_with_its_key(tmp_path: Path) -> None:
    file = str(tmp_path / "t.yaml")
    add_tuning_entry(file, entry(batch=4))
    add_tuning_entry(
        file, entry(batch=8, gpu_gib=79.9)
    )  # a driver that keeps a little more for itself
    assert [each.batch for each in read_tuning_file(file).entries] == [8]


def test_file_says_what_it_is_and_is_read_by_people() -> None:
    text = tuning_to_yaml(TuningFile(entries=(entry(),))).decode()
    assert text.startswith("# What `imagekiln tune` measured.")
    assert yaml.safe_load(text)["version"] == 1
    assert "  batch: 4\n" in text
    assert "null" not in text


def test_json_is_read_too() -> None:
    assert _parsed(json.dumps({"version": 1, "entries": [_values()]})).entries == (entry(),)


def test_no_file_is_missing_or_empty_as_asked(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.yaml")
    with pytest.raises(Missing, match=r"absent\.yaml: no such file"):
        read_tuning_file(absent)
    assert read_tuning_file_or_empty(absent) == TuningFile()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t.yaml: is no tuning file: it has no version. Name one that `imagekiln tune` wrote."),
        (
            "[1]",
            "t.yaml: is no tuning file: it has no version. Name one that `imagekiln tune` wrote.",
        ),
        (
            "a: [",
            "t.yaml: is no tuning file (while parsing a flow node). Correct it, or tune anew.",
        ),
        (
            "version: 2",
            "t.yaml: has version 2, and this Imagekiln reads 1. Use its own, or tune anew.",
        ),
        ("version: 1\nentris: []", 't.yaml: entris is no setting; write "entries".'),
        ("version: 1\nentries: 7", "t.yaml: entries is 7; write a list, such as [one, two]."),
        (
            "!!python/object/apply:os.system [ls]",
            "t.yaml: is no tuning file (could not determine a constructor ",
        ),
    ],
)
def test_what_is_no_tuning_file_is_refused_with_a_sentence(text: str, told: str) -> None:
    with pytest.raises(BadInput) as caught:
        _parsed(text)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batch": 0}, "entries.0.batch is 0; write 1 or more."),
        ({"batch": 3}, "entries.0.batch is 3; write a power of two."),
        ({"batch": 2**40}, "entries.0.batch is 1099511627776; write 256 or less."),
        ({"batch": True}, "entries.0.batch is true or false; write a number."),
        ({"batch": "a"}, 'entries.0.batch is "a"; write a whole number.'),
        ({"width": -64}, "entries.0.width is -64; write 1 or more."),
        (
            {"seconds_per_image": float("nan")},
            "entries.0.seconds_per_image is nan; write a finite number.",
        ),
        ({"seconds_per_image": 0}, "entries.0.seconds_per_image is 0; write more than 0.0."),
        ({"gpu": "a\0"}, "entries.0.gpu has a NUL character; remove it."),
        ({"speed": {"compile": "no"}}, "entries.0.speed.compile is "),
        ({"gpus": 2}, 'entries.0.gpus is no setting; write "gpu".'),
        ({"when": "yesterday"}, "entries.0.when is "),
        (
            {"measured": [{"batch": 1}]},
            "entries.0.measured.0.images_per_second is missing; write it.",
        ),
    ],
    ids=str,
)
def test_wrong_value_is_told_with_its_place(change: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        _parsed(yaml.safe_dump({"version": 1, "entries": [_values(**change)]}))
    assert str(caught.value).startswith(f"t.yaml: {told}")


def test_of_many_mistakes_a_few_are_told() -> None:
    with pytest.raises(BadInput) as caught:
        _parsed(yaml.safe_dump({"version": 1, "entries": [_values(batch=0)] * 100}))
    assert len(caught.value.args) == 5


def test_a_file_of_any_size_and_depth_is_refused_at_once(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"# " + b"a" * MAX_TUNING_FILE_BYTES)
    with pytest.raises(BadInput, match="is larger than"):
        read_tuning_file(str(large))
    with pytest.raises(BadInput, match="is no tuning file"):
        _parsed("version: 1\nentries: " + "[" * 5000)
    with pytest.raises(BadInput, match="at most 2000"):
        _parsed(yaml.safe_dump({"version": 1, "entries": [_values()] * (MAX_TUNING_ENTRIES + 1)}))
    levels = "\n".join(
        f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}]" for n in range(1, 60)
    )  # doubled sixty times
    with pytest.raises(BadInput, match="has another version"):
        _parsed(f"l0: &l0 [a, a]\n{levels}\nversion: *l59")
    with pytest.raises(BadInput, match=r"entries\.0 is a list"):
        _parsed(f"l0: &l0 [a, a]\n{levels}\nversion: 1\nentries: *l59")


def test_a_full_file_takes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_file, "MAX_TUNING_ENTRIES", 1)
    file = str(tmp_path / "t.yaml")
    add_tuning_entry(file, entry())
    add_tuning_entry(file, entry(batch=8))
    with pytest.raises(BadInput, match="has 1 entries, and no more fit"):
        add_tuning_entry(file, entry(width=128))
