"""Reading a job: from a file and `--set`, with the place of every mistake."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import read_job

JOB = """\
name: test
prompts: p.parquet
output: out
model:
  id: bundled:shapes
  dtype: float32
"""


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _read(text: str | bytes, *changes: str) -> Job:
    Path("job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_job("job.yaml", changes)


def _message(text: str | bytes, *changes: str) -> str:
    with pytest.raises(BadInput) as caught:
        _read(text, *changes)
    return str(caught.value)


def test_job_file_is_read_as_written() -> None:
    job = _read(JOB + "carry: [a, b]\ndefaults: {steps: 12, guidance: 1e1}\n")
    assert (job.name, job.prompt_patterns, job.output, job.model.id) == (
        "test",
        ("p.parquet",),
        "out",
        "bundled:shapes",
    )
    assert (job.carry, job.defaults.steps, job.defaults.guidance) == (("a", "b"), 12, 10.0)


def test_every_mistake_is_reported_at_its_own_line() -> None:
    assert _message(
        JOB.replace("float32", "bf16") + "defaults:\n  steps: 0\n  width: -1\nunknown: 1\n"
    ).splitlines() == [
        "job.yaml:6: model.dtype is \"bf16\"; it should be 'float32', 'bfloat16' or 'float16'.",
        "job.yaml:8: defaults.steps is 0; it should be greater than or equal to 1.",
        "job.yaml:9: defaults.width is -1; it should be greater than or equal to 1.",
        "job.yaml:10: unknown is not a setting; remove it.",
    ]


def test_setting_that_is_set_twice_is_refused_at_the_second() -> None:
    assert _message(JOB + "name: again\n") == (
        "job.yaml:7: name is already set at job.yaml:1. Remove one of them."
    )
    assert _message(JOB + "defaults:\n  seed: 1\n  seed: 2\n") == (
        "job.yaml:9: defaults.seed is already set at job.yaml:8. Remove one of them."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            b"",
            "job.yaml: contains no settings. "
            "Write name, prompts, output and model, each as `key: value`.",
        ),
        (b"- a\n- b\n", "job.yaml: contains no settings."),
        (
            b"a: [1\nb: 2\n",
            "job.yaml:2: is not valid YAML (expected ',' or ']', but got ':'). Correct the syntax.",
        ),
        (
            b"\tname: x\n",
            "job.yaml:1: is not valid YAML (found character '\\t' that cannot start any token).",
        ),
        (
            b"name: a\n---\nname: b\n",
            "job.yaml:2: is not valid YAML (but found another document). Correct the syntax.",
        ),
        (
            b"PAR1\x15\x04\xf0\x9f",
            "job.yaml: is not UTF-8 text. Choose a job file.",
        ),
    ],
)
def test_content_that_is_not_a_job_is_reported_in_one_sentence(text: bytes, message: str) -> None:
    assert _message(text).startswith(message)
    assert "\n" not in _message(text)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [true]", "!!python/name:os.system"]
)
def test_yaml_runs_no_code(tag: str) -> None:
    assert "could not determine a constructor" in _message(
        JOB.replace("name: test", f"name: {tag}")
    )


def test_key_of_aliases_of_aliases_is_refused_before_it_fills_memory() -> None:
    bomb = "".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]\n" for n in range(1, 30))
    message = _message(f"{JOB}k0: &k0 [x]\n{bomb}? [*k29]\n: 1\n")
    assert "is not valid YAML (found unhashable key)" in message


def test_file_of_any_length_is_refused_before_it_fills_memory() -> None:
    with pytest.raises(BadInput, match="has more than the 1048576 bytes of any settings"):
        read_job("/dev/zero")


@pytest.mark.parametrize(
    "uri",
    [
        "https://user:word@example.com/p.csv",
        "https://ghp_0123456789@example.com/p.csv",
        "https://user:pass word@example.com/p.csv",
        "https://user:p@ss@word@example.com/p.csv",
        "s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@bucket/p.csv",
        "s3://AKIAIOSFODNN7EXAMPLE:wJalr/XUtn/FEMI@bucket/p.csv",
        "https://b.s3.amazonaws.com/p.csv?X-Amz-Expires=9&X-Amz-Signature=wJalrXUtnFEMI",
        "https://example.com/p.csv?a=b&access_token=wJalrXUtnFEMI",
        "https://example.com/p.csv?a=b;access_token=wJalrXUtnFEMI",
        "https://a.blob.core.windows.net/c/p.csv?sv=1&sig=wJalrXUtnFEMI",
    ],
)
def test_credentials_in_a_location_are_refused_and_not_repeated(uri: str) -> None:
    for setting in ("prompts", "output", "batch.tuning", "model.id", "model.config"):
        message = _message(JOB, f"{setting}={uri}")
        assert message.startswith(f"--set {setting}: {setting} contains credentials, which plans, ")
        assert "word" not in message
        assert "EMI" not in message
    message = _message(JOB, f"prompts=[a.csv, '{uri}']")
    assert message.startswith("--set prompts: prompts[1] contains credentials")


@pytest.mark.parametrize(
    "uri",
    [
        "abfs://container@account.dfs.core.windows.net/p.csv",
        "hf://datasets/org/name@main/p.csv",
        "s3://bucket/token=a/part-?.parquet",
        "https://example.com/a@b/p.csv?version=2&page=token",
        "https://example.com:8080/a@b/p.csv",
        "https://[2600::1]:8080/a@b/p.csv",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/a@b.csv",
    ],
)
def test_location_without_credentials_is_taken(uri: str) -> None:
    assert _read(JOB, f"prompts={uri}").prompts == uri


@pytest.mark.parametrize("setting", ["run_id", "model", "device", "encoding"])
def test_credentials_in_a_setting_that_takes_no_location_are_not_repeated(setting: str) -> None:
    message = _message(JOB, f"{setting}=s3://AKIAIOSFODNN7EXAMPLE:{'wJalr/XUtn' * 5}@bucket/a")
    assert "XUtn" not in message


def test_absent_job_and_folder_are_reported_as_such() -> None:
    with pytest.raises(Missing, match=r"^nowhere\.yaml: no such file\. Check the name\.$"):
        read_job("nowhere.yaml")
    with pytest.raises(BadInput, match=r"^\.: cannot be used \(Is a directory\)"):
        read_job(".")


def test_set_overrides_the_file() -> None:
    defaults = _read(JOB + "defaults: {steps: 1, seed: 1}\n", "defaults.steps=3").defaults
    assert (defaults.steps, defaults.seed) == (3, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("defaults.steps", "--set defaults.steps: has no value. Write --set key=value."),
        ("=5", "--set : names no setting. Choose one, such as defaults.steps."),
        (
            "defaults..steps=5",
            "--set defaults..steps: names no setting. Choose one, such as defaults.steps.",
        ),
        ("name.first=5", "--set name.first: name is not a group of settings. Set name itself."),
        (
            "defaults.stepss=1",
            "--set defaults.stepss: defaults.stepss is not a setting; write defaults.steps.",
        ),
    ],
)
def test_mistake_in_set_is_reported_with_the_option(change: str, message: str) -> None:
    assert _message(JOB, change) == message


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *((text, text) for text in ("123", "2026-07-01", "no", "1e3", "a=b", "", "{x", "*x")),
        *((text, text) for text in ("a: b", "{red|blue} car", "null and void")),
        ("'a: b'", "a: b"),
    ],
)
def test_set_reads_text_as_it_is_but_for_quotes(text: str, meant: str) -> None:
    assert _read(JOB, f"defaults.negative_prompt={text}").defaults.negative_prompt == meant


def test_set_reads_lists_and_null_where_a_setting_takes_them() -> None:
    job = _read(JOB + "run_id: x\n", "prompts=[a, b]", "carry=[c]", "run_id=null")
    assert (job.prompt_patterns, job.carry, job.run_id) == (("a", "b"), ("c",), None)


@pytest.mark.parametrize("word", ["on", "off"])
def test_bare_on_and_off_are_words_though_yaml_reads_booleans(word: str) -> None:
    assert _read(JOB + f"speed: {{compile: {word}}}\n").speed.compile == word
    assert _read(JOB, f"speed.compile={word}").speed.compile == word
