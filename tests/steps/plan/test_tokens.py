import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import transformers

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.prompt_length import PromptLengths
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.texts import HOSTILE, chance

SHAPES = BUNDLED_FOLDER / "shapes"
LIMIT = 24  # tokens of the bundled model, two of which frame the prompt
SPACES = [
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\x0b",
    "\x1c",
    "\x85",
    "\u200b",
]
WORDS = [
    "a",
    "red",
    "circle",
    "it's",
    "don't",
    "1024",
    "4k",
    "x-ray",
    "...",
    "'S",
    "_",
    "</w>",
    "\0",
    "\ufeff",
]
ODD_WORDS = [
    "e\u0301",
    "\u00e9",
    "\u6f22\u5b57",
    "\U0001f525",
    "\u0130",
    "\ufb01",
    "\U0001d400",
    "\u0661",
]
MARKS = ["<|endoftext|>", "<|startoftext|>"]


def _random_prompts(count: int, seed: int) -> list[str]:
    rng = chance(seed)
    pieces = [*SPACES, *WORDS, *WORDS, *ODD_WORDS, *MARKS, *HOSTILE]
    return ["".join(rng.choices(pieces, k=rng.randrange(40))) for _ in range(count)]


def _cut(model: Path, prompts: list[str | None]) -> list[bool | None]:
    flags: list[bool | None] = (
        PromptLengths(model).find_truncated(pa.array(prompts, pa.string())).to_pylist()
    )
    return flags


def _without_tokenizer_json(target: Path) -> Path:
    """The bundled model's tokeniser as older models ship it: vocabulary and merges."""
    folder = target / "tokenizer"
    folder.mkdir(parents=True)
    whole = json.loads((SHAPES / "tokenizer" / "tokenizer.json").read_bytes())["model"]
    (folder / "vocab.json").write_text(json.dumps(whole["vocab"]), encoding="utf-8")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["merges"]]
    (folder / "merges.txt").write_text(
        "\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8"
    )
    shutil.copy(SHAPES / "tokenizer" / "tokenizer_config.json", folder)
    return target


def test_prompts_are_flagged_just_where_the_models_own_tokeniser_cuts_them() -> None:
    tokenizer = transformers.CLIPTokenizer.from_pretrained(SHAPES / "tokenizer")
    prompts = _random_prompts(2000, seed=3)
    wanted = [len(tokenizer(prompt, truncation=False)["input_ids"]) > LIMIT for prompt in prompts]
    assert 200 < sum(wanted) < 1800
    got = _cut(SHAPES, [*prompts])
    assert [
        prompt for prompt, flag, right in zip(prompts, got, wanted, strict=True) if flag != right
    ] == []


def test_vocabulary_and_merges_count_as_the_tokenizer_json_does(tmp_path: Path) -> None:
    # Marks are the one difference: a vocabulary does not say which of its words have a meaning of their own.
    prompts = [
        prompt
        for prompt in _random_prompts(2000, seed=4)
        if not any(mark in prompt for mark in MARKS)
    ]
    assert len(prompts) > 200
    assert _cut(_without_tokenizer_json(tmp_path), [*prompts]) == _cut(SHAPES, [*prompts])


@pytest.mark.parametrize(("words", "flag"), [(LIMIT - 2, False), (LIMIT - 1, True)])
def test_prompt_is_cut_from_the_first_token_that_does_not_fit(words: int, flag: bool) -> None:
    assert _cut(SHAPES, [" ".join(["a"] * words)]) == [flag]


def test_null_and_empty_prompts_are_not_cut() -> None:
    assert _cut(SHAPES, [None, "", " "]) == [False, False, False]


def test_prompts_counted_together_count_as_alone() -> None:
    prompts = _random_prompts(300, seed=5)
    together = _cut(SHAPES, [*prompts])
    lengths = PromptLengths(SHAPES)
    assert together == [
        lengths.find_truncated(pa.array([prompt])).to_pylist()[0] for prompt in prompts
    ]


def test_megabyte_of_text_is_counted() -> None:
    assert _cut(SHAPES, ["\U0001f525x " * 150_000, "x" * 1_000_000, " " * 1_000_000]) == [
        True,
        True,
        False,
    ]


def test_largest_of_several_tokenisers_decides(tmp_path: Path) -> None:
    for name, limit in (("tokenizer", 10), ("tokenizer_2", 50)):
        shutil.copytree(SHAPES / "tokenizer", tmp_path / name)
        settings = json.loads((SHAPES / "tokenizer" / "tokenizer_config.json").read_bytes())
        (tmp_path / name / "tokenizer_config.json").write_text(
            json.dumps(settings | {"model_max_length": limit})
        )
    assert _cut(tmp_path, [" ".join(["a"] * words) for words in (48, 49)]) == [False, True]


def test_model_without_a_tokeniser_leaves_it_unknown(tmp_path: Path) -> None:
    assert _cut(tmp_path, ["a", None]) == [None, None]


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer.json", "{}"), ("tokenizer_config.json", "[]")],
)
def test_damaged_tokeniser_is_told_in_one_sentence(tmp_path: Path, name: str, content: str) -> None:
    shutil.copytree(SHAPES / "tokenizer", tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / name).write_text(content, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        PromptLengths(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/tokenizer: is no tokeniser (")
    assert "\n" not in str(caught.value)
