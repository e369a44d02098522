"""Profiles: the bundled ones, and a user's own."""

import tomllib
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile

ROOT = Path(__file__).parents[3]


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


def test_only_pools_that_grow_forbid_nodes_that_failed_a_shard() -> None:
    careful = [name for name in bundled_profiles() if load_profile(name).retries.elsewhere]
    assert careful == ["scale-from-zero"], (
        "elsewhere, a shard that failed on every node would wait for ever"
    )


def test_own_profile_is_like_the_one_it_names_but_for_what_it_says(tmp_path: Path) -> None:
    ours = load_profile(_own(tmp_path, "description: Ours\nlike: h100\ngenerate: {memory: 100}\n"))
    h100 = load_profile("h100")
    assert ours.name == "ours"
    assert ours.generate == h100.generate.model_copy(update={"memory": 100.0})
    assert ours.gpu == h100.gpu


@pytest.mark.parametrize(
    ("name", "bundled"), [("H100", "h100"), ("mig_1g_10gb", "mig-1g-10gb"), ("GPU-4", "gpu-4")]
)
def test_profile_in_another_spelling_is_refused_with_its_name(name: str, bundled: str) -> None:
    with pytest.raises(Missing) as raised:
        load_profile(name)
    assert str(raised.value) == f'cluster.profile is {name!r}; write "{bundled}".'


@pytest.mark.parametrize("name", ["h300", "h10", "a30", "l4s"])
def test_profile_of_another_gpu_is_never_suggested(name: str) -> None:
    with pytest.raises(Missing) as raised:
        load_profile(name)
    profiles = ", ".join(bundled_profiles())
    assert str(raised.value) == (
        f"cluster.profile is {name!r}; write one of {profiles}, or the path of a file."
    )


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
        ("description: x\ngenerate: {memry: 3}\n", "generate.memry"),
        ("description: x\ngpu: {count: 0}\n", "gpu.count"),
        (
            "description: x\ngpu: {resource: nvidia.com/mig-1g.10gb, count: 2}\n",
            "several slices in one pod",
        ),
        (
            "description: x\ncache: {claim: a, host_path: /b}\n",
            "needs one of claim, host_path and image",
        ),
        (
            "description: x\ngenerate: {labels: [{key: a, operator: Exists, values: [b]}]}\n",
            "goes without values",
        ),
        ("description: x\nlike: [h100]\n", "like must name a profile"),
        ("just text", "contains no settings"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_mistake_in_own_profile_is_named_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        load_profile(_own(tmp_path, text))
    assert "ours.yaml" in str(raised.value)


@pytest.mark.parametrize(
    "image",
    [
        "imagekiln-gpu:0.1.0",
        "registry.example.com:5000/team/imagekiln-gpu",
        f"r.io/imagekiln_gpu:1@sha256:{'0a' * 32}",
    ],
)
def test_image_may_have_a_registry_a_tag_and_a_digest(tmp_path: Path, image: str) -> None:
    own = _own(tmp_path, f"description: Ours\ngenerate: {{image: '{image}'}}\n")
    assert load_profile(own).generate.image == image


@pytest.mark.parametrize(
    "image",
    ["", "r.io/Gpu:1", "gpu@sha256:12", f"gpu@sha256:{'A' * 64}", "gpu :1", "https://r.io/a"],
)
def test_image_that_no_registry_has_is_refused(tmp_path: Path, image: str) -> None:
    own = _own(tmp_path, f"description: Ours\ngenerate: {{image: '{image}'}}\n")
    with pytest.raises(BadInput, match=r"write an image such as registry\.example\.com/"):
        load_profile(own)


@pytest.mark.parametrize("name", ["ours.yaml", "folder/ours", "."])
def test_profile_whose_file_is_not_there_is_missing(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(Missing) as raised:
        load_profile(path)
    assert str(raised.value).startswith(f"{path}: no such profile. Write the path of a YAML file")


def test_profile_like_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(f"description: x\nlike: {path}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"ours\.yaml:2: like must name a profile, and none that"):
        load_profile(str(path))
