"""A file of texts to a file of vectors."""

from itertools import pairwise

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

import regard
from embedding.text_files import texts, vectors_of, write_lines
from regard import InputError
from regard.embedding import EmbeddingJob, Shard, TextSource
from regard.embedding import job as jobs
from regard.pretrained import embedder as embedding
from weights import minilm, minilm_folder, random_bert, sentences

FORMATS = ["parquet", "npy", "safetensors"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    random_bert(folder, max_position_embeddings=40)
    return regard.load(folder)


@pytest.fixture
def source(tmp_path):
    return TextSource(str(write_lines(tmp_path / "texts.txt", texts(700))))


@pytest.fixture
def short_parts(monkeypatch):
    monkeypatch.setattr(jobs, "MAX_PART_TEXTS", 100)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_the_vectors_of_embed(tmp_path, encoder, source, short_parts, kind):
    out = tmp_path / f"v.{kind}"
    result = EmbeddingJob(source, out).run(encoder)
    assert (result.path, result.num_texts, result.dim, result.num_truncated) == (out, 700, 24, 0)
    np.testing.assert_allclose(vectors_of(out), encoder.embed(texts(700)).numpy(), atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", out.name]


def test_vectors_equal_those_of_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    chosen = [*sentences(60), "", "word " * 600]
    theirs = SentenceTransformer(str(minilm_folder()), device="cpu")
    theirs.max_seq_length = 512
    out = tmp_path / "v.npy"
    result = EmbeddingJob(TextSource(str(write_lines(tmp_path / "t.txt", chosen))), out, truncate=True).run(minilm())
    assert result.num_truncated == 1
    np.testing.assert_allclose(np.load(out), theirs.encode(chosen), atol=1e-5)


def test_a_parquet_file_tells_its_texts(tmp_path, encoder, source):
    EmbeddingJob(source, tmp_path / "v.parquet").run(encoder)
    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert table["index"].to_pylist() == list(range(700))
    assert table["text"].to_pylist() == texts(700)
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[24]"
    assert table.schema.metadata[b"regard.pooling"] == b"mean"


@pytest.mark.parametrize(("pool", "rule"), [("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0])])
def test_pooling_says_how_a_vector_is_made(tmp_path, encoder, source, pool, rule):
    out = tmp_path / "v.npy"
    EmbeddingJob(source, out, pooling=pool).run(encoder)
    vectors_found = torch.tensor(np.load(out))
    for n in (0, 1, 2, 600):
        states = encoder.model(torch.tensor(encoder.encode(texts(700)[n]).ids))
        torch.testing.assert_close(vectors_found[n], rule(states), atol=1e-5, rtol=0)


def test_a_pool_that_is_asked_for_keeps_the_models_length_1(tmp_path):
    out = tmp_path / "v.npy"
    EmbeddingJob(TextSource(str(write_lines(tmp_path / "t.txt", ["a river bank", "a"]))), out, pooling="cls").run(
        minilm()
    )
    np.testing.assert_allclose(np.linalg.norm(np.load(out), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("kind", ["parquet", "safetensors"])
def test_without_a_pool_every_token_has_a_vector(tmp_path, encoder, source, short_parts, kind):
    out = tmp_path / f"v.{kind}"
    EmbeddingJob(source, out, pooling="none").run(encoder)
    encoded = [encoder.encode(text) for text in texts(700)]
    if kind == "parquet":
        table = pyarrow.parquet.read_table(out)
        assert table["tokens"].to_pylist() == [each.tokens for each in encoded]
        vectors_found = [np.stack(each) for each in table["vectors"].to_numpy()]
    else:
        tensors = load_file(out)
        ends = tensors["offsets"]
        assert ends.tolist() == np.cumsum([0, *(len(each.ids) for each in encoded)]).tolist()
        assert tensors["ids"].tolist() == [i for each in encoded for i in each.ids]
        vectors_found = [tensors["vectors"][a:b] for a, b in pairwise(ends)]
        with safe_open(out, "numpy") as file:
            assert file.metadata()["pooling"] == "none"
    for each, vectors in list(zip(encoded, vectors_found, strict=True))[::23]:
        np.testing.assert_allclose(vectors, encoder.model(torch.tensor(each.ids)).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_shards_in_order_are_the_whole(tmp_path, encoder, source, short_parts, kind, count):
    folder = tmp_path / "shards"
    folder.mkdir()
    shards = [EmbeddingJob(source, folder / f"v.{kind}", shard=Shard(n, count)) for n in range(count)]
    assert sum(shard.run(encoder).num_texts for shard in shards) == 700
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"v-{n:05}-of-{count:05}.{kind}" for n in range(count)]
    full = np.concatenate([vectors_of(file) for file in files])
    np.testing.assert_allclose(full, encoder.embed(texts(700)).numpy(), atol=1e-6)
    if kind == "parquet":
        assert pyarrow.parquet.read_table(folder)["index"].to_pylist() == list(range(700))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("pool", [None, "none"])
def test_a_share_of_no_texts_is_a_file_of_no_vectors(tmp_path, encoder, kind, pool):
    if (kind, pool) == ("npy", "none"):
        pytest.skip("not in NumPy's format")
    source = TextSource(str(write_lines(tmp_path / "t.txt", ["a river"])))
    result = EmbeddingJob(source, tmp_path / f"v.{kind}", shard=Shard(0, 3), pooling=pool).run(encoder)
    assert result.num_texts == 0
    if pool is None and kind != "parquet":
        assert vectors_of(result.path).shape == (0, 24)
    elif kind == "parquet":
        assert len(pyarrow.parquet.read_table(result.path)) == 0
    else:
        assert load_file(result.path)["offsets"].tolist() == [0]


def test_equal_texts_are_embedded_once(tmp_path, encoder, monkeypatch):
    read = []
    original = embedding.Embedder.tokenize
    monkeypatch.setattr(
        embedding.Embedder, "tokenize", lambda self, batch, **more: read.extend(batch) or original(self, batch, **more)
    )
    source = TextSource(str(write_lines(tmp_path / "t.txt", ["a", "the river", "a", "a"])))
    EmbeddingJob(source, tmp_path / "v.npy").run(encoder)
    assert read == ["a", "the river"]
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy")[0], np.load(tmp_path / "v.npy")[3])


def test_progress_is_reported(tmp_path, encoder, source, short_parts):
    calls = []
    EmbeddingJob(source, tmp_path / "v.npy").run(encoder, lambda *facts: calls.append(facts))
    counts = [done for done, _, _ in calls]
    assert counts == sorted(counts)
    assert counts[-1] == 700
    assert {(total, resumed) for _, total, resumed in calls} == {(700, False)}


class TestWhatIsRefused:
    def test_a_text_that_is_too_long_is_named(self, tmp_path, encoder):
        source = TextSource(str(write_lines(tmp_path / "t.txt", ["a", "a", "b", "man " * 50, "a"])))
        message = r"t.txt, line 4: the text has 52 tokens, and .* has positions for 40; .*, or give --truncate$"
        with pytest.raises(InputError, match=message):
            EmbeddingJob(source, tmp_path / "v.npy").run(encoder)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt"]
        write_lines(tmp_path / "t.txt", ["a", "a", "b", "man " * 50, "a", "man " * 50])
        result = EmbeddingJob(source, tmp_path / "v.npy", truncate=True).run(encoder)
        assert result.num_truncated == 2
        np.testing.assert_allclose(np.load(tmp_path / "v.npy")[3], encoder.embed("man " * 38)[0].numpy(), atol=1e-6)

    def test_half_a_character_is_named(self, tmp_path, encoder):
        (tmp_path / "t.jsonl").write_text('{"text": "a"}\n{"text": "\\ud800"}\n')
        with pytest.raises(InputError, match=r"t.jsonl, line 2: .* is not valid text"):
            EmbeddingJob(TextSource(str(tmp_path / "t.jsonl")), tmp_path / "v.npy", truncate=True).run(encoder)

    @pytest.mark.parametrize(("name", "data"), [("t.txt", ""), ("t.csv", "text\n"), ("t.jsonl", "")])
    def test_a_file_without_texts(self, tmp_path, encoder, name, data):
        (tmp_path / name).write_text(data)
        with pytest.raises(InputError, match=rf"{name} holds no texts"):
            EmbeddingJob(TextSource(str(tmp_path / name)), tmp_path / "v.npy").run(encoder)

    def test_places_that_cannot_be_written(self, tmp_path, source):
        (tmp_path / "v.npy").write_bytes(b"mine")
        with pytest.raises(InputError, match=r"v.npy exists already: remove it, or name another file"):
            EmbeddingJob(source, tmp_path / "v.npy")
        with pytest.raises(InputError, match=r"nowhere is no folder"):
            EmbeddingJob(source, tmp_path / "nowhere" / "v.npy")
        with pytest.raises(InputError, match=r"v.pkl: vectors are written to .parquet, .npy, .safetensors"):
            EmbeddingJob(source, tmp_path / "v.pkl")
        with pytest.raises(InputError, match=r"v.npy: with --pooling none each text has as many vectors as tokens"):
            EmbeddingJob(source, tmp_path / "v.npy", pooling="none")
        assert (tmp_path / "v.npy").read_bytes() == b"mine"

    def test_models_that_make_no_vectors(self, tmp_path, source):
        from weights import random_checkpoint

        random_checkpoint(tmp_path / "gpt2", "gpt2")
        with pytest.raises(InputError, match="is of the kind decoder; one vector of a text is what an encoder makes"):
            EmbeddingJob(source, tmp_path / "v.npy").run(regard.load(tmp_path / "gpt2"))

    @pytest.mark.parametrize("text", ["2/2", "3/2", "-1/2", "1", "1/0", "a/b", "1/2/3", "", "１/２"])
    def test_shares_that_are_none(self, text):
        with pytest.raises(InputError, match=rf"--shard {text}: it is I/N, share I of N, and I is 0 to N - 1"):
            Shard.parse(text)


def test_under_torchrun_the_share_is_that_of_the_process(monkeypatch):
    assert Shard.from_environment("1/4") == Shard(1, 4)
    assert Shard.from_environment(None) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert Shard.from_environment("1/4") == Shard(1, 4)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "5")
    assert Shard.from_environment(None) == Shard(5, 8)
    with pytest.raises(InputError, match="--shard 1/4: under torchrun each of the 8 processes has its own share"):
        Shard.from_environment("1/4")
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(InputError, match="RANK='8' in the environment is no number below WORLD_SIZE=8"):
        Shard.from_environment(None)
