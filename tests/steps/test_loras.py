import pytest

from imagekiln.steps import loras
from imagekiln.steps.loras import Fault, Read
from tests.texts import HOSTILE, chance

KNOWN = {"style", "detail", "A.b-c_1", "x1"}
DIGESTS = {"style": "bb", "detail": "aa", "same": "bb"}


@pytest.mark.parametrize(
    ("text", "wanted"),
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
def test_texts_that_ask_for_the_same_have_one_canonical_form(text: str, wanted: str | None) -> None:
    assert loras.read(text, KNOWN) == Read(wanted)
    assert loras.read(wanted or "", KNOWN) == Read(wanted)


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
def test_what_cannot_be_meant_is_a_fault(text: str, fault: Fault) -> None:
    assert loras.read(text, KNOWN) == Read(fault=fault)


def test_more_loras_than_are_of_use_are_a_fault() -> None:
    known = [f"l{place}" for place in range(loras.MOST_LORAS + 1)]
    assert loras.read(",".join(known), known) == Read(fault="many")
    assert loras.read(",".join(known[1:]), known).fault is None


def test_no_text_breaks_the_reader() -> None:
    rng = chance(3)
    pieces = [*HOSTILE, "style", ":", ",", "0.5", "-", "e9", " "]
    for _ in range(2000):
        found = loras.read("".join(rng.choices(pieces, k=rng.randrange(8))), KNOWN)
        assert found.fault is None or found.loras is None
        assert loras.read(found.loras or "", KNOWN).loras == found.loras


def test_weights_read_back_exactly() -> None:
    rng = chance(4)
    for _ in range(200):
        given = {name: rng.uniform(-10, 10) for name in ("detail", "style")}
        assert loras.weights(loras.canonical(given)) == given
    assert loras.weights(None) == {}


def test_a_key_tells_files_and_weights_and_no_names() -> None:
    assert loras.key("detail:0.5,style:0.8", DIGESTS) == "aa:0.5,bb:0.8"
    assert loras.key("style:1", DIGESTS) == loras.key("same:1", DIGESTS) == "bb:1"
    assert loras.key("same:0.5,style:1", DIGESTS) == loras.key("same:1,style:0.5", DIGESTS)
