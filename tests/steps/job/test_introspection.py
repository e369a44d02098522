"""The settings of a job by their paths."""

from imagekiln.steps.job.introspection import (
    accepts_type,
    has_user_defined_keys,
    iter_setting_paths,
    setting_description,
    setting_names,
)
from imagekiln.steps.job.job import Job


def test_groups_have_settings_and_other_settings_have_none() -> None:
    assert setting_names(Job, ("shard",)) == ["images", "minutes", "seconds_per_image"]
    assert setting_names(Job, ("name",)) == setting_names(Job, ("nowhere",)) == []


def test_groups_in_a_list_are_found_by_their_index() -> None:
    assert setting_names(Job, ("gates", "checks", 0)) == ["share", "name", "entry"]
    assert setting_names(Job, ("gates", "checks")) == setting_names(Job, ("carry", 0)) == []
    assert accepts_type(Job, ("gates", "checks", 3, "entry"), str)


def test_members_that_the_user_names_are_found_by_any_name() -> None:
    assert setting_names(Job, ("model", "loras")) == []
    assert setting_names(Job, ("model", "loras", "any")) == ["id", "revision", "weight_name"]
    assert has_user_defined_keys(Job, ("model", "loras"))
    assert not has_user_defined_keys(Job, ("model",))
    assert accepts_type(Job, ("model", "loras", "any", "id"), str)
    assert not accepts_type(Job, ("model", "loras", "any"), str)
    assert (
        setting_description(Job, ("model", "loras", "any"))
        == "At most 64 letters, digits, dots, hyphens and underscores."
    )


def test_every_setting_is_listed_once() -> None:
    paths = [*iter_setting_paths(Job)]
    assert len(paths) == len(set(paths))
    assert {("name",), ("model", "dtype"), ("limits", "failed_share")} <= {*paths}
    assert ("model",) not in paths


def test_what_a_setting_takes_is_read_from_its_type() -> None:
    texts = [
        ("name",),
        ("prompts",),
        ("run_id",),
        ("device",),
        ("model", "id"),
        ("defaults", "sampler"),
    ]
    assert all(accepts_type(Job, path, str) for path in texts)
    assert not any(
        accepts_type(Job, path, str)
        for path in [("skip_existing",), ("model",), ("carry",), ("nowhere",)]
    )
    assert [
        path for path in [("prompts",), ("carry",), ("name",)] if accepts_type(Job, path, tuple)
    ] == [
        ("prompts",),
        ("carry",),
    ]


def test_description_is_what_the_setting_says_of_itself() -> None:
    assert setting_description(Job, ("output",)) == "The folder or URI that holds the runs."
    assert setting_description(Job, ("defaults", "sampler")) is None
    assert setting_description(Job, ()) is None
