"""Every command that the README, the docs and the commands' help show is one, and works."""

import re
import shutil
from pathlib import Path

import click
import pyarrow.parquet as pq
import pytest

from imagekiln.workflows.cli.main import main
from tests import pages
from tests.package.finished_job import call, only_run
from tests.package.shown_commands import commands, find_command, shown_commands
from tests.pages import CODE_SPAN, ROOT

CALL = re.compile(r"(?:[A-Z_]+=\S+ )*imagekiln [a-zA-Z{-]")
PLACEHOLDER = re.compile(r"[A-Z_]+|\.\.\.|\{\}")
CLUSTER_FILE = re.compile(r"(?<![\w/])(cluster/(?:overlays|gpus|base|monitoring)/[\w./-]+)")
OWN_OVERLAY = "cluster/overlays/mine"  # that the reader writes, as docs/cluster.md shows
DOCKERFILE = re.compile(r"docker build --file (\S+)")
# Commands that a machine without a cluster and a GPU runs in a second.
LOCAL = {
    "init", "estimate", "run", "plan", "generate", "aggregate", "verify", "runs", "retry",
    "reproduce", "diff", "gc", "schema", "manifests", "render", "preview",
}  # fmt: skip
# Processes that load torch again, a file that `tune` measures, a whole page: other tests have them.
ELSEWHERE = re.compile(r"--gpus|batch\.tuning|--date 20|published\.yaml")


def mentioned_commands() -> list[list[str]]:
    """Return those within sentences of the pages, of messages, and of YAML's comments.

    Some are only a name, others have placeholders.
    """
    comments = list(pages.manifest_comments())
    texts = [*pages.program_texts(), *comments]
    spans = {*pages.code_spans(), *comments}
    spans |= {span for text in texts for span in CODE_SPAN.findall(text)}
    calls = [span for span in sorted(spans) if CALL.match(span)]
    return [words for span in calls for words in commands(span) if words]


def options(command: click.Command) -> set[str]:
    """Return the names of a command's options."""
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


def mistake(words: list[str]) -> str | None:
    """Return the words if they are no command, or it would not parse them."""
    command, rest = find_command(words)
    if command is None or not {word for word in rest if word.startswith("-")} <= options(command):
        return " ".join(words)
    try:
        command.make_context(words[0], rest)
    except click.ClickException as error:
        return f"{' '.join(words)}: {error}"
    return None


@pytest.mark.parametrize("page", pages.with_blocks("sh"), ids=pages.page_name)
def test_shown_commands_are_some(page: Path) -> None:
    assert list(filter(None, map(mistake, shown_commands(page)))) == []


def test_commands_in_the_help_are_some() -> None:
    groups = [command for command in main.commands.values() if isinstance(command, click.Group)]
    every = [
        *main.commands.values(),
        *(each for group in groups for each in group.commands.values()),
    ]
    shown = [words for command in every for words in commands(command.epilog or "")]
    assert len(shown) > 20
    assert list(filter(None, map(mistake, shown))) == []


def test_mentioned_commands_and_their_options_are_there() -> None:
    mistakes = []
    for words in mentioned_commands():
        if words[0].startswith("-") or PLACEHOLDER.fullmatch(words[0]):
            continue  # of all commands: imagekiln --help, imagekiln COMMAND --help
        command, rest = find_command(words)
        names = {word for word in rest if word.startswith("-") and "{" not in word}
        if command is None or not names <= options(command):
            mistakes.append(" ".join(words))
    assert mistakes == []


def test_shown_manifests_and_dockerfiles_are_there() -> None:
    shown = {path for text in pages.blocks("sh") for path in CLUSTER_FILE.findall(text)}
    assert OWN_OVERLAY in shown
    shown.remove(OWN_OVERLAY)
    dockerfiles = {path for text in pages.blocks("sh") for path in DOCKERFILE.findall(text)}
    assert dockerfiles
    assert [path for path in sorted(dockerfiles) if not (ROOT / path).is_file()] == []
    assert [path for path in sorted(shown) if not (ROOT / "workflows" / path).exists()] == []


@pytest.mark.parametrize("page", pages.with_blocks("sh"), ids=pages.page_name)
def test_shown_commands_work(page: Path, finished_job: Path, tmp_path: Path) -> None:
    for number, words in enumerate(shown_commands(page)):
        if words[0] in LOCAL and not ELSEWHERE.search(" ".join(words)):
            run_command(words, Path(shutil.copytree(finished_job, tmp_path / str(number))))


def run_command(words: list[str], folder: Path) -> None:
    """Run a command of the docs in a copy of the finished job."""
    if words[0] == "init":
        (folder / "job.yaml").unlink()
    if words[0] == "preview":  # of a run that it begins
        words = [*words, "--set", "run_id=sampled"]
    result = call(folder, *[substitute(word, words[0], folder) for word in words])
    assert result.exit_code == 0, (words, result.output)


def substitute(word: str, command: str, folder: Path) -> str:
    """Return a word of a command of the docs, with what it stands for on this machine."""
    run = only_run(folder)
    if word.endswith(("/RUN", "/OTHER")) or word in ("RUN", "OTHER"):
        return str(run)
    if word == "IMAGE_ID":
        return str(pq.read_table(run / "manifest")["image_id"][0])
    if word == "s3://datasets/postcards":
        return str(folder / "out")
    if command == "render" and word.endswith(".yaml"):
        return "cluster-job.yaml"
    return word
