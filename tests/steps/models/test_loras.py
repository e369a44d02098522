import pytest

from imagekiln.steps.models.loras import LoraRejectionReason, ParsedLoras, lora_key, parse_loras

KNOWN = {"style", "detail", "A.b-c_1", "x1"}
DIGESTS = {"style": "bb", "detail": "aa", "same": "bb"}


@pytest.mark.parametrize(
    ("text", "canonical_text"),
    [
        ("style", "style:1"),
        ("style:1e-7", "style:1e-07"),
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
        ("style:", "syntax"),
        ("x" * 1001, "many"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(text: str, fault: LoraRejectionReason) -> None:
    assert parse_loras(text, KNOWN) == ParsedLoras(rejection=fault)


def test_a_key_tells_files_and_weights_and_no_names() -> None:
    assert lora_key("detail:0.5,style:0.8", DIGESTS) == "aa:0.5,bb:0.8"
    assert lora_key("style:1", DIGESTS) == lora_key("same:1", DIGESTS) == "bb:1"
    assert lora_key("same:0.5,style:1", DIGESTS) == lora_key("same:1,style:0.5", DIGESTS)
