"""Profiles: the bundled ones, and a user's own."""

import tomllib
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile

ROOT = Path(__file__).parents[3]
BAD_IMAGES = ("", "r.io/Gpu:1", "gpu@sha256:12", f"gpu@sha256:{'A' * 64}", "https://r.io/a")


def _own(folder: Path, text: str) -> str:
    path = folder / "ours.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", bundled_profiles())
def test_bundled_profile_reads_and_says_what_it_is(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.description


def test_bundled_images_are_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    gpu = load_profile("gpu")
    assert gpu.generate.image == f"imagekiln-gpu:{project['version']}"
    assert gpu.steps.image == f"imagekiln-cpu:{project['version']}"
    # Elsewhere, a shard that failed on every node would wait for ever.
    careful = [name for name in bundled_profiles() if load_profile(name).retries.elsewhere]
    assert careful == ["scale-from-zero"]


def test_own_profile_is_like_the_one_it_names_but_for_what_it_says(tmp_path: Path) -> None:
    ours = load_profile(_own(tmp_path, "description: Ours\nlike: h100\ngenerate: {memory: 100}\n"))
    h100 = load_profile("h100")
    assert ours.name == "ours"
    assert ours.generate == h100.generate.model_copy(update={"memory": 100.0})
    assert ours.gpu == h100.gpu


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("H100", 'write "h100".'),
        ("mig_1g_10gb", 'write "mig-1g-10gb".'),
        # Never another GPU, however alike.
        ("h300", f"write one of {', '.join(bundled_profiles())}, or the path of a file."),
        ("a30", f"write one of {', '.join(bundled_profiles())}, or the path of a file."),
    ],
)
def test_profile_that_is_not_bundled_is_refused_with_the_names_that_are(
    name: str, says: str
) -> None:
    with pytest.raises(Missing) as raised:
        load_profile(name)
    assert str(raised.value) == f"cluster.profile is {name!r}; {says}"


def test_every_mistake_in_own_profile_has_its_line_and_what_to_write(tmp_path: Path) -> None:
    text = "description: x\ngpu:\n  cnt: 2\n  count: 99\ngenerate:\n  memry: 9\nlik: h100\n"
    path = _own(tmp_path, text)
    with pytest.raises(BadInput) as raised:
        load_profile(path)
    assert set(str(raised.value).splitlines()) == {
        f"{path}:3: gpu.cnt is not a setting; write gpu.count.",
        f"{path}:4: gpu.count is 99; it should be less than or equal to 64.",
        f"{path}:6: generate.memry is not a setting; write generate.memory.",
        f"{path}:7: lik is not a setting; write like.",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu: {count: 0}", "gpu.count"),
        ("gpu: {resource: nvidia.com/mig-1g.10gb, count: 2}", "several slices in one pod"),
        ("cache: {claim: a, host_path: /b}", "needs one of claim, host_path and image"),
        ("generate: {labels: [{key: a, operator: Exists, values: [b]}]}", "goes without values"),
        ("like: [h100]", "like must name a profile"),
        ("a: [", "is not valid YAML"),
        *((f"generate: {{image: '{image}'}}", "write an image such as") for image in BAD_IMAGES),
    ],
)
def test_mistake_in_own_profile_is_named_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        load_profile(_own(tmp_path, f"description: x\n{text}\n"))
    assert "ours.yaml" in str(raised.value)


@pytest.mark.parametrize(
    "image",
    ["registry.example.com:5000/team/imagekiln-gpu", f"r.io/imagekiln_gpu:1@sha256:{'0a' * 32}"],
)
def test_image_may_have_a_registry_a_tag_and_a_digest(tmp_path: Path, image: str) -> None:
    own = _own(tmp_path, f"description: Ours\ngenerate: {{image: '{image}'}}\n")
    assert load_profile(own).generate.image == image


@pytest.mark.parametrize("name", ["ours.yaml", "folder/ours", "."])
def test_profile_whose_file_is_not_there_is_missing(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(Missing) as raised:
        load_profile(path)
    assert str(raised.value).startswith(f"{path}: no such profile. Write the path of a YAML file")


def test_profile_like_itself_is_refused(tmp_path: Path) -> None:
    path = _own(tmp_path, f"description: x\nlike: {tmp_path}/ours.yaml\n")
    with pytest.raises(BadInput, match=r"ours\.yaml:2: like must name a profile, and none that"):
        load_profile(path)
