from imagekiln.steps import settings
from imagekiln.steps.job import Job


def test_groups_are_found_by_path_and_other_settings_are_no_group() -> None:
    assert settings.names(Job, ("shard",)) == ["images", "minutes", "seconds_per_image"]
    assert settings.names(Job, ("name",)) == settings.names(Job, ("nowhere",)) == []


def test_groups_in_a_list_are_found_by_their_place_in_it() -> None:
    assert settings.names(Job, ("gates", "checks", 0)) == ["share", "name", "entry"]
    assert settings.names(Job, ("gates", "checks")) == settings.names(Job, ("carry", 0)) == []
    assert settings.takes(Job, ("gates", "checks", 3, "entry"), str)


def test_members_that_the_user_names_are_found_by_any_name() -> None:
    assert settings.names(Job, ("model", "loras")) == []
    assert settings.names(Job, ("model", "loras", "any")) == ["id", "revision", "weight_name"]
    assert settings.is_named_freely(Job, ("model", "loras"))
    assert not settings.is_named_freely(Job, ("model",))
    assert settings.takes(Job, ("model", "loras", "any", "id"), str)
    assert not settings.takes(Job, ("model", "loras", "any"), str)
    assert settings.description(Job, ("model", "loras", "any")) == "At most 64 letters, digits, dots, - and _."


def test_every_setting_is_listed_once() -> None:
    found = [*settings.everywhere(Job)]
    assert len(found) == len(set(found))
    assert {("name",), ("model", "dtype"), ("limits", "pixels")} <= {*found}
    assert ("model",) not in found


def test_what_a_setting_takes_is_read_from_its_type() -> None:
    texts = [("name",), ("prompts",), ("run_id",), ("device",), ("model", "id"), ("defaults", "sampler")]
    assert all(settings.takes(Job, place, str) for place in texts)
    assert not any(settings.takes(Job, place, str) for place in [("threads",), ("model",), ("carry",), ("nowhere",)])
    assert [place for place in [("prompts",), ("carry",), ("name",)] if settings.takes(Job, place, tuple)] == [
        ("prompts",),
        ("carry",),
    ]


def test_description_is_what_the_setting_says_of_itself() -> None:
    assert settings.description(Job, ("output",)) == "The folder or URI that holds the runs."
    assert settings.description(Job, ("defaults", "steps")) is None
    assert settings.description(Job, ()) is None
