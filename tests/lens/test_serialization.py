"""Recordings in files: reading returns what was written, or an error that says why not."""

import json
import math
import os
from contextlib import suppress
from functools import partial

import pytest
import torch
from hypothesis import given
from safetensors import safe_open
from safetensors.torch import save

import regard
from grids import grid
from json_places import altered, json_places
from lens.recordings import answers, make_recording, random_map, refuse
from masks import build, cases
from regard import mask
from regard.attention.bias import PositionBias
from regard.attention.positions import ALiBi, T5Relative
from regard.errors import InputError
from regard.lens import AttentionMap, AttentionSummary, OutputSample, Recording
from regard.lens.recording import serialization, tensors


def save_and_load(recording, folder):
    recording.save(folder / "recording.safetensors")
    return Recording.load(folder / "recording.safetensors")


assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)


def assert_same_map(ours, other):
    """Every fact and every statistic of two maps is equal, bit for bit."""
    assert_equal([*answers(ours), ours.error, ours.verified], [*answers(other), other.error, other.verified])
    assert (ours.dropout, ours.kernel, ours.tokens) == (other.dropout, other.kernel, other.tokens)


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
        {"mask": mask.where(lambda i, j: (i - j) % 3 != 1)},
        {"mask": mask.where(lambda i, j: (i - j) % torch.tensor([2, 3])[:, None, None] != 1)},
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
    recording = make_recording(random_map(batch=2, **options), tokens=[[list("abcdef"), list("ghabca")]])
    back = save_and_load(recording, tmp_path)
    assert_same_map(recording["h.0.attn"], back["h.0.attn"])
    assert str(back) == str(recording)
    assert_equal(recording.head_types()["h.0.attn"].scores, back.head_types()["h.0.attn"].scores)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_and_grouped_heads(dtype, tmp_path):
    m = random_map(3, 5, heads=4, kv_heads=2, dtype=dtype, mask=mask.causal())
    back = save_and_load(make_recording(m), tmp_path)["h.0.attn"]
    assert_equal((back.q, back.k, back.v), (m.q, m.k, m.v))
    assert_same_map(m, back)


def test_the_sample_and_the_kernel_lse_come_back(tmp_path):
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    b, i = torch.tensor([0, 1]), torch.tensor([3, 6])
    lse = (q @ k.mT * 8**-0.5).logsumexp(-1)
    rows, matrix = regard.attend(q, k, v)[b, :, i], torch.randn(32, 10)

    def transform(rows):
        return rows.flatten(1).to(matrix.dtype) @ matrix

    samples = {
        "plain": OutputSample(b, i, rows),
        "dropped": OutputSample(b, i, rows, dropout_factor=torch.ones(2, 4, 7)),
        "transformed": OutputSample(b, i, transform(rows), transform=transform),
        "wrong": OutputSample(b, i, transform(1.01 * rows), transform=transform),
    }
    maps = [AttentionMap(q, k, v, sample=samples[name], lse=lse if name == "plain" else None) for name in samples]
    back = save_and_load(make_recording(*maps), tmp_path)
    for m, of_file in zip(maps, back.values(), strict=True):
        assert_same_map(m, of_file)
    assert [m.verified for m in back.values()] == [True, True, True, False]


def test_a_recording_comes_back_whole(tmp_path):
    recording = make_recording(random_map(), random_map(seed=1))
    m = random_map(3, 6)
    recording.add("x.cross", m, shape=(1, 2, 3, 6), mask=None, kernel="k", kind="cross", layer=0, heads=[1, 4])
    recording.add_note("a note")
    back = save_and_load(recording, tmp_path)
    assert (list(back), back.notes, str(back)) == (list(recording), ("a note",), str(recording))
    for path in recording:
        for field in ("kind", "layer", "shape", "heads"):
            assert getattr(back.entry(path), field) == getattr(recording.entry(path), field)
    assert torch.equal(recording.rollout(2), back.rollout(2))


def test_what_layers_share_is_stored_once(tmp_path):
    shared = mask.allowed(torch.rand(1, 1, 64, 64) < 0.7) & mask.causal()
    t5, table, k = T5Relative(2), torch.randn(1, 64, 64), torch.randn(1, 2, 64, 8)
    biases = table.view(64, 64)[None], t5, table, t5
    maps = [AttentionMap(torch.randn_like(k), k, torch.randn_like(k), shared, bias=bias) for bias in biases]
    recording = make_recording(*maps)
    back = save_and_load(recording, tmp_path)
    with safe_open(tmp_path / "recording.safetensors", "pt") as file:
        shapes = sorted(tuple(file.get_tensor(name).shape) for name in file.keys())  # noqa: SIM118
    # Eight queries and values, one k, one mask of bits, T5's weight, one table.
    assert shapes == sorted([(1, 2, 64, 8)] * 9 + [(1, 1, 64, 8), (32, 2), (1, 64, 64)])
    assert back["h.0.attn"].k.data_ptr() == back["h.3.attn"].k.data_ptr()
    assert back["h.1.attn"].bias is back["h.3.attn"].bias
    for path in recording:
        assert_same_map(recording[path], back[path])


def test_a_mask_that_is_the_same_for_all_rows_stays_small(tmp_path):
    m = random_map(512, 512, mask=mask.allowed((torch.rand(1, 1, 1, 512) < 0.5).expand(1, 1, 512, 512)))
    assert_same_map(m, save_and_load(make_recording(m), tmp_path)["h.0.attn"])
    assert (tmp_path / "recording.safetensors").stat().st_size < 4 * 2 * 512 * 8 * 4


class CustomBias(PositionBias):
    num_heads = 2

    def forward(self, query, key):
        return ((key - query[:, None]) * torch.tensor([0.1, -0.2])[:, None, None]).float()


def test_a_custom_bias_is_stored_as_a_tensor(tmp_path):
    m = random_map(bias=CustomBias())
    torch.testing.assert_close(save_and_load(make_recording(m), tmp_path)["h.0.attn"].dense(), m.dense())


@pytest.mark.parametrize(
    ("options", "name"),
    [({"mask": mask.causal() & mask.where(lambda i, j: i - j > 5)}, "where"), ({"bias": CustomBias()}, "CustomBias")],
)
def test_a_mask_or_bias_too_large_as_a_tensor_is_refused_by_name(options, name, tmp_path):
    q = torch.zeros(1, 1, 1, 8).expand(1, 2, 30_000, 8)
    with pytest.raises(InputError, match=rf"{name}\(.* is a function .*30000 queries and 30000 keys .*MiB"):
        make_recording(AttentionMap(q, q, **options)).save(tmp_path / "recording.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_saving_checks_whether_tensors_were_changed(tmp_path):
    with pytest.raises(RuntimeError, match="changed in place"):
        make_recording(random_map(ensure_unchanged=refuse)).save(tmp_path / "recording.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_summaries_come_back(tmp_path):
    m = random_map(20, 20, mask=mask.causal(), batch=2)
    m.label([list("abcdefghijklmnopqrst")] * 2)
    recording = make_recording(summary := AttentionSummary.from_map(m))
    back = save_and_load(recording, tmp_path)
    assert str(back) == str(recording)
    for field in ("shape", "dtype", "tokens", "head_type_names"):
        assert getattr(back["h.0.attn"], field) == getattr(summary, field)
    assert_equal(back["h.0.attn"].answers, summary.answers)


def test_loading_draws_no_random_numbers(tmp_path):
    recording = make_recording(random_map(bias=T5Relative(2)))
    before = torch.get_rng_state()
    save_and_load(recording, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


# Files.


@pytest.fixture
def path(tmp_path):
    make_recording(random_map(mask=mask.padding([4])), tokens=[list("abcdef")]).save(tmp_path / "recording.safetensors")
    return tmp_path / "recording.safetensors"


def test_loaded_tensors_do_not_depend_on_the_file(path):
    back, again = Recording.load(path), Recording.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert_same_map(back["h.0.attn"], again["h.0.attn"])
    assert back["h.0.attn"].q.any()


def edit_header(path, **metadata):
    """The file with other metadata in its header."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        path.write_bytes(save(tensors, {**file.metadata(), **metadata}))


WEIGHTS = save({"weight": torch.ones(3)}, {"format": "pt"})
TRUNCATED = r"recording\.safetensors is truncated or no safetensors file .* Save the recor"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *((lambda path, n=n: path.write_bytes(path.read_bytes()[:n]), TRUNCATED) for n in (0, 5, 8, 100, 2000, -1)),
        (lambda path: path.unlink(), r"recording\.safetensors is missing"),
        (lambda path: (path.unlink(), path.mkdir()), r"recording\.safetensors"),
        (lambda path: path.write_bytes(WEIGHTS), r"but no recording: load what Recording\.save or regard"),
        (lambda path: edit_header(path, version="2"), "version 2, and this regard reads version 1: upgrade regard"),
        (lambda path: edit_header(path, recording="{"), "does not hold a recording as regard saved it"),
    ],
)
def test_what_is_no_whole_recording_is_refused(path, spoil, message):
    spoil(path)
    with pytest.raises(InputError, match=message):
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
        *(
            lambda facts, numbers=numbers: facts["attentions"][0]["patches"].update(queries=[numbers])
            for numbers in ([0, 0, 5, 2, 2, 2], [9, 0, 0, 2, 2, 2], [0, 0, 0.5, 2, 2, 2], [0, 0, 0, 2, 2, 1], [0, 0])
        ),
    ],
)
def test_facts_that_do_not_fit_are_refused(path, edit, as_a_user_runs_it):
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["recording"])
    edit(facts)
    edit_header(path, recording=json.dumps(facts))
    with pytest.raises(InputError, match=r"recording\.safetensors does not hold a recording as regard saved it"):
        Recording.load(path)


@grid(
    keep=["maps", "summary"],
    value=[None, "x", -1, 1.5, {}, math.nan, True, [1, 2]],
    mask=[mask.window(2), mask.padding([4]) & mask.first(3), mask.prefix(2) | ~mask.documents([0, 0, 1, 1, 2, 2])],
)
def test_an_altered_field_is_refused_or_does_no_harm(keep, value, mask, path, as_a_user_runs_it):
    """Each field in turn. What is loaded can be printed, read and saved."""
    m = random_map(mask=mask)
    whole = m if keep == "maps" else AttentionSummary.from_map(m)
    make_recording(whole, tokens=[list("abcdef")]).save(path)
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["recording"])
    for place in json_places(facts):
        edit_header(path, recording=json.dumps(altered(facts, place, value)))
        with suppress(InputError):
            back = Recording.load(path)
            str(back)
            for each in back.values():
                repr(each), each.entropy(), each.received(), each.distance(), each.top(1)
            back.save(path.with_name("again.safetensors"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none/x.safetensors", "there is no folder"),
        ("/dev/null", "it is no file"),
        ("x" * 300, "File name too long"),
    ],
)
def test_where_nothing_can_be_written_it_says_so(path, message, tmp_path):
    with pytest.raises(InputError, match=f"cannot write .*{message}"):
        make_recording(random_map()).save(tmp_path / path)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_what_was_there(path, monkeypatch):
    before = path.read_bytes()

    def fail(tensors, where, metadata):
        where.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(serialization, "save_file", fail)
    with pytest.raises(InputError, match="No space left on device"):
        make_recording(random_map()).save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_saving_over_a_recording_replaces_it_and_others_may_read_it(path):
    make_recording(m := random_map(3, 3)).save(path)
    assert_same_map(m, Recording.load(path)["h.0.attn"])
    (path.parent / "other").touch()
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode
