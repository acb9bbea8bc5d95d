"""The files of a model: in a folder, or on the Hub."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import getproxies

from regard.errors import InputError, short_repr
from regard.notebook import import_tqdm

CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE = "config.json", "tokenizer.json", "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
"""For each weight the name of its file, where a model has several weight files."""
PICKLED_FILE = "pytorch_model.bin"
GGUF_SUFFIX = ".gguf"

CONNECT_SECONDS = 3
"""How long the Hub may take to accept a connection."""

PICKLE_REFUSAL = (
    "Pickled weights can run any code when they are opened, so regard does not open them. Convert them once, in an "
    "environment you trust them in, with transformers: AutoModel.from_pretrained(NAME).save_pretrained(FOLDER), "
    "and hand over the FOLDER"
)


class HubUnreachableError(InputError):
    """The Hub does not answer, so whether a model has a file is unknown."""


class FileMissingError(InputError):
    """A model does not have a file."""


@runtime_checkable
class ModelFiles(Protocol):
    """The files of one model, wherever they are stored."""

    def require(self, file: str) -> Path:
        """The path of a file.

        Raises:
            FileMissingError: the model does not have the file.
            InputError: the file cannot be fetched.
        """

    def find(self, file: str) -> Path | None:
        """The path of a file; None if the model does not have it.

        Raises:
            HubUnreachableError: the Hub does not answer.
        """


class LocalFiles:
    """A model's files in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def require(self, file: str) -> Path:  # noqa: D102
        path = self.path / file
        if self._has(path):
            return path
        pickled = [p.name for p in (*self.path.glob("*.bin"), *self.path.glob("*.pt"), *self.path.glob("*.pth"))]
        if file == WEIGHTS_FILE and pickled:
            raise FileMissingError(f"{path} is missing, there is only {', '.join(sorted(pickled))}. {PICKLE_REFUSAL}")
        raise FileMissingError(f"{path} is missing or not a file")

    def find(self, file: str) -> Path | None:  # noqa: D102
        path = self.path / file
        return path if self._has(path) else None

    def _has(self, path: Path) -> bool:
        try:
            if not path.is_file():
                return False
        except OSError as error:
            raise InputError(f"{short_repr(str(path))} cannot be read: {error.strerror}") from error
        target, folder = path.resolve(), self.path.resolve()
        # The Hub's cache keeps files in blobs/, and links to them in snapshots/.
        cache = folder.parent.parent if folder.parent.name == "snapshots" else folder
        if not target.is_relative_to(cache):
            raise InputError(f"{path} is a link out of its folder, to {target}: copy the file here if you trust it")
        return True


class HubFiles:
    """A model's files on the Hugging Face Hub, through huggingface_hub with its cache and its settings."""

    def __init__(self, name: str, first_file: str = CONFIG_FILE) -> None:
        self.name = name
        import_tqdm()
        try:
            import huggingface_hub.constants  # the import reads the settings
        except ValueError as error:
            raise InputError(
                f"{name!r} cannot be looked up on the Hub, a setting of huggingface_hub is wrong: {error}"
            ) from error
        constants = huggingface_hub.constants
        self.cache_only = constants.HF_HUB_OFFLINE or not _is_reachable(constants.ENDPOINT)
        """Whether to look into the cache alone: huggingface_hub would try again for half a minute, for each file."""
        # The first file fixes the commit, so that all files are from the same commit.
        self.revision: str | None = None
        self.revision = self.require(first_file).parents[first_file.count("/")].name

    def require(self, file: str) -> Path:  # noqa: D102
        from huggingface_hub import constants, errors

        try:
            return self._fetch(file)
        except errors.HFValidationError as error:
            raise InputError(f"{self.name!r} is not a folder here, and the Hub allows no such name: {error}") from error
        except errors.GatedRepoError as error:
            raise InputError(
                f"{self.name!r} is gated: accept its terms on the Hub's page and sign in (hf auth login, or HF_TOKEN)"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise InputError(
                f"{self.name!r} is not a folder here, and the Hub has no such model (a private one needs HF_TOKEN)"
            ) from error
        except errors.LocalEntryNotFoundError as error:
            if self._known_absent(file):
                raise FileMissingError(f"{self.name!r} has no {file} on the Hub, which regard needs") from error
            raise InputError(
                f"{self.name!r} is not a folder here, its {file} is not in the Hub's cache, and the Hub could not be "
                f"reached: {'HF_HUB_OFFLINE is set' if constants.HF_HUB_OFFLINE else 'no network, or no answer'}. "
                "Fetch it once with a network, or hand over a folder"
            ) from error
        except errors.EntryNotFoundError as error:
            if file == WEIGHTS_FILE and self._has_pickled():
                raise FileMissingError(
                    f"{self.name!r} has no {file} on the Hub, only {PICKLED_FILE}. {PICKLE_REFUSAL}"
                ) from error
            raise FileMissingError(f"{self.name!r} has no {file} on the Hub, which regard needs") from error
        except Exception as error:  # the HTTP library decides which exception a broken connection raises
            raise InputError(f"{self.name!r}: fetching {file} from the Hub failed: {_first_line(error)}") from error

    def find(self, file: str) -> Path | None:  # noqa: D102
        from huggingface_hub import errors, try_to_load_from_cache

        cached = try_to_load_from_cache(self.name, file, revision=self.revision)
        if cached is not None:  # a path, or the cache's mark for a file that is known to be absent
            return Path(cached) if isinstance(cached, str) else None
        try:
            return self._fetch(file)
        except errors.RemoteEntryNotFoundError:
            return None
        except Exception as error:
            raise HubUnreachableError(
                f"{self.name!r}: whether it has {file} is unknown, since the Hub could not be reached: "
                f"{_first_line(error)}"
            ) from error

    def _known_absent(self, file: str) -> bool:
        """Whether the cache remembers an answer of the Hub that the model does not have the file."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self.name, file, revision=self.revision)
        return cached is not None and not isinstance(cached, str)

    def _has_pickled(self) -> bool:
        """Whether the model has pickled weights on the Hub; only their metadata is fetched."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        try:
            get_hf_file_metadata(hf_hub_url(self.name, PICKLED_FILE, revision=self.revision))
        except Exception:  # the error message only becomes less helpful
            return False
        return True

    def _fetch(self, file: str) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(self.name, file, revision=self.revision, local_files_only=self.cache_only))


def gguf_files_of_hub(name: str) -> list[str]:
    """The GGUF files of a model on the Hub; those in the cache where the Hub does not answer."""
    import_tqdm()
    from huggingface_hub import HfApi, constants, snapshot_download

    with suppress(Exception):  # the HTTP library decides which exception a broken connection raises
        if not constants.HF_HUB_OFFLINE and _is_reachable(constants.ENDPOINT):
            listed = HfApi(endpoint=constants.ENDPOINT).list_repo_files(name)
            return sorted(file for file in listed if file.lower().endswith(GGUF_SUFFIX))
    with suppress(Exception):
        snapshot = Path(snapshot_download(name, local_files_only=True))
        cached = (path for path in snapshot.rglob("*") if path.suffix.lower() == GGUF_SUFFIX)
        return sorted(path.relative_to(snapshot).as_posix() for path in cached)
    return []


def choice_of_gguf(found: Sequence[str], place: str) -> str:
    """For messages: how to choose one of the GGUF files in a folder or of a model on the Hub."""
    return f"choose one, such as {place}/{found[0]}, of {', '.join(found)}"


def _is_reachable(url: str) -> bool:
    """Whether a server answers, or may be behind a proxy."""
    address = urlsplit(url)
    if getproxies().get(address.scheme):
        return True
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        with socket.create_connection((address.hostname or "", port), timeout=CONNECT_SECONDS):
            return True
    except (OSError, ValueError):  # a ValueError for a port that is none
        return False


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
