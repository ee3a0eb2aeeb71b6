"""Putting an object if it is absent, in stores that have such a call (S3, Azure).

In: the URI of an object and its bytes. Out: an object that exactly one writer of that name puts,
whole and durable when the call returns; FileExistsError for all others, OSError for the rest.

pyarrow's filesystems cannot do it, so this goes through object_store (Rust), whose put is a PUT
with ``If-None-Match: *``. Credentials it finds in the environment by itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.exceptions import UnauthenticatedError as Unauthenticated
from obstore.store import AzureStore, S3Store

from penstock.lakehouse.object_store import (
    AZURE_SCHEMES,
    S3_SCHEMES,
    azure_settings,
    place_of,
    region_of,
    s3_settings,
    scheme_of,
)

if TYPE_CHECKING:
    from obstore.store import AzureConfig

SCHEMES: Final = (*S3_SCHEMES, *AZURE_SCHEMES)


def put_if_absent(uri: str, content: bytes) -> None:
    """One call. Raises FileExistsError, PermissionError, OSError; a message has no secrets.

    An answer that was lost makes the client ask again, which then finds its own object: who gets
    FileExistsError has to look whether what is there is theirs.
    """
    root, _, path = uri.partition("://")[2].partition("/")
    try:
        store = _store(f"{scheme_of(uri)}://{root}/")
        obstore.put(store, path, content, mode="create", use_multipart=False)
    except AlreadyExistsError:
        raise FileExistsError(uri) from None
    except (PermissionDeniedError, Unauthenticated) as error:
        raise PermissionError(_message(error)) from None
    except BaseError as error:
        raise OSError(_message(error)) from None


@lru_cache(maxsize=64)
def _store(root: str) -> S3Store | AzureStore:
    place = place_of(root)
    if place.scheme in S3_SCHEMES:
        s3 = s3_settings()
        return S3Store(
            place.container,
            region=region_of(place.container),
            client_options={"allow_http": s3.plain},
            config={"endpoint": s3.endpoint} if s3.endpoint else None,
        )
    azure = azure_settings(place.account)
    config: AzureConfig = {"account_name": azure.account}
    if azure.root:
        config["endpoint"] = azure.root
    if azure.key:
        config["account_key"] = azure.key
    elif azure.sas:
        config["sas_key"] = azure.sas
    return AzureStore(
        place.container,
        client_options={"allow_http": azure.plain},
        config=config,
    )


def _message(error: BaseError) -> str:
    """The first line: what follows are the client's own structures."""
    return str(error).partition("\n")[0]
