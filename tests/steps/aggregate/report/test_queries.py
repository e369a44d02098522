"""The queries on the page find what they say."""

import html
import re

import duckdb
import pytest

from imagekiln.steps.aggregate.failures import FailureCause
from imagekiln.steps.aggregate.report.queries import S3_NOTE, failure_query
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.storage import open_store
from tests.runs import PROMPTS, fill, not_ok, planned

ERRORS = [
    "ValueError: it's \x1b[31mred\x00\u202e",
    "ValueError: it's \x1b[31mred\x00\u202e, twice",
    "RuntimeError: the first of\ntwo lines",
    "RuntimeError: the first of\r\nthree\nlines",
    "KeyError: " + "long " * 100,
    "'; DROP TABLE images; --",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run in an oddly named folder, whose rows carry oddly named columns."""
    scratch = tmp_path_factory.mktemp("queries")
    rows = [
        {**row, 'the "team"': f"team {place}", "nothing": None} for place, row in enumerate(PROMPTS)
    ]
    planned_run = planned(
        scratch,
        str(scratch / "it's [my] output*"),
        rows,
        carry=['the "team"', "nothing"],
        limits={"failed_share": 1.0},
    )
    fill(planned_run, {place: not_ok(place, error=text) for place, text in enumerate(ERRORS)})
    aggregate(planned_run.uri)
    return open_store(planned_run.uri).read(REPORT_KEY).decode()


def test_the_query_of_a_cause_finds_its_images_and_no_others(page: str) -> None:
    queries = [html.unescape(text) for text in re.findall(r"(SELECT .*?)</code>", page, re.DOTALL)]
    results = [duckdb.execute(query).fetchall() for query in queries]
    ids = sorted(sorted(row[0] for row in rows) for rows in results)
    assert ids == [["row-0"], ["row-1"], ["row-2", "row-3"], ["row-4"], ["row-5"]]
    assert all(row[3] == f"team {row[1]}" for rows in results for row in rows)
    assert all(query.isprintable() for text in queries for query in text.split("\n"))


def test_an_example_has_the_id_and_the_carried_columns_of_its_row(page: str) -> None:
    for place in range(3):
        assert f"id <code><bdi>row-{place}</bdi></code>, row {place}, " in page
        assert f"<bdi>the &#34;team&#34;</bdi> <code><bdi>team {place}</bdi></code>" in page
    assert "<bdi>nothing</bdi>" not in page


def test_a_query_of_an_object_store_says_how_to_sign_in() -> None:
    cause = FailureCause("failed", "ValueError: a fault", 1)
    query = failure_query("s3://bucket/a run", cause, ())
    assert query.splitlines()[0] == S3_NOTE
    assert "'s3://bucket/a run/manifest/*.parquet'" in query
    assert not failure_query("gs://bucket/run", cause, ()).startswith("--")
