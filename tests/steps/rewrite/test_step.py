"""Prompts that a language model rewrites: once, whatever happens, and frozen for every plan."""

import json
import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan import input_files, rewriting
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.rewrite import language_model as language_model_module
from imagekiln.steps.rewrite import step
from imagekiln.steps.rewrite.step import fetch_language_model, prompt_rewriter, rewrite
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.hub import MODEL, REVISION, serving_model
from tests.interleaving import Process, interleaving
from tests.language_models import Kind, language_model

PROMPTS = ("red cat", "blue dog", "house", "a b c d", "dog on sea", "red house a b", "cat")
Rows = dict[str, tuple[str, str]]


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model_module, "MAX_NEW_TOKENS", 4)


def _job(folder: Path, prompts: object = PROMPTS, /, **rewrite: object) -> Job:
    plain = {"model": _model("gpt2"), "instruction": "Describe {prompt} :"}
    columns = prompts if isinstance(prompts, Mapping) else {"prompt": prompts}
    return jobs.job(folder, columns, rewrite=plain | rewrite, device="cpu")


def _model(source: Kind | Path) -> dict[str, object]:
    folder = source if isinstance(source, Path) else language_model(source)
    return {"id": str(folder), "dtype": "float32"}


def _edited(tmp_path: Path, file: str, **values: object) -> Path:
    """A copy of the tiny model with other values in one of its JSON files."""
    folder = tmp_path / "edited"
    shutil.copytree(language_model("gpt2"), folder, dirs_exist_ok=True)
    path = folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))
    return folder


def _rows(job: Job) -> Rows:
    """What was planned of each prompt: the text that is drawn, and what it is."""
    planned = make_plan(job, rewriter=prompt_rewriter())
    rows = jobs.image_rows(planned).to_pylist()
    return {row["prompt_original"]: (row["prompt"], row["prompt_rewrite"]) for row in rows}


def _texts(folder: Path) -> dict[str, bytes]:
    """Every object that was written of a rewrite."""
    root = folder / "out" / "_rewritten"
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("kind", ["gpt2", "t5", "chat"])
def test_the_model_s_text_is_the_prompt_and_the_row_says_of_what(
    tmp_path: Path, kind: Kind
) -> None:
    job = _job(tmp_path, {"prompt": [*PROMPTS, "cat"], "id": [*"abcdefgh"]}, model=_model(kind))
    assert rewrite(job).prompts == len(PROMPTS)
    rows = _rows(job)
    assert {*rows} == {*PROMPTS}
    assert all(text != prompt for prompt, (text, _) in rows.items())
    assert {outcome for _, outcome in rows.values()} <= {"cut", "rewritten"}
    assert len({text for text, _ in rows.values()}) > 1
    plan = load_plan(open_store(make_plan(job).uri))
    assert plan.rewrite is not None
    assert plan.rewrite.prompts == len(PROMPTS)
    assert (tmp_path / "out" / plan.rewrite.folder).is_dir()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_no_size_of_batches_changes_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    rows = []
    for size in (1, 3, 16):
        monkeypatch.setattr(language_model_module, "BATCH_PROMPTS", size)
        job = _job(tmp_path / str(size), PROMPTS, model=_model(kind))
        rows.append(_rows(job))
    assert rows[0] == rows[1] == rows[2]


def test_draws_follow_from_the_seed(tmp_path: Path) -> None:
    rows = [
        _rows(_job(tmp_path / name, PROMPTS, temperature=2.0, seed=seed))
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    ]
    assert rows[0] == rows[1] != rows[2]


def test_further_rows_are_the_only_ones_that_are_rewritten(tmp_path: Path) -> None:
    job = _job(tmp_path, PROMPTS[:4])
    before = _rows(job)
    first = make_plan(job)
    texts = _texts(tmp_path)
    more = _job(tmp_path, PROMPTS)
    assert rewrite(more).rewritten == len(PROMPTS) - 4
    assert rewrite(more).rewritten == 0
    assert before.items() <= _rows(more).items()
    assert texts.items() <= _texts(tmp_path).items()
    assert make_plan(_job(tmp_path, PROMPTS[:4])).uri == first.uri


def test_prompts_stay_where_the_model_writes_nothing_or_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = _edited(tmp_path, "generation_config.json", eos_token_id=[*range(40)])
    assert _rows(_job(tmp_path, PROMPTS, model=_model(silent))) == {
        prompt: (prompt, "empty") for prompt in PROMPTS
    }
    wordy = _job(tmp_path / "wordy", ["cat", "dog"])
    assert all(kind == "cut" for _, kind in _rows(wordy).values())
    monkeypatch.setattr(input_files, "MAX_PROMPT_CHARS", 3)
    assert _rows(wordy.model_copy(update={"run_id": "short"})) == {
        "cat": ("cat", "too_long"),
        "dog": ("dog", "too_long"),
    }


def test_run_that_is_planned_needs_neither_its_prompts_nor_the_model(tmp_path: Path) -> None:
    folder = shutil.copytree(language_model("gpt2"), tmp_path / "model")
    job = _job(tmp_path, model=_model(folder)).model_copy(update={"run_id": "night"})
    make_plan(job, rewriter=prompt_rewriter())
    texts = _texts(tmp_path)
    shutil.rmtree(folder)
    jobs.write(tmp_path / "prompts.parquet", {"prompt": ["another cat"]})
    assert rewrite(job).rewritten == 0
    (tmp_path / "prompts.parquet").unlink()
    assert rewrite(job).rewritten == 0
    assert _texts(tmp_path) == texts


def test_plan_needs_neither_the_model_nor_a_second_rewrite(tmp_path: Path) -> None:
    folder = shutil.copytree(language_model("gpt2"), tmp_path / "model")
    job = _job(tmp_path, PROMPTS, model=_model(folder))
    with pytest.raises(BadInput, match=r"lacks 7 rewritten prompts.*imagekiln rewrite JOB"):
        make_plan(job)
    assert estimate(job).images == estimate(job).prompts_to_rewrite == len(PROMPTS)
    rewrite(job)
    shutil.rmtree(folder)
    uri = make_plan(job).uri
    assert make_plan(job, rewriter=prompt_rewriter()).uri == uri
    named = job.model_copy(update={"run_id": uri.rpartition("/")[2]})
    assert make_plan(named).input_change is None
    (tmp_path / "prompts.parquet").unlink()
    assert make_plan(named, rewriter=prompt_rewriter()).adopted


def test_branch_stays_at_the_commit_that_was_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"id": MODEL, "dtype": "float32"}
    with serving_model(language_model("gpt2"), tmp_path, monkeypatch) as hub:
        rewrite(_job(tmp_path, PROMPTS[:2], model=model))
        hub.names["main"] = "f" * 40
        job = _job(tmp_path, PROMPTS, model=model)
        rewrite(job)
        plan = make_plan(job).plan
    assert plan.rewrite is not None
    assert plan.rewrite.model == f"{MODEL}@{REVISION}"


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_step_resumes_at_the_next_part_with_the_same_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(rewriting, "LIST_PROMPTS", 4)
    monkeypatch.setattr(step, "PART_PROMPTS", 2)
    rewrite(_job(tmp_path / "whole"))
    expected = _texts(tmp_path / "whole")
    assert len(expected) == 1 + 2 + 4

    accesses = 0
    is_done = False
    while not is_done:
        folder = tmp_path / str(accesses)
        job = _job(folder)
        with interleaving(folder, lambda _operation, _name: None):
            process = Process("killed", partial(rewrite, job))
            if accesses:
                process.step(accesses)
            is_done = process.is_done
            process.kill(torn=True)
        committed = sum("/texts/" in name and "writing" not in name for name in _texts(folder))
        assert rewrite(job).rewritten == len(PROMPTS) - (2 * committed - committed // 4)
        whole = {name: text for name, text in _texts(folder).items() if "writing" not in name}
        assert whole == expected
        accesses += stride
    assert accesses > 20


def test_pods_at_once_leave_one_text_of_each_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "LIST_PROMPTS", 4)
    monkeypatch.setattr(step, "PART_PROMPTS", 2)
    rewrite(_job(tmp_path / "whole"))
    job = _job(tmp_path / "shared")
    dice = random.Random(5)  # noqa: S311  # no secret
    with interleaving(tmp_path / "shared" / "out", lambda _operation, _name: None):
        processes = [Process(f"pod {index}", partial(rewrite, job)) for index in range(3)]
        while not all(process.is_done for process in processes):
            dice.choice(processes).step(dice.randrange(1, 4))
    assert [process.error for process in processes] == [None] * 3
    assert _texts(tmp_path / "shared") == _texts(tmp_path / "whole")


def test_model_that_was_fetched_is_found_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(tmp_path, model={"id": MODEL, "dtype": "float32"})
    offline = partial(monkeypatch.setattr, "huggingface_hub.constants.HF_HUB_OFFLINE")
    with serving_model(language_model("gpt2"), tmp_path, monkeypatch):
        offline(True)
        assert "`imagekiln rewrite JOB --fetch`" in _refused(BadInput, job)
        offline(False)
        assert fetch_language_model(job).startswith(f"{MODEL} is in {tmp_path}")
    assert not _texts(tmp_path)
    offline(True)
    assert rewrite(job).rewritten == len(PROMPTS)


def _refused(kind: type[KilnError], job: Job) -> str:
    with pytest.raises(kind) as caught:
        rewrite(job)
    assert caught.value.exit_code == kind.exit_code
    return str(caught.value)


def test_batches_that_do_not_fit_into_memory_are_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _rows(_job(tmp_path / "plain"))
    generate = GPT2LMHeadModel.generate
    most = 2

    def fail(self: object, input_ids: torch.Tensor, **options: Any) -> object:  # noqa: ANN401  # transformers'
        if len(input_ids) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(self, input_ids=input_ids, **options)

    monkeypatch.setattr(GPT2LMHeadModel, "generate", fail)
    assert _rows(_job(tmp_path)) == expected
    most = 0
    sentence = _refused(TryAgain, _job(tmp_path / "none"))
    assert "does not fit into the device's memory" in sentence
