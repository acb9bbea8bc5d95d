"""Loading by a Hub name, against a server on this machine that speaks the Hub's file API."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from weights import random_bert, random_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """HEAD and GET of /OWNER/NAME/resolve/REVISION/FILE, with the headers that huggingface_hub asks for."""

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, *, body):
        name, resolve, rest = self.path.lstrip("/").partition("/resolve/")
        if not resolve:  # huggingface_hub also asks for things of its own
            return self.refuse(404, "EntryNotFound")
        revision, _, file = rest.partition("/")
        self.server.requests.append((self.command, file, revision))
        folder = self.server.models.get(name)
        if name == "owner/gated":
            return self.refuse(403, "GatedRepo")
        if folder is None:
            return self.refuse(404, "RepoNotFound")
        if file in self.server.failing:
            return self.refuse(self.server.failing[file], "")
        if not (folder / file).is_file():
            return self.refuse(404, "EntryNotFound")
        content = (folder / file).read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            cut = file in self.server.cut
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = cut
        return None

    def refuse(self, status, code):
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        if code == "EntryNotFound":
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    """The server, with one good model, one that has pickled weights only, and one without a tokenizer."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    server.requests, server.models, server.failing, server.cut = [], {}, {}, set()
    for name in ("good", "pickled", "no-tokenizer"):
        folder = tmp_path / "served" / name
        random_bert(folder)
        server.models[f"owner/{name}"] = folder
    (tmp_path / "served/pickled/model.safetensors").rename(tmp_path / "served/pickled/pytorch_model.bin")
    (tmp_path / "served/no-tokenizer/tokenizer.json").unlink()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def explain(tmp_path, name, endpoint, **environment):
    arguments = ["-m", "regard", "explain", "the river bank", "--model", name, "--json", "-"]
    return process(tmp_path, arguments, endpoint, **environment)


def python(tmp_path, code, endpoint):
    return process(tmp_path, ["-c", code], endpoint)


def process(tmp_path, arguments, endpoint, **environment):
    """A process of its own, since huggingface_hub reads its settings when it is imported."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": endpoint,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **environment,
        },
    )


def address(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_a_hub_name_loads_and_stays_in_the_cache(hub, tmp_path):
    first = explain(tmp_path, "owner/good", address(hub))
    assert first.returncode == 0, first.stderr
    facts = json.loads(first.stdout)
    assert facts["queries"]["tokens"] == ["[CLS]", "the", "river", "bank", "[SEP]"]
    assert facts["proof"]["max_error"] < 1e-5
    fetched = [(file, revision) for method, file, revision in hub.requests if method == "GET"]
    assert fetched == [("config.json", "main"), ("tokenizer.json", COMMIT), ("model.safetensors", COMMIT)]
    asked = {revision for method, file, revision in hub.requests if file != "config.json"}
    assert asked == {COMMIT}, "all files must be of the commit that the first was of"

    hub.requests.clear()
    again = explain(tmp_path, "owner/good", address(hub))
    assert json.loads(again.stdout) == facts
    assert hub.requests == [("HEAD", "config.json", "main")], "one look whether there is a newer commit"

    hub.requests.clear()
    start = time.monotonic()
    offline = explain(tmp_path, "owner/good", address(hub), HF_HUB_OFFLINE="1")
    without_asking = time.monotonic() - start
    assert json.loads(offline.stdout) == facts
    assert hub.requests == []

    start = time.monotonic()
    gone = explain(tmp_path, "owner/good", "http://127.0.0.1:9")
    assert json.loads(gone.stdout) == facts
    # Against a run that asks nobody, since starting Python takes its time where the machine is busy.
    waited = time.monotonic() - start - without_asking
    assert waited < 10 + without_asking, "a cached model must not wait for a network that is not there"


def test_the_pooling_is_read_from_the_folder_in_modules_json(hub, tmp_path):
    folder = hub.models["owner/good"]
    (folder / "somewhere").mkdir()
    (folder / "somewhere/config.json").write_text('{"pooling_mode_cls_token": true}')
    modules = [{"type": "st.Transformer", "path": ""}, {"type": "st.Pooling", "path": "somewhere"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    code = "import regard; p = regard.load('owner/good'); print(p.pooling); p.embed('the river')"
    assert python(tmp_path, code, address(hub)).stdout == "Pooling(mode='cls', normalize=False)\n"


def test_shards_and_eos_tokens_come_from_the_hub(hub, tmp_path):
    folder = tmp_path / "served/sharded"
    random_checkpoint(folder, "gpt2").save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 7]}')
    hub.models["owner/sharded"] = folder
    code = """import regard
p = regard.load("owner/sharded")
print(p.config.special_tokens.eos, sum(x.numel() for x in p.model.parameters()))
p.save("SAVED")
print(all((x == y).all() for x, y in zip(p.model.parameters(), regard.load("SAVED").model.parameters())))
""".replace("SAVED", str(tmp_path / "saved"))
    first = python(tmp_path, code, address(hub))
    assert first.stdout == "(1, 7) 52632\nTrue\n", first.stderr
    assert {revision for method, file, revision in hub.requests if file.startswith("model-")} == {COMMIT}
    assert python(tmp_path, code, "http://127.0.0.1:9").stdout == first.stdout, "all of it stays in the cache"

    next(folder.glob("model-00002-*")).unlink()
    again = python(tmp_path / "elsewhere", code, address(hub))
    assert "'owner/sharded' has no model-00002-of-" in again.stderr
    assert "says that it holds transformer." in again.stderr


@pytest.mark.parametrize("status", [403, 404])
def test_an_unreachable_pooling_is_not_guessed(hub, tmp_path, status):
    hub.failing["modules.json"] = status
    assert explain(tmp_path, "owner/good", address(hub)).returncode == 0
    code = "import regard; p = regard.load('owner/good'); print(p.pooling); p.embed('the river')"
    ended = python(tmp_path, code, address(hub))
    assert ended.stdout == "None\n"
    assert "how owner/good makes one vector of a text is not known" in ended.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/nothing", "the Hub has no such model"),
        ("owner/gated", "is gated: accept its terms"),
        (
            "owner/pickled",
            "has no model.safetensors on the Hub, only pytorch_model.bin. Pickled weights can run any code",
        ),
        ("owner/no-tokenizer", "has no tokenizer.json on the Hub"),
    ],
)
def test_a_file_that_the_hub_lacks_is_named(hub, tmp_path, name, message):
    ended = explain(tmp_path, name, address(hub))
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert not [file for method, file, _ in hub.requests if method == "GET" and file == "pytorch_model.bin"]


@pytest.mark.parametrize("environment", [{}, {"HF_HUB_OFFLINE": "1"}], ids=["no network", "offline by setting"])
def test_without_network_a_name_that_is_not_cached_is_named(tmp_path, environment):
    ended = explain(tmp_path, "owner/good", "http://127.0.0.1:9", **environment)
    assert ended.returncode == 2
    assert "'owner/good' is not a folder here, its config.json is not in the Hub's cache" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_download_that_breaks_off_is_named_and_leaves_nothing_half(hub, tmp_path):
    hub.cut.add("model.safetensors")
    ended = explain(tmp_path, "owner/good", address(hub))
    assert ended.returncode == 2
    assert "fetching model.safetensors from the Hub failed" in ended.stderr
    assert "Traceback" not in ended.stderr
    hub.cut.clear()
    assert explain(tmp_path, "owner/good", address(hub)).returncode == 0


@pytest.mark.parametrize("endpoint", ["notaurl", "http://[::bad", "http://127.0.0.1:9/\x7f"])
def test_an_invalid_endpoint_is_named(tmp_path, endpoint):
    ended = explain(tmp_path, "owner/good", endpoint)
    assert ended.returncode == 2
    assert "'owner/good'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_default_model_needs_no_hub(tmp_path):
    ended = explain(tmp_path, "sentence-transformers/all-MiniLM-L6-v2", "http://127.0.0.1:9")
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "hf").exists()
