"""Rewritten prompts as they are stored: what is damaged, or of another model, is told."""

from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.runs.keys import rewrite_key
from imagekiln.steps.runs.rewriting import FrozenModel, RewritePart, Rewriting, RewrittenText
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.s3 import S3Server, log_in
from tests.stub_s3 import stub_s3

MODEL = FrozenModel("org/model", "0" * 40, "0" * 64, part_prompts=2)
PROMPTS = ("cat", "dog")
TEXT_KEY = rewrite_key("0", "texts/00000-0000.parquet")
LIST_KEY = rewrite_key("0", "prompts/00000.parquet")


def begin_rewriting(store: Store) -> tuple[Rewriting, RewritePart]:
    """A rewriting of the prompts, and its only part."""
    rewriting = Rewriting(store, "0")
    rewriting.freeze_model(MODEL, check_store=False)
    rewriting.append_lists(set(PROMPTS))
    (part,) = rewriting.iter_parts()
    return rewriting, part


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        (TEXT_KEY, {"prompt": PROMPTS, "text": ["a", None], "end": ["whole", "whole"]}),
        (TEXT_KEY, {"prompt": PROMPTS, "text": ["a", "b"], "end": ["whole", "never"]}),
        (TEXT_KEY, {"prompt": PROMPTS, "text": ["a", "b"], "end": ["whole", None]}),
        (LIST_KEY, {"prompt": ["cat", None]}),
        (LIST_KEY, {"text": PROMPTS}),
    ],
)
def test_lists_and_texts_that_no_rewrite_has_are_damage(
    tmp_path: Path, key: str, columns: dict[str, list[str | None]]
) -> None:
    store = open_store(str(tmp_path))
    rewriting, part = begin_rewriting(store)
    rewriting.commit_part(part, [RewrittenText(prompt, "whole") for prompt in part.prompts])
    store.replace(key, to_parquet(pa.table(columns)))
    with pytest.raises(BadInput, match=f"{key}: is damaged"):
        [rewriting.read_part(part) for part in rewriting.iter_parts()]


def test_model_that_another_process_has_frozen_meanwhile_is_not_mixed_with(tmp_path: Path) -> None:
    rewriting = Rewriting(open_store(str(tmp_path)), "0")
    other = FrozenModel("org/model", "1" * 40, "1" * 64, part_prompts=2)
    rewriting.freeze_model(other, check_store=False)
    with pytest.raises(TryAgain, match="another process began at the same time"):
        rewriting.freeze_model(MODEL, check_store=False)
    assert rewriting.read_model() == other


def test_store_that_ignores_conditions_gets_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_s3(conditional=False) as stub:
        log_in(S3Server(stub.endpoint), monkeypatch)
        rewriting = Rewriting(open_store("s3://bucket/out"), "0")
        with pytest.raises(BadInput, match="ignores conditional writes"):
            rewriting.freeze_model(MODEL, check_store=True)
        assert rewriting.read_model() is None


def test_text_that_another_process_writes_in_place_of_an_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    rewriting, part = begin_rewriting(store)
    rewriting.commit_part(part, [RewrittenText("theirs", "whole")] * 2)
    before = store.read(part.key)
    # The text is of other prompts at the first look, and theirs at the second.
    has_part = iter([False, True])
    monkeypatch.setattr(Rewriting, "has_part", lambda *_: next(has_part))
    with pytest.raises(TryAgain, match="another process wrote it too"):
        rewriting.commit_part(part, [RewrittenText("ours", "whole")] * 2)
    assert store.read(part.key) == before
