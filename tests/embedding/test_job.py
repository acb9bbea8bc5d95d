"""A file of texts to a file of vectors."""

from itertools import pairwise

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

import regard
from embedding.text_files import FORMATS, texts, vectors_of, write_lines
from grids import grid
from regard import InputError
from regard.embedding import EmbeddingJob, Shard, TextSource
from regard.embedding.job import split_into_parts
from regard.pretrained.embedder import TOKENS_PER_BATCH
from weights import minilm, random_checkpoint


class TestVectors:
    def test_a_parquet_file_has_its_texts(self, tmp_path, encoder, source):
        EmbeddingJob(source, tmp_path / "v.parquet").run(encoder)
        table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
        assert table["index"].to_pylist() == list(range(300))
        assert table["text"].to_pylist() == texts(300)
        assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[24]"
        assert table.schema.metadata[b"regard.pooling"] == b"mean"

    @pytest.mark.parametrize(("pooling", "rule"), [("mean", lambda x: x.mean(0)), ("cls", lambda x: x[0])])
    def test_pooling_is_how_a_vector_is_made(self, tmp_path, encoder, source, pooling, rule):
        EmbeddingJob(source, tmp_path / "v.npy", pooling=pooling).run(encoder)
        vectors = torch.tensor(np.load(tmp_path / "v.npy"))
        for n in (0, 1, 2, 200):
            states = encoder.model(torch.tensor(encoder.encode(texts(300)[n]).ids))
            torch.testing.assert_close(vectors[n], rule(states), atol=1e-5, rtol=0)

    def test_another_pooling_keeps_the_models_length_1(self, tmp_path):
        source = TextSource(str(write_lines(tmp_path / "t.txt", ["a river bank", "a"])))
        EmbeddingJob(source, tmp_path / "v.npy", pooling="cls").run(minilm())
        np.testing.assert_allclose(np.linalg.norm(np.load(tmp_path / "v.npy"), axis=1), 1, atol=1e-6)

    @pytest.mark.parametrize("kind", ["parquet", "safetensors"])
    def test_without_pooling_every_token_has_a_vector(self, tmp_path, encoder, source, kind):
        out = tmp_path / f"v.{kind}"
        EmbeddingJob(source, out, pooling="none", max_part_texts=50).run(encoder)
        encoded = [encoder.encode(text) for text in texts(300)]
        if kind == "parquet":
            table = pyarrow.parquet.read_table(out)
            assert table["tokens"].to_pylist() == [each.tokens for each in encoded]
            found = [np.stack(each) for each in table["vectors"].to_numpy()]
        else:
            tensors = load_file(out)
            ends = tensors["offsets"]
            assert ends.tolist() == np.cumsum([0, *(len(each.ids) for each in encoded)]).tolist()
            assert tensors["ids"].tolist() == [i for each in encoded for i in each.ids]
            found = [tensors["vectors"][a:b] for a, b in pairwise(ends)]
            with safe_open(out, "numpy") as file:
                assert file.metadata()["pooling"] == "none"
        for each, vectors in list(zip(encoded, found, strict=True))[::23]:
            np.testing.assert_allclose(vectors, encoder.model(torch.tensor(each.ids)).detach().numpy(), atol=1e-5)

    @pytest.mark.parametrize("batch_size", [None, 7])
    def test_texts_of_one_length_go_through_the_model_together(self, encoder, batch_size):
        """Attention computes them at once."""
        encodings = [encoder.encode(text) for text in texts(300)]
        batches = list(encoder.embedder().hidden_states(encodings, batch_size=batch_size))
        order = [index for indices, _, _ in batches for index in indices]
        assert sorted(order) == list(range(300))
        found = [length for _, _, lengths in batches for length in lengths.tolist()]
        assert found == sorted(found) == [len(encodings[index].ids) for index in order]
        assert len(set(found)) > 3
        sums = [sum(lengths.tolist()) for _, _, lengths in batches]
        assert max(sums) <= TOKENS_PER_BATCH < sum(sums)
        # Each batch is as large as it may be: of so many texts, or of so many tokens.
        for (indices, _, lengths), (_, _, following) in pairwise(batches):
            assert len(indices) == batch_size or int(lengths.sum() + following[0]) > TOKENS_PER_BATCH

    @pytest.mark.parametrize(("kind", "count"), [("npy", 1), ("npy", 8), ("parquet", 3), ("safetensors", 3)])
    def test_shards_in_order_have_the_vectors_of_embed(self, tmp_path, encoder, source, kind, count):
        folder = tmp_path / "shards"
        folder.mkdir()
        files = [folder / f"v-{n:05}-of-{count:05}.{kind}" for n in range(count)]
        for n, file in enumerate(files):
            job = EmbeddingJob(source, folder / f"v.{kind}", shard=Shard(n, count), max_part_texts=50)
            result = job.run(encoder)
            assert (result.path, result.dim, result.num_truncated) == (file, 24, 0)
        assert sorted(folder.iterdir()) == files
        vectors = np.concatenate([vectors_of(file) for file in files])
        np.testing.assert_allclose(vectors, encoder.embed(texts(300)).numpy(), atol=1e-6)
        if kind == "parquet":
            assert pyarrow.parquet.read_table(folder)["index"].to_pylist() == list(range(300))

    @grid(kind=FORMATS, pooling=[None, "none"], where=lambda kind, pooling: (kind, pooling) != ("npy", "none"))
    def test_a_share_of_no_texts_is_a_file_of_no_vectors(self, tmp_path, encoder, kind, pooling):
        source = TextSource(str(write_lines(tmp_path / "t.txt", ["a river"])))
        result = EmbeddingJob(source, tmp_path / f"v.{kind}", shard=Shard(0, 3), pooling=pooling).run(encoder)
        assert result.num_texts == 0
        if kind == "parquet":
            assert len(pyarrow.parquet.read_table(result.path)) == 0
        elif pooling is None:
            assert vectors_of(result.path).shape == (0, 24)
        else:
            assert load_file(result.path)["offsets"].tolist() == [0]

    @pytest.mark.parametrize(
        ("max_texts", "max_characters", "sizes"),
        [(4, 100, [4, 4, 2]), (10, 6, [3, 3, 3, 1]), (10, 1, [1] * 10), (100, 100, [10])],
    )
    def test_parts_are_limited_in_texts_and_characters(self, max_texts, max_characters, sizes):
        parts = list(split_into_parts(["ab"] * 10, max_texts, max_characters))
        assert list(map(len, parts)) == sizes

    def test_progress_counts_equal_texts_that_are_embedded_once(self, tmp_path, encoder):
        source, calls = TextSource(str(write_lines(tmp_path / "t.txt", ["a", "the river", "a", "a"]))), []
        EmbeddingJob(source, tmp_path / "v.npy").run(encoder, lambda *facts: calls.append(facts))
        assert max(calls[:-1]) == (2, 4, False)
        assert calls[-1] == (4, 4, False)
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy")[0], np.load(tmp_path / "v.npy")[3])

    def test_under_torchrun_the_share_is_that_of_the_process(self, monkeypatch):
        assert Shard.from_environment("1/4") == Shard(1, 4)
        assert Shard.from_environment(None) is None
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert Shard.from_environment("1/4") == Shard(1, 4)
        monkeypatch.setenv("WORLD_SIZE", "8")
        monkeypatch.setenv("RANK", "5")
        assert Shard.from_environment(None) == Shard(5, 8)
        with pytest.raises(InputError, match="shard=1/4: under torchrun each of the 8 processes has its own share"):
            Shard.from_environment("1/4")
        monkeypatch.setenv("RANK", "8")
        with pytest.raises(InputError, match="RANK='8' in the environment is no number below WORLD_SIZE=8"):
            Shard.from_environment(None)
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        assert Shard.from_environment(None) == Shard(1, 2)


class TestRefusals:
    def test_a_text_that_is_too_long_is_named(self, tmp_path, encoder):
        lines, out = ["a", "a", "b", "man " * 50, "a", "man " * 50], tmp_path / "v.npy"
        source = TextSource(str(write_lines(tmp_path / "t.txt", lines)))
        message = r"t.txt, line 4: the text has 52 tokens, and .* has positions for 40; .*or cut it with truncate=True$"
        with pytest.raises(InputError, match=message):
            EmbeddingJob(source, out).run(encoder)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["t.txt"]
        assert EmbeddingJob(source, out, truncate=True).run(encoder).num_truncated == 2
        np.testing.assert_allclose(np.load(out)[3], encoder.embed("man " * 38)[0].numpy(), atol=1e-6)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("t.jsonl", '{"text": "a"}\n{"text": "\\ud800"}\n', r"t.jsonl, line 2: .* is not valid text"),
            ("t.jsonl", "", "t.jsonl holds no texts"),
            ("t.csv", "text\n", "t.csv holds no texts"),
            ("t.txt", "", "t.txt holds no texts"),
        ],
    )
    def test_files_that_hold_no_valid_texts(self, tmp_path, encoder, name, content, message):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=message):
            EmbeddingJob(TextSource(str(tmp_path / name)), tmp_path / "v.npy", truncate=True).run(encoder)

    @pytest.mark.parametrize(
        ("out", "options", "message"),
        [
            ("v.npy", {}, "v.npy exists already: remove it, or name another file"),
            ("nowhere/v.npy", {}, "nowhere is no folder"),
            ("v.pkl", {}, "v.pkl: vectors are written to .parquet, .npy, .safetensors"),
            ("v.npy", {"pooling": "none"}, "v.npy: with pooling=none each text has as many vectors as tokens"),
        ],
    )
    def test_places_that_cannot_be_written(self, tmp_path, source, out, options, message):
        (tmp_path / "v.npy").write_bytes(b"mine")
        with pytest.raises(InputError, match=message):
            EmbeddingJob(source, tmp_path / out, **options)
        assert (tmp_path / "v.npy").read_bytes() == b"mine"

    def test_models_that_make_no_vectors(self, tmp_path, source):
        random_checkpoint(tmp_path / "gpt2", "gpt2")
        with pytest.raises(InputError, match="is of the kind decoder; one vector of a text is what an encoder makes"):
            EmbeddingJob(source, tmp_path / "v.npy").run(regard.load(tmp_path / "gpt2"))

    @pytest.mark.parametrize("text", ["2/2", "3/2", "-1/2", "1", "1/0", "a/b", "1/2/3", "", "１/２"])
    def test_shares_that_are_none(self, text):
        with pytest.raises(InputError, match=rf"shard={text}: it is I/N, share I of N, and I is 0 to N - 1"):
            Shard.parse(text)
