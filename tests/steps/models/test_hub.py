import os
import shutil
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from huggingface_hub import HfFileSystem, _tree_cache, close_session, set_client_factory
from huggingface_hub.utils._fixes import WeakFileLock
from huggingface_hub.utils._http import default_client_factory

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.facts import load_model_facts
from imagekiln.steps.models.hub import (
    ask_hub,
    download_configuration,
    download_file,
    silence_hub_client,
)
from imagekiln.steps.plan import source_files
from imagekiln.steps.plan.source_files import gather_sources
from imagekiln.steps.storage import hub_answers, web_client
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.hub import (
    FORBIDDEN,
    GATED,
    MODEL,
    PIECE_BYTES,
    PROGRAMS_PATH,
    REVISION,
    STORAGE_PATH,
    TOKEN_PATH,
    Hub,
    serving_model,
)
from tests.hub import hub as loopback_hub
from tests.jobs import image_rows, plan
from tests.servers import silent_server

OTHER = "f" * 40
TABLE = "prompt\n" + "a red circle\n" * 50
TABLES = f"hf://{MODEL}@{REVISION}"
LISTING = f"/api/models/{MODEL}/tree/{REVISION}?recursive=true&expand=false"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the bundled model, and an empty cache."""
    with serving_model(BUNDLED_FOLDER / "shapes", tmp_path, monkeypatch) as hub_server:
        yield hub_server


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a table of prompts, whose client has no limits yet."""
    set_client_factory(default_client_factory)
    hub_answers._limit_requests.cache_clear()
    HfFileSystem.clear_instance_cache()  # of other hubs
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "prompts.csv").write_text(TABLE)
    with serving_model(tmp_path / "tables", tmp_path, monkeypatch) as hub_server:
        yield hub_server


def _error_message(kind: type[KilnError], name: str, revision: str | None = OTHER) -> str:
    with pytest.raises(kind) as caught:
        download_configuration(ModelSettings(id=name, revision=revision))
    assert type(caught.value) is kind
    with pytest.raises(kind) as caught_of_config:  # of a model in one file
        download_configuration(HubReference(id=name, revision=revision))
    expected = str(caught.value).replace("model.id", "model.config")
    assert str(caught_of_config.value) == expected
    return str(caught.value)


@pytest.mark.usefixtures("server")
def test_pinned_model_is_known_without_its_weights() -> None:
    folder = download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert (folder / "model_index.json").is_file()
    assert (folder / "tokenizer" / "tokenizer.json").is_file()
    assert [*folder.rglob("*.safetensors")] == []


@pytest.mark.usefixtures("server")
def test_pinned_model_has_the_facts_of_the_folder_it_came_from() -> None:
    local, on_hub = (
        load_model_facts(ModelSettings(id=name, revision=REVISION))
        for name in ("bundled:shapes", MODEL)
    )
    assert (local.pipeline, local.width, local.size_multiple) == (
        on_hub.pipeline,
        on_hub.width,
        on_hub.size_multiple,
    )
    assert on_hub.digest == f"{MODEL}@{REVISION}"


@pytest.mark.usefixtures("server")
def test_job_with_a_pinned_model_is_planned(tmp_path: Path) -> None:
    planned = plan(
        tmp_path, {"prompt": ["a " * 50, "b"]}, model={"id": MODEL, "revision": REVISION}
    )
    assert image_rows(planned)["truncated"].to_pylist() == [True, False]


def test_pinned_model_that_has_only_pickles_is_refused_at_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(BUNDLED_FOLDER / "shapes", tmp_path / "repository")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    (folder / "v1.ckpt").write_bytes(b"what no pipeline reads")
    (folder / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"a second copy of the weights")
    settings = ModelSettings(id=MODEL, revision=REVISION)
    with serving_model(folder, tmp_path, monkeypatch):
        assert load_model_facts(settings).pipeline == "StableDiffusionPipeline"
        weights.rename(weights.with_suffix(".bin"))
        with pytest.raises(BadInput) as caught:
            load_model_facts(settings)
    assert str(caught.value) == (
        f"{MODEL}: unet/diffusion_pytorch_model.bin is a pickle, which can run code. Convert "
        "it to safetensors."
    )


def test_model_in_the_cache_is_not_fetched_again(server: Hub) -> None:
    download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    requests_before = len(server.requested_files)
    download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert len(server.requested_files) == requests_before > 0


def test_model_in_the_cache_needs_no_hub(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    folder = download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert server.requested_files
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download_configuration(ModelSettings(id=MODEL, revision=REVISION)) == folder
    assert (
        load_model_facts(ModelSettings(id=MODEL, revision=REVISION)).pipeline
        == "StableDiffusionPipeline"
    )


@pytest.mark.parametrize("revision", [None, "main", "0123456"])
def test_only_a_commit_is_downloaded(revision: str | None) -> None:
    assert _error_message(BadInput, MODEL, revision) == (
        f"model.revision is not a commit: pin {MODEL} to one, 40 hexadecimal digits."
    )


@pytest.mark.usefixtures("server")
def test_unknown_revision_is_told_with_the_setting() -> None:
    assert (
        _error_message(Missing, MODEL)
        == f"{MODEL}: has no revision {OTHER}. Correct model.revision."
    )


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", ["kiln/nothing", "kiln/--..", f"kiln/{'x' * 100}"])
def test_unknown_model_is_told_with_the_setting(name: str) -> None:
    assert (
        _error_message(Missing, name)
        == f"{name}: no such model on the hub, or no access. Check model.id and HF_TOKEN."
    )


@pytest.mark.usefixtures("server")
def test_gated_model_is_told_with_what_to_accept() -> None:
    assert (
        _error_message(BadInput, GATED)
        == f"{GATED}: is gated. Accept its terms on the hub and set HF_TOKEN."
    )


@pytest.mark.usefixtures("server")
def test_refused_token_is_not_worth_another_try() -> None:
    assert (
        _error_message(BadInput, FORBIDDEN)
        == f"{FORBIDDEN}: the hub refused access (403). Check HF_TOKEN."
    )


@pytest.mark.usefixtures("server")
def test_model_that_may_not_be_fetched_is_not_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert _error_message(BadInput, MODEL, REVISION) == (
        f"{MODEL}: is not in this machine's cache, and HF_HUB_OFFLINE is set. "
        "Fill the model cache: `imagekiln fetch RUN`. Or unset it."
    )


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_hu\u00e4sh"),
        ("ALL_PROXY", "socks5://user:hush@proxy.example:1080"),
        ("ALL_PROXY", "ftp://user:hush@proxy.example"),
        ("ALL_PROXY", "http://user:hush/#@proxy.example:3128"),
    ],
)
def test_setting_that_the_client_cannot_use_is_no_reason_to_try_again(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    close_session()
    try:
        message = _error_message(BadInput, MODEL, REVISION)
    finally:
        close_session()
    assert message.startswith(f"{MODEL}: the hub's client cannot use its settings")
    assert "hush" not in message


def test_hub_that_does_not_answer_is_worth_another_try(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    with loopback_hub(BUNDLED_FOLDER) as gone:
        endpoint = gone.endpoint
    assert endpoint != server.endpoint
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client waits 23 s between its tries
    assert _error_message(TryAgain, MODEL, REVISION) == (
        f"{MODEL}: the hub could not be reached. Run again, or set model.id to a local path."
    )


@pytest.mark.usefixtures("server")
def test_hub_that_never_answers_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(hub_answers, "MAX_SILENCE_SECONDS", 0.1)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with silent_server() as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        close_session()
        try:
            assert "the hub could not be reached" in _error_message(TryAgain, MODEL, REVISION)
        finally:
            close_session()


def test_what_reads_a_storage_by_itself_ends_after_silence_and_reports_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_XET_CLIENT_READ_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    hub_answers.limit_client()
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert os.environ["HF_XET_CLIENT_READ_TIMEOUT"] == "120s"
    monkeypatch.setenv("HF_XET_CLIENT_READ_TIMEOUT", "7s")
    hub_answers.limit_client()
    assert os.environ["HF_XET_CLIENT_READ_TIMEOUT"] == "7s"


def test_storage_that_a_hub_of_somebody_else_names_is_asked_for_nothing(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    server.disturbances.add("stored")
    download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert server.requested_files
    assert not any(TOKEN_PATH in request for request in server.requests)


@pytest.mark.parametrize("disturbance", ["page", "cut", "stored"])
def test_answer_that_cannot_be_used_is_worth_another_try(
    server: Hub, disturbance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(hub_answers, "HUB", server.endpoint)  # whose storage hf_xet asks
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    server.disturbances.add(disturbance)
    assert "the hub could not be reached" in _error_message(TryAgain, MODEL, REVISION)
    server.disturbances.clear()
    folder = download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert (folder / "model_index.json").read_bytes() == (
        BUNDLED_FOLDER / "shapes" / "model_index.json"
    ).read_bytes()


def test_name_that_is_no_text_is_told_in_a_sentence(server: Hub) -> None:
    server.disturbances.add("surrogate")
    assert "the hub could not be reached" in _error_message(TryAgain, MODEL, REVISION)


@pytest.mark.parametrize("disturbance", ["break", "resume"])
def test_file_that_is_cut_off_again_and_again_is_given_up(
    server: Hub, disturbance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", PIECE_BYTES)
    monkeypatch.setattr("time.sleep", lambda _: None)
    server.disturbances.add(disturbance)
    model = HubReference(id=MODEL, revision=REVISION)
    with pytest.raises(TryAgain, match="a file is cut off again and again"):
        download_file(model, "tokenizer/tokenizer.json", "model")
    server.disturbances.clear()
    download_file(model, "tokenizer/tokenizer.json", "model")


def test_redirect_to_what_is_no_address_is_told_in_a_sentence(server: Hub) -> None:
    server.first_answers.append((302, {"Location": "http://[::"}))
    with pytest.raises(TryAgain, match="the hub could not be reached"):
        download_file(HubReference(id=MODEL, revision=REVISION), "vae/config.json", "model")


def test_list_of_programs_that_is_none_stops_no_download(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import _detect_agent

    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "programs.json"))
    monkeypatch.setattr(_detect_agent, "_registry", None)
    server.disturbances.add("programs")
    model = HubReference(id=MODEL, revision=REVISION)
    assert download_file(model, "model_index.json", "model").is_file()
    assert not (tmp_path / "programs.json").exists()
    assert PROGRAMS_PATH not in server.requests


def test_answer_that_drips_is_given_up(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_answers, "PACE_SECONDS", 0.3)
    server.disturbances.add("drip")
    model = HubReference(id=MODEL, revision=REVISION)
    for ask in (download_configuration, lambda model: download_file(model, "a.json", "model")):
        with pytest.raises(TryAgain, match="the server sends less than 4 kB a second"):
            ask(model)


def test_list_that_leads_to_itself_is_given_up(server: Hub) -> None:
    server.disturbances.add("again")
    assert "the same part of a list again and again" in _error_message(TryAgain, MODEL, REVISION)


@pytest.mark.parametrize("disturbance", ["endless", "swelling", "elsewhere"])
def test_list_that_has_no_end_fills_no_memory(
    server: Hub, disturbance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_answers, "MAX_LISTING_BYTES", 2**20)
    server.disturbances.add(disturbance)
    message = _error_message(BadInput, MODEL, REVISION)
    assert message == (
        "127.0.0.1: the hub sends more than 1 MiB for a list of files or a short answer. Trust no "
        "such hub: correct HF_ENDPOINT."
    )
    server.disturbances.clear()
    assert download_configuration(ModelSettings(id=MODEL, revision=REVISION)).is_dir()


def test_list_has_a_bound_where_an_answer_for_a_file_has_led(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_answers, "MAX_LISTING_BYTES", 2**20)
    model = HubReference(id=MODEL, revision=REVISION)
    server.first_answers.append((302, {"Location": LISTING}))
    server.first_answers.append((404, {"X-Error-Code": "EntryNotFound"}))
    with pytest.raises(Missing):
        download_file(model, "absent.json", "model")
    server.disturbances.add("swelling")
    with pytest.raises(BadInput, match="the hub sends more than 1 MiB for a list of files"):
        download_configuration(model)
    assert LISTING in server.requests


@pytest.mark.parametrize("place", ["", "elsewhere", "elsewhere and cut off", "here"])
def test_file_may_be_larger_than_a_list(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(hub_answers, "MAX_LISTING_BYTES", 2**20)
    monkeypatch.setattr("tests.hub.PIECE_BYTES", 3 * 2**20)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**20)
    monkeypatch.setattr("time.sleep", lambda _: None)
    (tmp_path / "repository" / "api").mkdir(parents=True)
    (tmp_path / "repository" / "api" / "large.json").write_bytes(b" " * 2**23)
    with (
        serving_model(tmp_path / "repository", tmp_path, monkeypatch) as server,
        loopback_hub(tmp_path / "repository", "127.0.0.2") as storage,
    ):
        storage.disturbances.update({"resume"} if "cut off" in place else set())
        if place:
            endpoint = "" if place == "here" else storage.endpoint
            location = f"{endpoint}{STORAGE_PATH}api/large.json"
            about = {"X-Repo-Commit": REVISION, "X-Linked-Etag": '"a"', "Location": location}
            server.first_answers.append((302, about | {"X-Linked-Size": f"{2**23}"}))
        model = HubReference(id=MODEL, revision=REVISION)
        file = download_file(model, "api/large.json", "model")
        assert len(storage.requests) == {"": 0, "here": 0, "elsewhere": 1}.get(place, 3)
    assert file.stat().st_size == 2**23


def test_hub_that_leads_to_a_service_of_this_machine_is_refused(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HubReference(id=MODEL, revision=REVISION)
    monkeypatch.setattr(web_client, "METADATA_NETWORKS", (ip_network("127.0.0.2/32"),))
    about_file = {"X-Repo-Commit": REVISION, "ETag": '"a"'}
    with loopback_hub(BUNDLED_FOLDER / "shapes", "127.0.0.2") as service:
        server.headers["Location"] = f"{service.endpoint}/config.json"
        server.first_answers.extend([(307, {}), (302, about_file)])
        for ask in (download_configuration, lambda model: download_file(model, "a.json", "model")):
            with pytest.raises(BadInput, match="an address of this machine or of its cloud"):
                ask(model)
    assert (server.first_answers, service.requests) == ([], [])


def test_table_on_a_hub_that_leads_to_a_service_of_this_machine_is_refused(
    tables: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_client, "METADATA_NETWORKS", (ip_network("127.0.0.2/32"),))
    with loopback_hub(BUNDLED_FOLDER / "shapes", "127.0.0.2") as service:
        tables.first_answers.append((302, {"Location": f"{service.endpoint}/config.json"}))
        with pytest.raises(BadInput, match="an address of this machine or of its cloud"):
            gather_sources((f"{TABLES}/*.csv",), tmp_path)
    assert (tables.first_answers, service.requests) == ([], [])


def test_list_of_tables_that_has_no_end_fills_no_memory(
    tables: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_answers, "MAX_LISTING_BYTES", 2**20)
    tables.disturbances.add("endless")
    with pytest.raises(BadInput, match="the hub sends more than 1 MiB for a list of files"):
        gather_sources((f"{TABLES}/*.csv",), tmp_path)


def test_table_is_read_from_a_hub_in_however_many_pieces(
    tables: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_answers, "MAX_CUTS", 1)
    monkeypatch.setattr(source_files, "CHUNK_BYTES", 100)
    (source,) = gather_sources((f"{TABLES}/*.csv",), tmp_path)
    assert source.path.read_text() == TABLE
    assert len(tables.requested_files) > 2


def test_page_in_place_of_a_file_is_worth_another_try(server: Hub) -> None:
    model = ModelSettings(id=MODEL, revision=REVISION)
    server.disturbances.add("page")
    with pytest.raises(TryAgain, match="the hub could not be reached"):
        download_file(model, "model_index.json", "model")


def test_hub_that_lists_no_files_is_asked_again(
    server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSettings(id=MODEL, revision=REVISION)
    monkeypatch.setattr(_tree_cache, "_IN_MEMORY_TREE_CACHE", {})
    server.disturbances.add("empty")
    with pytest.raises(TryAgain, match="the hub lists no files of this revision"):
        download_configuration(model)
    server.disturbances.clear()
    monkeypatch.setattr(_tree_cache, "_IN_MEMORY_TREE_CACHE", {})  # as in another process
    assert (download_configuration(model) / "model_index.json").is_file()


@pytest.mark.usefixtures("server")
def test_cache_that_cannot_be_written_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    assert str(tmp_path / "file") in _error_message(BadInput, MODEL, REVISION)


def test_repository_that_is_no_pipeline_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "config.json").write_text("{}")
    with serving_model(tmp_path / "repository", tmp_path, monkeypatch):
        assert _error_message(BadInput, MODEL, REVISION) == (
            f"{MODEL}: has no model_index.json, so it is not a diffusers pipeline. "
            "Choose another model."
        )


@pytest.mark.usefixtures("server")
def test_progress_bars_and_warnings_of_the_client_stay_off_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert capfd.readouterr() == ("", "")


RATE_LIMITED = (429, {"Retry-After": "60"})


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, none of which pass."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def _read_info() -> str:
    """A request that the hub's client sends once: the first one of a pipeline's download."""
    from huggingface_hub import HfApi

    return HfApi().model_info(MODEL, revision=REVISION).id


def test_busy_hub_is_asked_again_no_sooner_than_it_says_and_pods_come_apart(
    server: Hub, waits: list[float]
) -> None:
    model = ModelSettings(id=MODEL, revision=REVISION)
    server.first_answers.extend([RATE_LIMITED, (503, {}), (429, {"RateLimit": '"api";r=0;t=200'})])
    assert ask_hub(model, _read_info) == MODEL
    for seconds, asked in zip(waits, (60, 10, 200), strict=True):
        assert asked <= seconds <= 1.5 * asked

    waits.clear()
    for _ in range(5):
        server.first_answers.append(RATE_LIMITED)
        ask_hub(model, _read_info)
    assert len(set(waits)) == 5


def test_hub_that_stays_busy_is_worth_another_try_later(server: Hub, waits: list[float]) -> None:
    server.first_answers.extend([RATE_LIMITED] * 4)
    with pytest.raises(TryAgain) as caught:
        ask_hub(ModelSettings(id=MODEL, revision=REVISION), _read_info)
    assert str(caught.value) == (
        f"{MODEL}: the hub has too many requests from here (429). Run again later. "
        "Set HF_TOKEN, which raises the limit; on a cluster, use a profile with a cache."
    )
    assert len(waits) == 3


@pytest.mark.usefixtures("waits")
def test_configuration_is_downloaded_from_a_hub_that_was_busy(server: Hub) -> None:
    server.first_answers.extend([RATE_LIMITED] * 2)
    folder = download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert (folder / "model_index.json").is_file()


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "86400"}, {"RateLimit": '"api";r=0;t=86400'}], ids=str
)
def test_hub_that_asks_for_a_day_is_asked_again_within_minutes(
    server: Hub, waits: list[float], headers: dict[str, str]
) -> None:
    server.first_answers.extend([(429, headers)] * 2)
    download_configuration(ModelSettings(id=MODEL, revision=REVISION))
    assert len(waits) == 2
    assert max(waits) <= 1.5 * hub_answers.MAX_WAIT_SECONDS


@pytest.mark.usefixtures("waits")
def test_busy_hub_behind_an_error_of_diffusers_is_worth_another_try(server: Hub) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    def load() -> None:
        try:
            _read_info()
        except HfHubHTTPError as error:
            raise OSError("Cannot load model: it is not fully cached locally") from error

    server.first_answers.extend([RATE_LIMITED] * 4)
    with pytest.raises(TryAgain, match="too many requests"):
        ask_hub(ModelSettings(id=MODEL, revision=REVISION), load)


def test_lost_network_behind_an_error_of_diffusers_is_worth_another_try() -> None:
    from httpx2 import ConnectError

    def load() -> None:
        lost = ConnectError("Name or service not known")
        raise OSError("Cannot load model: it is not fully cached locally") from lost

    with pytest.raises(TryAgain, match="the hub could not be reached"):
        ask_hub(ModelSettings(id=MODEL, revision=REVISION), load)


def test_whoever_waits_for_a_lock_file_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.lock"
    with (
        FileLock(path),
        silence_hub_client(),
        pytest.raises(Timeout),
        WeakFileLock(path, timeout=0.05),
    ):
        pass
    assert f"Still waiting to acquire lock on {path}" in caplog.text
