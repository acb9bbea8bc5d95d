"""`regard effect`: what mattered beside what was looked at, as a table, as JSON and as a page."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
import torch

import regard
from regard.lens.effects.default_metric import likeliest_token
from regard.lens.effects.table import summary
from terminals import refusal
from weights import smollm2

TEXT = "the river bank of the"
IOI = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def gpt2(models):
    """A small decoder, and the folder that it is in."""
    return regard.load(models["gpt2"]), models["gpt2"]


def said(out):
    """An output as one line, without the breaks of the console."""
    return " ".join(out.split())


def computed(command, path, *arguments):
    """The effects that a command writes."""
    code, out, err = command("effect", *arguments, "--json", path)
    assert (code, err) == (0, "")
    assert out != ""
    return regard.Effects.load(path)


@pytest.mark.parametrize("over", ["heads", "layers", "tokens", "edges"])
def test_the_table_and_the_json_are_what_the_library_computes(command, tmp_path, gpt2, over):
    pretrained, folder = gpt2
    expected = regard.effect(pretrained, TEXT, regard.metrics.log_prob("river"), over)
    code, out, err = command(
        "effect", TEXT, "--model", folder, "--tokens", "river", "--over", over, "--json", tmp_path / "x.json"
    )
    assert (code, err) == (0, "")
    assert said(summary(expected)) in said(out)
    found = regard.Effects.load(tmp_path / "x.json")
    assert (found.over, found.metric) == (over, expected.metric)
    torch.testing.assert_close(found.values, expected.values, equal_nan=True)


def test_by_default_the_models_own_next_token_is_the_metric(command, tmp_path, gpt2):
    pretrained, folder = gpt2
    effects = computed(command, tmp_path / "x.json", TEXT, "--model", folder)
    ids = torch.tensor([pretrained.encode_continuation(TEXT)])
    with torch.no_grad():
        log_probs = pretrained.model(ids)[0, -1].log_softmax(-1)
    assert float(effects.baseline[0]) == pytest.approx(float(log_probs.max()), abs=1e-4)
    assert effects.metric == regard.metrics.log_prob(likeliest_token(pretrained, TEXT)).name


@pytest.mark.parametrize(
    ("options", "metric"),
    [
        (("--tokens", "river,bank"), "logit_difference('river', 'bank')"),
        (("--metric", "logit-difference", "--tokens", "river,bank"), "logit_difference('river', 'bank')"),
        (("--metric", "loss"), "loss()"),
        (("--metric", "kl"), "kl()"),
    ],
)
def test_a_metric_by_its_name_or_by_its_tokens(command, tmp_path, gpt2, options, metric):
    assert computed(command, tmp_path / "x.json", TEXT, "--model", gpt2[1], *options).metric == metric


@pytest.mark.parametrize(("family", "metric"), [("bert", "cosine()"), ("bart", "loss()")])
def test_an_encoder_and_a_translator_have_metrics_of_their_own(command, tmp_path, models, family, metric):
    assert computed(command, tmp_path / "x.json", TEXT, "--model", models[family]).metric == metric


def test_the_ablation_takes_its_outputs_from_a_source(command, tmp_path, gpt2):
    source = tmp_path / "source.txt"
    source.write_text("a man on a river\n\nthe loan in a bank\n", encoding="utf-8")
    options = (TEXT, "--model", gpt2[1], "--metric", "loss")
    mean = computed(command, tmp_path / "x.json", *options, "--ablation", "mean", "--source", source)
    own = computed(command, tmp_path / "y.json", *options, "--ablation", "mean")
    assert mean.ablation == own.ablation == "mean"
    assert not torch.equal(mean.values, own.values)


def test_estimates_are_told_apart(command, tmp_path, gpt2):
    effects = computed(command, tmp_path / "x.json", TEXT, "--model", gpt2[1], "--method", "both", "--top", 3)
    assert int((~effects.values.isnan()).sum()) == 3
    assert effects.estimates is not None
    assert not bool(effects.estimates.isnan().any())


def test_a_page_opens_with_the_effects_and_has_the_maps(command, tmp_path, gpt2):
    page, path = tmp_path / "page.html", tmp_path / "x.json"
    code, out, err = command("effect", TEXT, "--model", gpt2[1], "--html", page, "--json", path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{page}: {page.stat().st_size / 1e6:.2f} MB"
    code, out, err = command("see", TEXT, "--model", gpt2[1], "--effects", path, "--out", tmp_path / "seen.html")
    assert (code, err) == (0, "")
    sizes = [path.stat().st_size for path in (page, tmp_path / "seen.html")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_json_alone_is_all_that_is_printed(command, tmp_path, gpt2):
    code, out, err = command("effect", TEXT, "--model", gpt2[1], "--json", "-", "--html", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert json.loads(out)["over"] == "heads"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "perplexity"], "--metric perplexity: it is log-prob, logit-difference, loss, kl or cosine"),
        (["--over", "neurons"], "--over neurons: it is heads, layers, tokens or edges"),
        (["--ablation", "median"], "--ablation median: it is zero, mean or resample"),
        (["--method", "magic"], "--method magic: it is exact, gradient or both"),
        (["--metric", "loss", "--tokens", "a"], "--tokens a: --metric loss names no token: leave --tokens out"),
        (["--metric", "logit-difference"], "--tokens: logit-difference takes 2 tokens, such as Mary,John"),
        (["--metric", "log-prob", "--tokens", "a,b"], "--tokens a,b: log-prob takes 1 token, such as Paris"),
        (["--tokens", "a,b,c"], "--tokens a,b,c: logit-difference takes 2 tokens, such as Mary,John"),
        (["--tokens", "a,"], "--tokens a,: logit-difference takes 2 tokens"),
        (["--over", "tokens", "--ablation", "mean"], "--over tokens blocks attention and replaces nothing"),
        (["--source", "x"], "--source belongs to --ablation mean or resample"),
        (["--ablation", "resample"], "give --source PATH, a text in each line"),
        (["--window", "3"], "--window belongs to --over edges"),
        (["--top", "0"], "Invalid value for '--top'"),
        (["--html", "-"], "--html -: give the page a file of its own"),
        (["--html", "x", "--json", "x"], "--html x: give the page a file of its own"),
        (["--html", "/no/such/folder/x"], "cannot write '/no/such/folder/x'"),
        (["--ablation", "mean", "--source", "missing.txt"], "missing.txt cannot be read"),
        (["--ablation", "mean", "--source", "empty.txt"], "--source empty.txt: there is no text in it"),
        (["--model", "no/such-model"], "'no/such-model' is not a folder here"),
    ],
)
def test_what_cannot_be_computed_is_one_line(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    assert message in refusal(command, "effect", TEXT, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "zzzzqqq"], "--tokens zzzzqqq: 'zzzzqqq' is 8 tokens of this model"),
        (["--ablation", "resample", "--source", "short.txt"], "give --source with texts of that length"),
    ],
)
def test_what_the_model_cannot_do_is_one_line(command, tmp_path, monkeypatch, gpt2, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("the\n")
    assert message in refusal(command, "effect", TEXT, "--model", gpt2[1], *arguments)


def test_a_distance_from_the_model_itself_has_no_estimate(command, models):
    options = ("--model", models["bert"], "--metric", "cosine", "--method", "gradient")
    refused = refusal(command, "effect", TEXT, *options)
    assert refused.startswith("regard: --method gradient: cosine() is lowest for the model as it is")
    assert refused.endswith("use --method exact\n")


def test_an_encoder_predicts_no_token(command, models):
    refused = refusal(command, "effect", TEXT, "--model", models["bert"], "--metric", "log-prob")
    assert "is no decoder: name a token with --tokens" in refused


@pytest.mark.more
def test_the_default_decoder_tells_the_head_that_matters_from_the_head_that_looks(command, tmp_path):
    """The figures of issue 20: the head that looks hardest, 24.4, hurts; 23.3 matters most."""
    effects = computed(command, tmp_path / "x.json", IOI, "--tokens", "Mary,John")
    assert effects.top(1)[0].name == "23.3"
    assert float(effects.values[0, 23, 3]) == pytest.approx(3.04, abs=0.01)
    assert float(effects.values[0, 24, 4]) < 0
    assert effects.looked_at is not None
    assert int(effects.looked_at.argmax()) == 24 * 9 + 4


@pytest.mark.more
def test_the_likeliest_token_of_the_default_decoder_has_a_name():
    assert likeliest_token(smollm2(), "The capital of France is") == " Paris"


@pytest.mark.more
def test_ctrl_c_shows_what_is_known_so_far(tmp_path):
    """The moment: the bar of the progress is there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "effect", IOI, "--tokens", "Mary,John", "--json", tmp_path / "x.json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200", "TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    shown = b""
    while b"effects over heads" not in shown:
        assert process.poll() is None
        shown += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 130
    assert "stopped early" in said(out.decode())
    effects = regard.Effects.load(tmp_path / "x.json")
    assert effects.is_partial
    assert 0 < int((~effects.values.isnan()).sum()) < 270
