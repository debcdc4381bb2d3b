"""A repository's config.json, through huggingface_hub: its cache, token and `HF_ENDPOINT`."""

from __future__ import annotations

from typing import Any

from metacount.errors import InputError, printable, shown
from metacount.files import MAX_FILE_BYTES


def config_file(repository: str) -> str:
    """Find the local path of `repository`'s config.json, fetched if the cache does not hold it.

    Raises `InputError`, in one line, when it cannot be had, or is too large to be a config.
    """
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    where = shown(repository)
    # its HTTP library's own error: which library that is changes between versions of the hub's
    http_error: Any = HfHubHTTPError.__bases__[0]
    try:
        cached = try_to_load_from_cache(repository, "config.json")
        if isinstance(cached, str):
            return cached
        size = get_hf_file_metadata(hf_hub_url(repository, "config.json"), timeout=10).size
        if size is None or size > MAX_FILE_BYTES:
            raise InputError(f"{where}: its config.json has {size} bytes; a config has a few KiB")
        return hf_hub_download(repository, "config.json")
    except GatedRepoError:
        problem = "access is gated; accept its terms, and log in (`hf auth login`)"
    except RepositoryNotFoundError:
        problem = (
            "is no file, and the hub knows no such repository, or not for you; "
            "check the name, or log in (`hf auth login`)"
        )
    except (EntryNotFoundError, LocalEntryNotFoundError):
        problem = "the repository has no config.json that could be read; give a path to a config"
    except HFValidationError as error:
        problem = f"is no repository id: {printable(error)[:120]}"
    except InputError:
        raise
    except (OfflineModeIsEnabled, http_error, OSError, ValueError) as error:
        problem = (
            f"is no file, and the hub cannot be reached ({type(error).__name__}); "
            "give a path to a config"
        )
    raise InputError(f"{where}: {problem}")
