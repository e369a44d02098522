"""Truncated prompts and LoRAs, as planning adds them to rows."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import transformers

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.loras import LORA_REJECTION_TEXTS, LoraRejectionReason
from imagekiln.steps.plan.derived_columns import DerivedColumns, LoraColumnReader, PromptLengths
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests import safetensors
from tests.jobs import SHAPES as SHAPES_MODEL
from tests.jobs import image_rows, plan, rejected
from tests.texts import HOSTILE, chance

SHAPES = BUNDLED_FOLDER / "shapes"
LIMIT = 24  # tokens of the bundled model, two of which frame the prompt
SPACES = [" ", "  ", "\r\n", *"\t\n\u00a0\u2003\u3000\u2028\x0b\x1c\x85\u200b"]
WORDS = [
    "\0",
    *[
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
        "\ufeff",
    ],
]
ODD_WORDS = ["e\u0301", *"\u00e9\U0001f525\u0130\ufb01\U0001d400\u0661", "\u6f22\u5b57"]
MARKS = ["<|endoftext|>", "<|startoftext|>"]


def _random_prompts(count: int, seed: int) -> list[str]:
    rng = chance(seed)
    pieces = [*SPACES, *WORDS, *WORDS, *ODD_WORDS, *MARKS, *HOSTILE]
    return ["".join(rng.choices(pieces, k=rng.randrange(40))) for _ in range(count)]


def _truncated(model: Path, prompts: list[str | None]) -> list[bool | None]:
    flags: list[bool | None] = (
        PromptLengths(model).find_truncated(pa.array(prompts, pa.string())).to_pylist()
    )
    return flags


def test_prompts_are_flagged_just_where_the_models_own_tokeniser_cuts_them() -> None:
    tokenizer = transformers.CLIPTokenizer.from_pretrained(SHAPES / "tokenizer")
    prompts = _random_prompts(2000, seed=3)
    expected = [len(tokenizer(prompt, truncation=False)["input_ids"]) > LIMIT for prompt in prompts]
    assert 200 < sum(expected) < 1800
    got = _truncated(SHAPES, [*prompts])
    assert [
        prompt for prompt, flag, right in zip(prompts, got, expected, strict=True) if flag != right
    ] == []


def test_a_prompt_that_is_rejected_for_its_length_is_not_tokenized() -> None:
    prompts = ["a " * 1999, "a" * 4001, None]
    batch = pa.record_batch({"prompt": prompts, "loras": pa.nulls(3, pa.string())})
    columns = DerivedColumns([SHAPES], "", {}).append_to(batch)
    assert columns["prompt"].to_pylist() == prompts
    assert columns["truncated"].to_pylist() == [True, False, False]


def test_largest_of_several_tokenisers_decides(tmp_path: Path) -> None:
    for name, limit in (("tokenizer", 10), ("tokenizer_2", 50)):
        shutil.copytree(SHAPES / "tokenizer", tmp_path / name)
        settings = json.loads((SHAPES / "tokenizer" / "tokenizer_config.json").read_bytes())
        (tmp_path / name / "tokenizer_config.json").write_text(
            json.dumps(settings | {"model_max_length": limit})
        )
    assert _truncated(tmp_path, [" ".join(["a"] * words) for words in (48, 49)]) == [False, True]


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer.json", "{"), ("tokenizer.json", "{}"), ("tokenizer_config.json", "[]")],
)
def test_damaged_tokeniser_is_told_in_one_sentence(tmp_path: Path, name: str, content: str) -> None:
    shutil.copytree(SHAPES / "tokenizer", tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / name).write_text(content, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        PromptLengths(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/tokenizer: is no tokenizer (")
    assert "\n" not in str(caught.value)


DIGESTS = {"style": "bb", "detail": "aa"}


def _settings(folder: Path, **names: str) -> dict[str, object]:
    """A model with LoRAs of these names; the same text is the same file."""
    files = {
        name: safetensors.write(folder / f"{name}.safetensors", data=data.encode())
        for name, data in names.items()
    }
    return {
        "model": {
            **SHAPES_MODEL,
            "loras": {name: {"id": str(file)} for name, file in files.items()},
        }
    }


def _planned(
    folder: Path, texts: Sequence[str | None], default: str = "", **names: str
) -> PlanResult:
    columns = {
        "prompt": ["a red circle"] * len(texts),
        "id": [f"{place}" for place in range(len(texts))],
        "seed": [7] * len(texts),
        "loras": pa.array(texts, pa.string()),
    }
    settings = _settings(folder, **(names or {"style": "one", "detail": "two"}))
    return plan(
        folder, columns, defaults={"loras": default}, limits={"rejected_share": 0.9}, **settings
    )


def test_each_text_becomes_its_canonical_form_its_key_or_its_fault() -> None:
    column = pa.array([None, "style:0.80, detail", "style:0.8,detail:1.0", "", "other", "style:0"])
    assert [each.to_pylist() for each in LoraColumnReader("detail:2", DIGESTS).read(column)] == [
        ["detail:2", "detail:1,style:0.8", "detail:1,style:0.8", None, None, None],
        ["aa:2", "aa:1,bb:0.8", "aa:1,bb:0.8", None, None, None],
        [None, None, None, None, "unknown", None],
    ]


def test_a_default_that_is_wrong_is_a_mistake_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        _planned(tmp_path, [None], default="other:1")
    assert str(caught.value) == (
        "defaults.loras names a LoRA that is not in model.loras; model.loras has detail, style. "
        "Correct it."
    )


def test_rows_without_loras_keep_the_ids_that_they_always_had(tmp_path: Path) -> None:
    with_loras = image_rows(_planned(tmp_path / "1", [None, "style:1"])).to_pylist()
    without = image_rows(
        plan(tmp_path / "2", {"prompt": ["a red circle"], "id": ["0"], "seed": [7]})
    ).to_pylist()
    assert with_loras[0]["image_id"] == without[0]["image_id"]
    assert with_loras[1]["image_id"] != without[0]["image_id"]


def test_an_id_follows_from_files_and_weights_and_not_from_names_or_other_loras(
    tmp_path: Path,
) -> None:
    texts_by_weight = ["style:0.8", "style:0.9", "style:0.8,detail:0.5"]
    renamed = ["a:0.8", "a:0.9", "b:0.5,a:0.8"]
    first, other, changed = (
        image_rows(_planned(tmp_path / f"{place}", texts, **names))["image_id"].to_pylist()
        for place, (texts, names) in enumerate(
            [
                (texts_by_weight, {"style": "one", "detail": "two"}),
                (renamed, {"a": "one", "b": "two", "c": "three"}),
                (texts_by_weight, {"style": "one", "detail": "another"}),
            ]
        )
    )
    assert first == other
    assert len({*first}) == 3
    assert changed[:2] == first[:2]
    assert changed[2] != first[2]


def test_rows_that_cannot_be_drawn_are_rejected_with_the_reason(tmp_path: Path) -> None:
    wrong: dict[str, LoraRejectionReason] = {
        "style=1": "syntax",
        "other": "unknown",
        "style,style": "twice",
        "style:11": "weight",
        "x" * 2000: "many",
    }
    planned = _planned(tmp_path, ["style:1", *wrong])
    reasons = [(row["input_row"], row["column_name"], row["reason"]) for row in rejected(planned)]
    assert reasons == [
        (number, "loras", LORA_REJECTION_TEXTS[fault])
        for number, fault in enumerate(wrong.values(), start=1)
    ]
    assert planned.plan.counts.images == 1


def test_a_plan_is_adopted_only_with_the_files_that_it_was_made_with(tmp_path: Path) -> None:
    columns = {"prompt": ["a"], "loras": ["style:1"]}
    first = plan(tmp_path, columns, run_id="one", **_settings(tmp_path, style="one"))
    assert plan(tmp_path, columns, run_id="one", **_settings(tmp_path, style="one")).adopted
    assert first.plan.loras["style"].sha256
    with pytest.raises(
        BadInput, match=r"was planned with other files of bundled:shapes or adapters"
    ):
        plan(tmp_path, columns, run_id="one", **_settings(tmp_path, style="two"))
