import pytest

from imagekiln.steps.models.loras import (
    MAX_LORAS,
    LoraRejectionReason,
    ParsedLoras,
    format_loras,
    lora_key,
    lora_weights,
    parse_loras,
)
from tests.texts import HOSTILE, chance

KNOWN = {"style", "detail", "A.b-c_1", "x1"}
DIGESTS = {"style": "bb", "detail": "aa", "same": "bb"}


@pytest.mark.parametrize(
    ("text", "canonical_text"),
    [
        ("style", "style:1"),
        ("style:0.8, detail:0.5", "detail:0.5,style:0.8"),
        (" detail : .50 ,style: +8e-1 ", "detail:0.5,style:0.8"),
        ("style:1.0", "style:1"),
        ("style:-10,A.b-c_1:10", "A.b-c_1:10,style:-10"),
        ("style:0.10000000000000001", "style:0.1"),
        ("style:1e-7", "style:1e-07"),
        ("x1:1", "x1:1"),
        ("style:0", None),
        ("style:-0.0, detail:0.5", "detail:0.5"),
        ("style:1e-400", None),
        ("", None),
        (" \n", None),
    ],
)
def test_texts_that_ask_for_the_same_have_one_canonical_form(
    text: str, canonical_text: str | None
) -> None:
    assert parse_loras(text, KNOWN) == ParsedLoras(canonical_text)
    assert parse_loras(canonical_text or "", KNOWN) == ParsedLoras(canonical_text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("other:1", "unknown"),
        ("Style:1", "unknown"),
        ("style:1,style:0.5", "twice"),
        ("style:0,style:0.5", "twice"),
        ("style:10.001", "weight"),
        ("style:-11", "weight"),
        ("style:1e300", "weight"),
        ("style:1e999", "weight"),
        ("style:nan", "syntax"),
        ("style:inf", "syntax"),
        ("style:", "syntax"),
        ("style:0.5:1", "syntax"),
        ("style 0.5", "syntax"),
        ("style,", "syntax"),
        (",", "syntax"),
        (":1", "syntax"),
        ("<lora:style:1>", "syntax"),
        ("style:1_0", "syntax"),
        ("style:\N{ARABIC-INDIC DIGIT ONE}", "syntax"),
        ("style\0:1", "syntax"),
        ("x" * 1001, "many"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(text: str, fault: LoraRejectionReason) -> None:
    assert parse_loras(text, KNOWN) == ParsedLoras(rejection=fault)


def test_more_loras_than_are_of_use_are_a_fault() -> None:
    names = [f"l{place}" for place in range(MAX_LORAS + 1)]
    assert parse_loras(",".join(names), names) == ParsedLoras(rejection="many")
    assert parse_loras(",".join(names[1:]), names).rejection is None


def test_no_text_breaks_the_reader() -> None:
    rng = chance(3)
    pieces = [*HOSTILE, "style", ":", ",", "0.5", "-", "e9", " "]
    for _ in range(2000):
        parsed = parse_loras("".join(rng.choices(pieces, k=rng.randrange(8))), KNOWN)
        assert parsed.rejection is None or parsed.canonical is None
        assert parse_loras(parsed.canonical or "", KNOWN).canonical == parsed.canonical


def test_weights_read_back_exactly() -> None:
    rng = chance(4)
    for _ in range(200):
        weights = {name: rng.uniform(-10, 10) for name in ("detail", "style")}
        assert lora_weights(format_loras(weights)) == weights
    assert lora_weights(None) == {}


def test_a_key_tells_files_and_weights_and_no_names() -> None:
    assert lora_key("detail:0.5,style:0.8", DIGESTS) == "aa:0.5,bb:0.8"
    assert lora_key("style:1", DIGESTS) == lora_key("same:1", DIGESTS) == "bb:1"
    assert lora_key("same:0.5,style:1", DIGESTS) == lora_key("same:1,style:0.5", DIGESTS)
