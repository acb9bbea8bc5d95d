"""Recordings in files: reading returns what was written, or an error that says why not."""

import json
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from safetensors.torch import save_file

import regard
from masks import build, cases
from regard import mask
from regard.attention.bias import PositionBias
from regard.attention.positions import ALiBi, T5Relative
from regard.errors import InputError
from regard.lens import AttentionMap, AttentionSummary, OutputSample, Recording
from regard.lens.recording import serialization, tensors


def recorded(*maps, tokens=None):
    recording = Recording()
    for n, m in enumerate(maps):
        said = m.mask
        recording.add(f"h.{n}.attn", m, shape=tuple(m.shape), mask=said, kernel=m.kernel, kind="self", layer=n)
    if tokens is not None:
        recording.label(tokens)
    return recording


def a_map(queries=6, keys=6, *, batch=1, heads=2, kv_heads=None, dtype=torch.float32, **options):
    q = torch.randn(batch, heads, queries, 8, dtype=dtype)
    k, v = (torch.randn(batch, kv_heads or heads, keys, width, dtype=dtype) for width in (8, 5))
    return AttentionMap(q, k, v, kernel="fused", **options)


def again(recording, folder):
    path = folder / "seen.safetensors"
    recording.save(path)
    return Recording.load(path)


def same(ours, theirs):
    """Whether every statistic of two maps is equal, bit for bit."""
    assert ours.shape == theirs.shape
    for statistic in (
        lambda m: m.dense(),
        lambda m: m.entropy(),
        lambda m: m.received(),
        lambda m: m.distance().mean,
        lambda m: m.distance().spread,
        lambda m: m.top(2).weights,
        lambda m: m.top(2).keys,
        lambda m: m.pooled(2, 2),
        lambda m: m.mass([0, *[1] * (m.shape[3] - 1)]),
        lambda m: m.lse,
    ):
        assert torch.equal(statistic(ours), statistic(theirs))
    assert (ours.error, ours.verified) == (theirs.error, theirs.verified) or ours.error != ours.error
    assert ours.dropout == theirs.dropout
    assert ours.kernel == theirs.kernel


@settings(max_examples=60, deadline=None)
@given(cases(min_tokens=1))
def test_every_mask_comes_back(case):
    made = build(case.spec)
    writer = tensors.RecordingWriter()
    place = writer.mask(made, case.queries, case.keys)
    reader = tensors.RecordingReader(writer.tensors, json.loads(json.dumps(writer.masks)), [])
    back = reader.mask(place)
    assert torch.equal(back.dense(case.queries, case.keys), made.dense(case.queries, case.keys))
    if "where" not in str(case.spec):
        assert back == made
        assert repr(back) == repr(made)
        assert (back.batch_size, back.shape, back.min_keys) == (made.batch_size, made.shape, made.min_keys)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": mask.causal() & mask.padding([6, 4])},
        {"mask": ~(mask.documents([0, 0, 1, 1, 1, 2]) | mask.window(2, 1, offset=0))},
        {"mask": mask.documents([0, 0, 1, 1, 1, 2], [2, 2, 0, 0, 1, 1])},
        {"mask": mask.prefix([2, 3])},
        {"mask": mask.where(lambda i, j: (i - j) % 3 != 1)},
        {"mask": mask.blocked(torch.eye(6, dtype=torch.bool))},
        {"scale": -0.7, "softcap": 3.0},
        {"sinks": torch.tensor([0.3, -0.2]), "dropout": 0.1},
        {"bias": torch.randn(1, 6, 6)},
        {"bias": torch.randn(2, 1, 6, 1).expand(2, 2, 6, 6)},
        {"bias": ALiBi(2)},
        {"bias": T5Relative(2, num_buckets=8, max_distance=12)},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_every_statistic_has_the_same_answer(options, tmp_path):
    recording = recorded(a_map(batch=2, **options), tokens=[list("abcdef"), list("ghabca")])
    back = again(recording, tmp_path)
    same(recording["h.0.attn"], back["h.0.attn"])
    assert back["h.0.attn"].tokens == recording["h.0.attn"].tokens
    assert str(back) == str(recording)
    kinds, theirs = recording.head_types()["h.0.attn"], back.head_types()["h.0.attn"]
    assert kinds.names == theirs.names
    for name, score in kinds.scores.items():
        torch.testing.assert_close(score, theirs.scores[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_and_grouped_heads(dtype, tmp_path):
    m = a_map(3, 5, heads=4, kv_heads=2, dtype=dtype, mask=mask.causal())
    back = again(recorded(m), tmp_path)["h.0.attn"]
    assert back.dtype == dtype
    for name in "qkv":
        assert torch.equal(getattr(back, name), getattr(m, name))
    same(m, back)


def test_the_sample_and_the_kernel_lse_come_back(tmp_path):
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    at = torch.tensor([0, 1]), torch.tensor([3, 6])
    output = regard.attend(q, k, v)
    lse = (q @ k.transpose(-1, -2) * 8**-0.5).logsumexp(-1)
    matrix = torch.randn(32, 10)

    def transform(rows):
        return rows.flatten(1).to(matrix.dtype) @ matrix

    plain = AttentionMap(q, k, v, lse=lse, sample=OutputSample(*at, output[at[0], :, at[1]]))
    factor = torch.ones(2, 4, 7)
    dropped = AttentionMap(q, k, v, sample=OutputSample(*at, output[at[0], :, at[1]], dropout_factor=factor))
    rows = output[at[0], :, at[1]]
    transformed = AttentionMap(q, k, v, sample=OutputSample(*at, transform(rows), transform=transform))
    bent = AttentionMap(q, k, v, sample=OutputSample(*at, transform(1.01 * rows), transform=transform))
    recording = recorded(plain, dropped, transformed, bent)
    back = again(recording, tmp_path)
    for path, m in recording.items():
        assert m.error == m.error
        same(m, back[path])
    assert [m.verified for m in back.values()] == [True, True, True, False]


def test_a_recording_comes_back_whole(tmp_path):
    recording = recorded(a_map(), a_map())
    recording.add(
        "x.cross", a_map(3, 6), shape=(1, 2, 3, 6), mask=None, kernel="k", kind="cross", layer=0, heads=[1, 4]
    )
    recording.add_note("a note")
    back = again(recording, tmp_path)
    assert list(back) == list(recording)
    assert back.notes == ("a note",)
    assert str(back) == str(recording)
    for path in recording:
        ours, theirs = recording.entry(path), back.entry(path)
        assert (ours.kind, ours.layer, ours.shape, ours.heads) == (
            theirs.kind,
            theirs.layer,
            theirs.shape,
            theirs.heads,
        )
    assert torch.equal(recording.rollout(2), back.rollout(2))


def test_what_layers_share_is_stored_once(tmp_path):
    shared = mask.allowed(torch.rand(1, 1, 64, 64) < 0.7)
    bias, table = T5Relative(2), torch.randn(1, 64, 64)
    k = torch.randn(1, 2, 64, 8)
    maps = []
    for n in range(4):
        q, v = torch.randn(1, 2, 64, 8), torch.randn(1, 2, 64, 8)
        maps.append(AttentionMap(q, k, v, shared & mask.causal(), bias=bias if n % 2 else table.view(64, 64)[None]))
    recording = recorded(*maps)
    path = tmp_path / "seen.safetensors"
    recording.save(path)
    with safe_open(path, "pt") as file:
        shapes = sorted(tuple(file.get_tensor(name).shape) for name in file.keys())  # noqa: SIM118
    # Eight queries and values, one k, one mask of bits, T5's weight, one table.
    assert shapes == sorted([(1, 2, 64, 8)] * 9 + [(1, 1, 64, 8), (32, 2), (1, 64, 64)])
    back = Recording.load(path)
    assert back["h.0.attn"].k is not None
    assert back["h.0.attn"].k.data_ptr() == back["h.3.attn"].k.data_ptr()
    assert back["h.1.attn"].bias is back["h.3.attn"].bias
    for name in recording:
        same(recording[name], back[name])


def test_a_mask_that_is_the_same_for_all_rows_stays_small(tmp_path):
    wide = torch.rand(1, 1, 1, 512) < 0.5
    m = AttentionMap(*(torch.randn(1, 1, 512, 8) for _ in range(3)), mask.allowed(wide.expand(1, 1, 512, 512)))
    path = tmp_path / "seen.safetensors"
    recorded(m).save(path)
    assert path.stat().st_size < 4 * 512 * 8 * 4
    same(m, Recording.load(path)["h.0.attn"])


class Slanted(PositionBias):
    """A bias of one's own."""

    num_heads = 2

    def forward(self, query, key):
        return ((key - query[:, None]) * torch.tensor([0.1, -0.2])[:, None, None]).float()


def test_a_bias_of_ones_own_is_stored_as_a_tensor(tmp_path):
    m = a_map(bias=Slanted())
    back = again(recorded(m), tmp_path)["h.0.attn"]
    assert isinstance(back.bias, torch.Tensor)
    torch.testing.assert_close(back.dense(), m.dense())


def test_a_mask_or_bias_too_large_as_a_tensor_is_refused_by_name(tmp_path):
    q = torch.zeros(1, 1, 1, 8).expand(1, 2, 30_000, 8)
    far = mask.where(lambda i, j: i - j > 5)
    for options, name in (({"mask": mask.causal() & far}, "where"), ({"bias": Slanted()}, "Slanted")):
        recording = recorded(AttentionMap(q, q, **options))
        with pytest.raises(InputError, match=rf"{name}\(.* is a function .*30000 queries and 30000 keys .*MiB"):
            recording.save(tmp_path / "seen.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_saving_checks_whether_tensors_were_changed(tmp_path):
    def changed():
        raise RuntimeError("changed in place")

    with pytest.raises(RuntimeError, match="changed in place"):
        recorded(a_map(ensure_unchanged=changed)).save(tmp_path / "seen.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_summaries_come_back(tmp_path):
    m = a_map(20, 20, mask=mask.causal(), batch=2)
    m.label([list("abcdefghijklmnopqrst")] * 2)
    summary = AttentionSummary.from_map(m)
    recording = Recording()
    recording.add("a", summary, shape=tuple(m.shape), mask=None, kernel="fused", kind="self", layer=0)
    back = again(recording, tmp_path)
    theirs = back["a"]
    assert str(back) == str(recording)
    assert (theirs.shape, theirs.dtype, theirs.tokens, theirs.head_type_names) == (
        summary.shape,
        summary.dtype,
        summary.tokens,
        summary.head_type_names,
    )
    assert theirs.answers.keys() == summary.answers.keys()
    for name, answer in summary.answers.items():
        torch.testing.assert_close(theirs.answers[name], answer, rtol=0, atol=0, equal_nan=True)


def test_loading_draws_no_random_numbers(tmp_path):
    recorded(a_map(bias=T5Relative(2))).save(tmp_path / "seen.safetensors")
    before = torch.get_rng_state()
    Recording.load(tmp_path / "seen.safetensors")
    assert torch.equal(torch.get_rng_state(), before)


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path):
    m = a_map()
    path = tmp_path / "seen.safetensors"
    recorded(m).save(path)
    back = Recording.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    same(m, back["h.0.attn"])


# Files.


@pytest.fixture
def path(tmp_path):
    recorded(a_map(mask=mask.padding([4])), tokens=list("abcdef")).save(tmp_path / "seen.safetensors")
    return tmp_path / "seen.safetensors"


def test_a_truncated_file_is_refused_wherever_it_ends(path):
    whole = path.read_bytes()
    for size in (0, 5, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            InputError, match=r"seen\.safetensors is truncated or no safetensors file .* Save the recor"
        ):
            Recording.load(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.safetensors is missing"):
        Recording.load(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match=str(tmp_path)):
        Recording.load(tmp_path)


def test_a_file_of_weights_is_no_recording(tmp_path):
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        InputError, match=r"is a safetensors file, but no recording: load what Recording\.save or regard"
    ):
        Recording.load(tmp_path / "model.safetensors")


def edited(path, edit):
    """The file with another header."""
    whole = path.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    edit(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size :])


def test_a_newer_version_says_so(path):
    edited(path, lambda said: said.update(version="2"))
    with pytest.raises(
        InputError, match="is a recording of version 2, and this regard reads version 1: upgrade regard"
    ):
        Recording.load(path)


@pytest.mark.parametrize(
    "edit",
    [
        lambda facts: facts.pop("masks"),
        lambda facts: facts["masks"][0].update(padding={"tensor": "99"}),
        lambda facts: facts.update(masks=[{"spiral": 3}]),
        lambda facts: facts["attentions"][0]["data"].update(mask=7),
        lambda facts: facts["attentions"][0]["data"].pop("scale"),
        lambda facts: facts["attentions"][0].update(tokens=[["a"], ["b"]]),
        lambda facts: facts.update(attentions=3),
        lambda facts: facts["attentions"][0]["data"]["map"].update(q=None),
    ],
)
def test_facts_that_do_not_fit_are_refused(path, edit, as_a_user_runs_it):
    def change(said):
        facts = json.loads(said["recording"])
        edit(facts)
        said["recording"] = json.dumps(facts)

    edited(path, change)
    with pytest.raises(InputError, match=r"seen\.safetensors does not hold a recording as regard saved it"):
        Recording.load(path)


def test_a_header_that_is_no_json_is_refused(path):
    edited(path, lambda said: said.update(recording="{"))
    with pytest.raises(InputError, match="does not hold a recording as regard saved it"):
        Recording.load(path)


def test_where_nothing_can_be_written_it_says_so(tmp_path):
    recording = recorded(a_map())
    (tmp_path / "file").write_text("x")
    for path, message in (
        (tmp_path / "none" / "x.safetensors", "there is no folder"),
        (tmp_path, "it is no file"),
        ("/dev/null", "it is no file"),
        (tmp_path / "file" / "x", "there is no folder"),
        ("\0", "null"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(InputError, match=f"cannot write .*{message}"):
            recording.save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
def test_a_failure_leaves_what_was_there(path, monkeypatch, error):
    before = path.read_bytes()

    def fails(tensors, where, metadata):
        where.write_bytes(b"half")
        raise error

    monkeypatch.setattr(serialization, "save_file", fails)
    with pytest.raises((InputError, KeyboardInterrupt), match=r"No space left on device|^$"):
        recorded(a_map()).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_saving_over_a_recording_replaces_it_and_others_may_read_it(path):
    m = a_map(3, 3)
    recorded(m).save(path)
    same(m, Recording.load(path)["h.0.attn"])
    (path.parent / "other").touch()
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode
