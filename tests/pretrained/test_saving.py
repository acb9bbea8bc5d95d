"""What `save` writes is what was loaded, and a failure leaves the old files."""

import os
import resource
import sys
from itertools import count

import pytest
import transformers

import regard
from regard import InputError
from regard.pretrained.save import DRAFT_FOLDER
from weights import random_checkpoint, same_weights


class TestSaving:
    @pytest.fixture
    def folder(self, tmp_path):
        random_checkpoint(tmp_path / "model", "gpt2")
        return tmp_path / "model"

    @pytest.fixture
    def changed(self, folder):
        """The model of the folder with other weights."""
        pretrained = regard.load(folder)
        for parameter in pretrained.model.parameters():
            parameter.data += 1
        return pretrained

    def files(self, folder):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    @pytest.mark.parametrize("limit", [0, 300, 1500, 100_000])
    def test_a_full_disk_leaves_the_old_files(self, folder, changed, limit):
        """The size of every file that this process writes is limited."""
        before, limits = self.files(folder), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(InputError, match=r"(?s)cannot be written.*The files that were there are as before"):
                changed.save(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert self.files(folder) == before

    def test_a_file_is_on_the_disk_before_it_takes_the_place_of_the_old(self, folder, changed, monkeypatch):
        """A computer that loses power in between has the old file or the whole new one."""
        on_disk, fsync, replace = set(), os.fsync, os.replace

        def synced(file):
            fsync(file)
            on_disk.add(os.readlink(f"/proc/self/fd/{file}"))

        def replaced(source, target):
            assert str(source) in on_disk
            replace(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        changed.save(folder)
        assert on_disk

    def test_an_interrupt_leaves_the_old_files_or_the_new(self, folder, changed, tmp_path):
        """At the first call of a function, the third, and so on through the whole of it."""
        changed.save(tmp_path / "new")
        before, after, num_interrupts = self.files(folder), self.files(tmp_path / "new"), 0
        for step in count():
            calls = iter(range(1 + step + step**3 // 20))

            def interrupt(frame, event, argument, calls=calls):
                if event.endswith("call") and next(calls, None) is None:
                    raise KeyboardInterrupt

            sys.setprofile(interrupt)
            try:
                changed.save(folder)
                break
            except KeyboardInterrupt:
                num_interrupts += 1
            finally:
                sys.setprofile(None)
            present = self.files(folder)
            assert {name: content for name, content in present.items() if "/" not in name} in (before, after), step
            for name, content in before.items():
                (folder / name).write_bytes(content)
        assert num_interrupts > 10
        assert self.files(folder) == after != before

    def test_the_next_save_removes_what_a_killed_save_left(self, folder):
        before = self.files(folder)
        (folder / DRAFT_FOLDER).mkdir()
        (folder / DRAFT_FOLDER / "model.safetensors").write_bytes(b"half a file")
        regard.load(folder).save(folder)
        assert self.files(folder).keys() == before.keys()

    def test_a_folder_of_another_model_is_refused(self, folder, tmp_path):
        random_checkpoint(tmp_path / "other", "t5")
        (tmp_path / "other/spiece.model").write_text("")
        before = self.files(tmp_path / "other")
        with pytest.raises(InputError, match=r"other holds spiece\.model, which this model does not have"):
            regard.load(folder).save(tmp_path / "other")
        assert self.files(tmp_path / "other") == before

    def test_shards_replace_one_file_and_the_reverse(self, folder, tmp_path):
        whole = regard.load(folder)
        transformers.GPT2LMHeadModel.from_pretrained(folder).save_pretrained(tmp_path / "s", max_shard_size="60KB")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / "s" / file).write_bytes((folder / file).read_bytes())
        regard.load(tmp_path / "s").save(folder)
        assert not (folder / "model.safetensors").exists()
        assert same_weights(regard.load(folder), whole)
        whole.save(folder)
        assert [path.name for path in folder.glob("model*")] == ["model.safetensors"]
        assert same_weights(regard.load(folder), whole)

    def test_saving_to_a_file_is_refused(self, folder, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="file cannot be written"):
            regard.load(folder).save(tmp_path / "file")
