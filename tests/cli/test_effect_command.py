"""`regard effect`: what mattered beside what was looked at, as a table, as JSON and as a page."""

import itertools
import json
import os
import pty
import shutil
import signal
import subprocess

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import regard
from regard.lens.effects.default_metric import likeliest_token
from regard.lens.effects.table import summary
from regard.transformer import Decoder
from terminals import printed, refusal, started
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
    """What a command prints, as one line without the console's breaks, and the effects that it writes."""
    out = printed(command, "effect", *arguments, "--json", path)
    assert out != ""
    return said(out), regard.Effects.load(path)


@pytest.mark.parametrize("over", ["heads", "layers", "tokens", "edges"])
def test_the_table_and_the_json_are_what_the_library_computes(command, tmp_path, gpt2, over):
    pretrained, folder = gpt2
    expected = regard.effect(pretrained, TEXT, regard.metrics.log_prob("river"), over)
    options = ("--model", folder, "--tokens", "river", "--over", over)
    out, found = computed(command, tmp_path / "x.json", TEXT, *options)
    assert said(summary(expected)) in out
    assert (found.over, found.metric) == (over, expected.metric)
    torch.testing.assert_close(found.values, expected.values, equal_nan=True)


def test_by_default_the_models_own_next_token_is_the_metric(command, tmp_path, gpt2):
    pretrained, folder = gpt2
    _, effects = computed(command, tmp_path / "x.json", TEXT, "--model", folder)
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
    assert computed(command, tmp_path / "x.json", TEXT, "--model", gpt2[1], *options)[1].metric == metric


@pytest.mark.parametrize(("family", "metric"), [("bert", "cosine()"), ("bart", "loss()")])
def test_an_encoder_and_a_translator_have_metrics_of_their_own(command, tmp_path, models, family, metric):
    assert computed(command, tmp_path / "x.json", TEXT, "--model", models[family])[1].metric == metric


def test_the_ablation_takes_its_outputs_from_a_source(command, tmp_path, gpt2):
    source = tmp_path / "source.txt"
    source.write_text("a man on a river\n\nthe loan in a bank\n", encoding="utf-8")
    options = (TEXT, "--model", gpt2[1], "--metric", "loss")
    _, mean = computed(command, tmp_path / "x.json", *options, "--ablation", "mean", "--source", source)
    _, own = computed(command, tmp_path / "y.json", *options, "--ablation", "mean")
    assert mean.ablation == own.ablation == "mean"
    assert not torch.equal(mean.values, own.values)


def test_estimates_are_told_apart(command, tmp_path, gpt2):
    _, effects = computed(command, tmp_path / "x.json", TEXT, "--model", gpt2[1], "--method", "both", "--top", 3)
    assert int((~effects.values.isnan()).sum()) == 3
    assert effects.estimates is not None
    assert not bool(effects.estimates.isnan().any())


def test_a_page_opens_with_the_effects_and_has_the_maps(command, tmp_path, gpt2):
    page, path = tmp_path / "page.html", tmp_path / "x.json"
    out = printed(command, "effect", TEXT, "--model", gpt2[1], "--html", page, "--json", path)
    assert out.splitlines()[-1] == f"{page}: {page.stat().st_size / 1e6:.2f} MB"
    printed(command, "see", TEXT, "--model", gpt2[1], "--effects", path, "--out", tmp_path / "seen.html")
    sizes = [path.stat().st_size for path in (page, tmp_path / "seen.html")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_json_alone_is_all_that_is_printed(command, tmp_path, gpt2):
    out = printed(command, "effect", TEXT, "--model", gpt2[1], "--json", "-", "--html", tmp_path / "page.html")
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
def test_what_cannot_be_computed_is_one_line(command, here, arguments, message):
    (here / "empty.txt").write_text("\n \n")
    assert message in refusal(command, "effect", TEXT, *arguments)


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("gpt2", ["--tokens", "zzzzqqq"], "--tokens zzzzqqq: 'zzzzqqq' is 8 tokens of this model"),
        ("gpt2", ["--ablation", "resample", "--source", "short.txt"], "give --source with texts of that length"),
        ("bert", ["--metric", "log-prob"], "is no decoder: name a token with --tokens"),
    ],
)
def test_what_the_model_cannot_do_is_one_line(command, here, models, family, arguments, message):
    (here / "short.txt").write_text("the\n")
    assert message in refusal(command, "effect", TEXT, "--model", models[family], *arguments)


def test_a_distance_from_the_model_itself_has_no_estimate(command, models):
    options = ("--model", models["bert"], "--metric", "cosine", "--method", "gradient")
    refused = refusal(command, "effect", TEXT, *options)
    assert refused.startswith("regard: --method gradient: cosine() is lowest for the model as it is")
    assert refused.endswith("use --method exact\n")


def test_a_likeliest_token_that_is_a_piece_of_a_character_is_named_by_its_id(tmp_path, gpt2):
    pretrained, folder = gpt2
    path = shutil.copytree(folder, tmp_path / "copy") / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    # The byte-level name of the first byte of many letters, in the place of a letter that TEXT has not.
    id_ = vocabulary["Ã"] = vocabulary.pop(likeliest_token(pretrained, TEXT))
    path.write_text(json.dumps(content))
    assert likeliest_token(regard.load(path.parent), TEXT) == id_


@pytest.mark.more
def test_the_likeliest_token_of_the_default_decoder_has_a_name():
    assert likeliest_token(smollm2(), "The capital of France is") == " Paris"


def test_effects_that_ctrl_c_left_unknown_are_told_by_the_exit_code(command, gpt2):
    """The moment: the third time that the model runs, when the effects of the second run are known."""
    calls = itertools.count(1)

    def interrupt(module, _inputs):
        if isinstance(module, Decoder) and next(calls) == 3:
            raise KeyboardInterrupt

    options = ("--model", gpt2[1], "--tokens", "river", "--over", "tokens")
    with register_module_forward_pre_hook(interrupt):
        code, out, _ = command("effect", " ".join([TEXT] * 4), *options)
    assert code == 130
    assert "stopped early: 31 effects" in said(out)


@pytest.mark.more
def test_ctrl_c_shows_what_is_known_so_far(tmp_path):
    """The moment: the bar of the progress is there."""
    ours, theirs = pty.openpty()
    arguments = (IOI, "--tokens", "Mary,John", "--json", tmp_path / "x.json")
    process = started("effect", *arguments, stdout=subprocess.PIPE, stderr=theirs)
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
