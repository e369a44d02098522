"""Prompts made from templates: which ones, how many, and that nothing else decides them."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptTemplate
from imagekiln.steps.plan import templates
from imagekiln.steps.plan.input_files import input_fingerprint
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.plan.templates import count_prompts, load_recipes, read_prompts
from tests.jobs import Columns, image_rows, job, plan, rejected, write

NUMBERS = count()
COLORS = "red\n2::blue\n# none\n{dark|light} green\n"
ANIMALS = "cat\ndog\n__deep/bird__\n"
FILES = {"color": COLORS, "animal": ANIMALS, "deep/bird": "robin\nowl\n"}


def _job(folder: Path, files: Mapping[str, str] = FILES, /, **prompts: object) -> Job:
    for name, text in files.items():
        path = folder / "wildcards" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if files:
        prompts = {"wildcards": str(folder / "wildcards"), **prompts}
    return job(folder, prompts=prompts)


def _rows(settings: Job, folder: Path) -> list[dict[str, object]]:
    scratch = folder / f"scratch-{next(NUMBERS)}"
    scratch.mkdir()
    (file,) = read_prompts(settings, scratch)
    rows: list[dict[str, object]] = pq.read_table(file.source.path).to_pylist()
    return rows


def _prompts(folder: Path, template: str, **more: object) -> list[object]:
    settings = _job(folder, template=template, **more)
    return [row["prompt"] for row in _rows(settings, folder)]


@pytest.mark.parametrize(
    ("template", "prompts"),
    [
        ("a {red|blue} car", ["a red car", "a blue car"]),
        ("{red|{dark|light} blue}", ["red", "dark blue", "light blue"]),
        ("a {2::red|0::blue|} car", ["a red car", "a car"]),
        ("__color__", ["red", "blue", "dark green", "light green"]),
        ("__deep/*__ {!a|b}", ["robin a", "robin b", "owl a", "owl b"]),
        ("{2$$a|b|c}", ["a, b", "a, c", "b, c"]),
        ("{1-2$$ and $$a|{b|c}}", ["a", "b", "c", "a and b", "a and c"]),
        ("{2$$__deep/bird__}", ["robin, owl"]),
        ("{-9$$a|b}", ["a", "b", "a, b"]),
        ("${x=!{a|b}}${x} and ${x}", ["a and a", "b and b"]),
        (r"\{a\} \_\_b\_\_ \$\{c\} hatsune\_miku \(vocaloid\) 100%", None),
        ("# a comment\na cat,\n  # another\n  asleep # here\n", ["a cat, asleep # here"]),
        ("(cat:1.2) [a|b] <x>", ["(cat:1.2) [a|b] <x>"]),
    ],
)
def test_templates_mean_what_users_of_dynamic_prompts_expect(
    tmp_path: Path, template: str, prompts: list[str] | None
) -> None:
    plain = [r"{a} __b__ ${c} hatsune_miku \(vocaloid\) 100%"]
    assert _prompts(tmp_path, template) == (plain if prompts is None else prompts)


OPTIONS = st.sampled_from(["a", "b b", "{c|d}", "2::e", "__f__", "0.5::__*g__", "{2$$h|i|j}", ""])
PIECES = st.recursive(
    st.sampled_from(["x", " y ", "__f__", "{2$$__ag__}", "{1-2$$ + $$a|b|__f__}", "{~a|b|c}"]),
    lambda inner: st.lists(inner | OPTIONS, min_size=2, max_size=3).map(
        lambda options: "{" + "|".join(options) + "}"
    ),
    max_leaves=4,
)
TEMPLATES = st.lists(PIECES, min_size=1, max_size=3).map("".join)
GENERATED = {"f": "f1\nf2\n", "ag": "g1\n{g2|g3}\n", "bg": "__f__ g4\n"}


@pytest.mark.slow
@settings(max_examples=40)
@given(TEMPLATES, TEMPLATES | st.none(), st.sampled_from(["all", 1, 3]))
def test_as_many_prompts_are_made_as_were_counted(
    template: str, negative: str | None, combinations: object
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        sweep = {"guidance": [1, 2.5], "loras": ["", "a:1", "a:2"]}
        made = _job(
            folder,
            GENERATED,
            template=template,
            negative_template=negative,
            combinations=combinations,
            sweep=sweep,
        )
        assert isinstance(made.prompts, PromptTemplate)
        described = count_prompts(made.prompts, load_recipes(made.prompts), 1)
        rows = _rows(made, folder)
        assert described.startswith(f"{len(rows):,} prompt")
        assert len({(row["guidance"], row["loras"]) for row in rows}) == 6


CITIES = [("1", "Rome"), ("2", "Oslo"), ("3", "Paris"), ("4", "Bonn")]
LINES = ["red", "2::blue", "green"]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.permutations(LINES),
    st.permutations(CITIES),
    st.integers(0, 4),
    st.sampled_from(["gold", "3::gold", "{a|b} gold"]),
)
def test_prompts_follow_from_row_and_options_alone(
    lines: list[str], cities: list[tuple[str, str]], split: int, further: str
) -> None:
    """In whatever order options, rows and files are, and however many rows come at a time."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        plain = _draw(folder / "a", LINES, CITIES)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(templates, "BATCH_ROWS", split + 1)
            moved = _draw(folder / "b", lines, cities[split:], cities[:split])
        fewer = _draw(folder / "c", lines, cities[:2])
        more = _draw(folder / "d", [*lines, further], cities)
        longer = _draw(folder / "e", lines, cities, combinations=7)
        unnamed = _draw(folder / "f", lines, CITIES, header="name,city")
        unnamed_moved = _draw(
            folder / "g", lines, cities[split:], cities[:split], header="name,city"
        )
    assert len(plain) == 20
    assert len(longer) == 28
    assert plain <= longer
    assert moved == plain
    assert unnamed_moved == unnamed
    assert len(fewer) == 10
    assert fewer <= plain
    assert all("gold" in row[0] for row in more - plain)
    assert not any("gold" in row[0] for row in more & plain)


def _draw(
    folder: Path,
    lines: list[str],
    *tables: list[tuple[str, str]],
    combinations: int = 5,
    header: str = "id,city",
) -> set[tuple[str, ...]]:
    """All that is written of each prompt: of these tables, and two files of these lines."""
    folder.mkdir()
    for number, cities in enumerate(tables):
        rows = [f"{city_id},{city}\n" for city_id, city in cities]
        (folder / f"{number}.csv").write_text("".join([f"{header}\n", *rows]))
    settings = _job(
        folder,
        {"xa": "\n".join(lines[:2]), "xb": "\n".join(lines[2:])},
        template="__x*__ in {{ city }}, {2$$__x*__}, {1-2$$a|__x*__}",
        negative_template="{~3::c|d}",
        combinations=combinations,
        table=f"{folder}/*.csv",
    )
    rows_of_prompts = _rows(settings, folder)
    names = ("prompt", "negative_prompt", "seed", "id", "prompt_choices")
    return {tuple(str(row.get(name)) for name in names) for row in rows_of_prompts}


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("a {b|c", "prompts.template is no template: line 1, character 3: this brace is never"),
        ("a\nb {x}", "line 2, character 3: this choice has one option; write {{ name }}"),
        ("${a}", "line 1, character 1: variable a has no value yet"),
        ("{-1::a|b}", "a weight is a number from 0 to 1000000"),
        ("{@a|b}", "@ takes options in turn"),
        ("{{ __import__('os') }}", "there is no table. Set prompts.table."),
        ("{{ city }}", "prompts.template: names column 'city', and there is no table"),
        ("{0::a|0::b}", "character 1: all options have the weight 0"),
        ("__colr__", "character 1: FOLDER has no colr.txt; write __color__"),
        ("__loop__", "FOLDER/loop.txt, line 1, character 3: wildcards are nested over 16"),
        ("__broken__", "FOLDER/broken.txt, line 3, character 1: this brace is never closed"),
        ("__binary__", "FOLDER/binary.txt, line 2: is not UTF-8 text"),
        ("__laughs0__", "prompts.template: makes at least 1,000,000,000,000,000,000 prompts"),
    ],
)
def test_hostile_templates_are_refused_in_a_sentence_with_their_place(
    tmp_path: Path, template: str, problem: str
) -> None:
    files = {
        "color": COLORS,
        "loop": "a __loop__",
        "broken": "a\n\n{b",
        "binary": "",
    }
    for level in range(11):
        files[f"laughs{level}"] = f"__laughs{level + 1}__" * 100 if level < 10 else "a\nb"
    with pytest.raises(BadInput) as caught:
        _plan_rows(tmp_path, files, template)
    message = str(caught.value)
    assert problem.replace("FOLDER", str(tmp_path / "wildcards")) in message
    assert "\n" not in message


def _plan_rows(folder: Path, files: Mapping[str, str], template: str) -> None:
    made = _job(folder, files, template=template)
    (folder / "wildcards/binary.txt").write_bytes(b"a\n\xff\n")
    read_prompts(made, folder)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"town": ["a"]}, "has no column 'city' (it has town). Correct prompts.template."),
        ({"city": [1.5]}, "column 'city' is double, not text"),
        ({"city": ["a"], "source_image": ["x.png"]}, "column 'source_image' has input images"),
        (pa.table([["a"], ["b"]], ["city", "city"]), "has more than one column 'city'"),
        ({"city": [None]}, "1 of 1 row was rejected: prompt is null"),
        ({"city": ["a"], "id": pa.array([b"\xff"]).view(pa.string())}, "has ids that are"),
    ],
)
def test_hostile_tables_are_refused_in_a_sentence(
    tmp_path: Path, columns: Columns, problem: str
) -> None:
    table = write(tmp_path / "table.parquet", columns)
    with pytest.raises(KilnError) as caught:
        plan(tmp_path, prompts={"template": "in {{ city }}", "table": str(table)})
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_table_is_data_and_its_columns_stay(tmp_path: Path) -> None:
    table = write(
        tmp_path / "table.parquet",
        {
            "city": ["{a|b} __x__ {{ city }}", "Rome", None],
            "id": ["1", "2", "3"],
            "steps": [2, 3, 4],
            "tag": pa.array(["p", "q", "r"], pa.string_view()),
            "other": [1, 2, 3],
        },
    )
    settings = job(
        tmp_path,
        prompts={"template": "in {{ city }}", "table": table, "sweep": {"seed": [7]}},
        carry=["tag"],
        limits={"rejected_share": 0.5},
    )
    planned = plan(
        tmp_path, prompts=settings.prompts, carry=["tag"], limits={"rejected_share": 0.5}
    )
    rows = image_rows(planned).to_pylist()
    assert [(row["id"], row["prompt"], row["steps"], row["tag"], row["seed"]) for row in rows] == [
        ("1", "in {a|b} __x__ {{ city }}", 2, "p", 7),
        ("2", "in Rome", 3, "q", 7),
    ]
    assert {row["prompt_template"] for row in rows} == {"in {{ city }}"}
    assert [(row["id"], row["reason"]) for row in rejected(planned)] == [("3", "is null")]
    assert planned.unused_columns == ("other",)


def test_run_is_named_by_the_files_that_a_template_reads(tmp_path: Path) -> None:
    def fingerprint(files: Mapping[str, str]) -> str:
        scratch = tmp_path / f"fingerprint-{next(NUMBERS)}"
        scratch.mkdir()
        return input_fingerprint(read_prompts(_job(tmp_path, files, template="__color__"), scratch))

    first = fingerprint(FILES)
    assert fingerprint(FILES | {"animal": "cow\n"}) == first
    assert fingerprint(FILES | {"color": COLORS + "gold\n"}) != first


def test_named_run_says_that_a_wildcard_file_has_changed(tmp_path: Path) -> None:
    def change(files: Mapping[str, str]) -> str | None:
        templates = _job(tmp_path, files, template="__color__", table=table)
        night = templates.model_copy(update={"run_id": "night"})
        return make_plan(night).input_change

    table = write(tmp_path / "table.parquet", {"prompt": ["a"]})
    assert change(FILES) is None
    assert change(FILES | {"animal": "cow\n"}) is None
    sentence = change(FILES | {"color": COLORS + "gold\n"})
    assert sentence is not None
    assert "has changed" in sentence


@pytest.mark.parametrize(
    "seeds",
    [
        pa.array([5, None, -1], pa.int32()),
        pa.array([5.0, float("nan"), -1.0]),
        pa.array(["5", " ", "random"]).dictionary_encode(),
        pa.array([5, None, None], pa.uint8()).dictionary_encode(),
        pa.array(["5", None, "-1"], pa.large_string()),
    ],
)
def test_row_without_a_seed_has_the_same_one_with_every_setting_of_a_sweep(
    tmp_path: Path, seeds: pa.Array
) -> None:
    def drawn(columns: Columns) -> list[dict[str, object]]:
        table = write(tmp_path / "table.parquet", {"id": ["a", "b", "c"], **columns})
        sweep = {"guidance": [1.5, 3, 6]}
        made = {"template": "{{ id }}", "table": table, "sweep": sweep}
        rows = image_rows(plan(tmp_path, prompts=made)).select(["prompt", "seed"]).to_pylist()
        return sorted(rows, key=str)

    without = drawn({})
    with_some = drawn({"seed": seeds})
    assert [row["seed"] for row in with_some[:3]] == [5, 5, 5]
    assert with_some[3:] == without[3:]
