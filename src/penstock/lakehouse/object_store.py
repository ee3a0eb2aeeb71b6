"""Object stores: turn a URI and the environment into the settings of our libraries.

A URI (``s3://bucket/prefix``, ``abfss://container@account.dfs.core.windows.net/prefix``) and the
variables of AWS's and Azure's own tools give pyarrow's filesystem, and settings for delta-rs and
for Hadoop's clients in Spark. Secrets stay in the environment: each library reads them there, or
gets them in memory. No secret is written into a setting that Spark would show. ``storage`` reads
and writes the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from pyarrow import fs

from penstock.errors import ConfigurationError

S3_SCHEMES: Final = ("s3", "s3a", "s3n")
"""AWS's own scheme, and those of Hadoop's clients."""
AZURE_SCHEMES: Final = ("abfss", "abfs")

PASSED_ON: Final = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ENDPOINT",
)
"""Variables that executors on other machines get from the driver; no credentials."""

_DEFAULT_REGION: Final = "us-east-1"
LOG_STORE_CLASS: Final = "io.penstock.ConditionalLogStore"
LOG_STORE_SETTING: Final = "spark.delta.logStore.s3a.impl"
_AZURE_KEYS: Final = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
_AZURE_SAS: Final = "AZURE_STORAGE_SAS_TOKEN"
_AZURE_DOMAIN: Final = "dfs.core.windows.net"
_QUERY: Final = re.compile(r"""(https?://[^\s?'"]+)\?[^\s'",)]+""")
_SIGNATURE: Final = re.compile(r"""\bsig=[^&\s'",)]+""")


@dataclass(frozen=True)
class Place:
    """A URI in parts. ``container``: the bucket in S3; ``account``: Azure's, else empty."""

    scheme: str
    container: str
    path: str
    account: str = ""


class _Endpoint:
    """An endpoint: a URL, empty for the provider's own."""

    endpoint: str

    @property
    def plain(self) -> bool:
        """Return whether the endpoint is without TLS."""
        return self.endpoint.startswith("http://")

    @property
    def protocol(self) -> str:
        """The protocol, for clients that take host and protocol separately."""
        return "http" if self.plain else "https"


@dataclass(frozen=True)
class S3Settings(_Endpoint):
    """The access to S3. ``endpoint``: a URL whose buckets are addressed by path; empty for AWS."""

    endpoint: str
    region: str


@dataclass(frozen=True)
class AzureSettings(_Endpoint):
    """The access to an account. ``endpoint``: a URL, empty for Azure itself.

    Without ``key`` and ``sas`` Azure's usual chain is tried: service principal by the environment,
    workload and managed identity.
    """

    account: str
    endpoint: str
    key: str = field(repr=False)
    sas: str = field(repr=False)

    @property
    def root(self) -> str:
        """The account's URL at a custom endpoint, with the account in the path as in emulators;
        empty for Azure."""
        return f"{self.endpoint.rstrip('/')}/{self.account}" if self.endpoint else ""

    @property
    def authority(self) -> str:
        """Host and port of the endpoint."""
        return urlsplit(self.endpoint).netloc


def scheme_of(uri: str) -> str:
    """Return the scheme in lower case; empty for a path."""
    scheme, colon, _ = uri.partition("://")
    return scheme.lower() if colon else ""


def place_of(uri: str) -> Place:
    """Split an object store's URI. Raises ConfigurationError if it names no container."""
    scheme, (authority, _, path) = scheme_of(uri), uri.partition("://")[2].partition("/")
    container, _, host = authority.partition("@")
    if not container or (scheme in AZURE_SCHEMES and not host):
        raise ConfigurationError(
            f'"{uri}" names no place in an object store',
            hint="Write s3://bucket/prefix, or "
            f"abfss://container@account.{_AZURE_DOMAIN}/prefix for Azure.",
        )
    return Place(scheme, container, path.strip("/"), host.partition(".")[0])


def s3_settings(environment: Mapping[str, str] = os.environ) -> S3Settings:
    """Return the settings in the variables of AWS's tools; the more specific variable wins."""
    return S3Settings(
        endpoint=_first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        region=_first(environment, "AWS_REGION", "AWS_DEFAULT_REGION"),
    )


def azure_settings(account: str, environment: Mapping[str, str] = os.environ) -> AzureSettings:
    """Return the settings in the variables that Azure's tools read."""
    return AzureSettings(
        account,
        endpoint=_first(environment, "AZURE_STORAGE_ENDPOINT"),
        key=_first(environment, *_AZURE_KEYS),
        sas=_first(environment, _AZURE_SAS).lstrip("?"),
    )


def without_secrets(message: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a client's message without the queries of URLs, which for Azure have the SAS token."""
    token = _first(environment, _AZURE_SAS).lstrip("?")
    if token:
        message = message.replace(token, "...")
    return _SIGNATURE.sub("sig=...", _QUERY.sub(r"\1", message))


def filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's filesystem for a URI, and the path of the URI's container in it."""
    if scheme_of(uri) in S3_SCHEMES:
        return _s3_filesystem(place_of(uri).container), place_of(uri).container
    if scheme_of(uri) in AZURE_SCHEMES:
        place = place_of(uri)
        return _azure_filesystem(azure_settings(place.account)), place.container
    found, path = fs.FileSystem.from_uri(uri)
    return found, path


def _s3_filesystem(bucket: str) -> fs.FileSystem:
    settings = s3_settings()
    if not settings.endpoint:
        return fs.S3FileSystem(region=region_of(bucket))
    return fs.S3FileSystem(
        region=settings.region or _DEFAULT_REGION,
        endpoint_override=settings.endpoint,
        scheme=settings.protocol,
    )


def region_of(bucket: str) -> str:
    """Return the configured region of a bucket; if none is configured, ask AWS. Raises OSError."""
    settings = s3_settings()
    if settings.region or settings.endpoint:
        return settings.region or _DEFAULT_REGION
    return str(fs.resolve_s3_region(bucket))


def _azure_filesystem(settings: AzureSettings) -> fs.FileSystem:
    options: dict[str, str] = {}
    if settings.endpoint:
        for service in ("blob", "dfs"):
            options[f"{service}_storage_authority"] = settings.authority
            options[f"{service}_storage_scheme"] = settings.protocol
    if settings.key:
        options["account_key"] = settings.key
    elif settings.sas:
        options["sas_token"] = f"?{settings.sas}"
    return fs.AzureFileSystem(settings.account, **options)


def delta_rs_options(uri: str) -> dict[str, str]:
    """Return ``storage_options`` for delta-rs; it reads AWS's credentials from the environment."""
    settings: _Endpoint
    if scheme_of(uri) in S3_SCHEMES:
        settings = s3_settings()
        named = {
            "aws_region": region_of(place_of(uri).container),
            "aws_endpoint": settings.endpoint,
        }
    else:
        settings = azure_settings(place_of(uri).account)
        named = {
            "azure_storage_account_name": settings.account,
            "azure_storage_account_key": settings.key,
            "azure_storage_sas_token": "" if settings.key else settings.sas,
            "azure_storage_endpoint": settings.root,
        }
    options = {name: value for name, value in named.items() if value}
    return {**options, "allow_http": "true"} if settings.plain else options


def spark_conf(uri: str) -> dict[str, str]:
    """Return the settings of a Spark session for tables at a URI; empty if Spark needs none.

    Delta's own log stores for S3 check for an entry before they put it. That is safe only within
    one process; our log store puts an entry only if it is absent (``session``).
    """
    scheme = scheme_of(uri)
    if scheme in S3_SCHEMES:
        return {**_s3_conf(), **_executor_environment()}
    if scheme in AZURE_SCHEMES:
        return {**_azure_conf(place_of(uri).account), **_executor_environment()}
    return {}


def _s3_conf() -> dict[str, str]:
    settings = s3_settings()
    conf = {
        "fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        ),
    }
    if settings.region or settings.endpoint:
        conf["fs.s3a.endpoint.region"] = settings.region or _DEFAULT_REGION
    if settings.endpoint:
        conf["fs.s3a.endpoint"] = settings.endpoint
        conf["fs.s3a.path.style.access"] = "true"
        conf["fs.s3a.connection.ssl.enabled"] = str(not settings.plain).lower()
    for scheme in ("s3", "s3n"):
        conf[f"fs.{scheme}.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    stores = {f"spark.delta.logStore.{scheme}.impl": LOG_STORE_CLASS for scheme in S3_SCHEMES}
    return {**{f"spark.hadoop.{name}": value for name, value in conf.items()}, **stores}


def _azure_conf(account: str) -> dict[str, str]:
    """Return settings that name secrets as ``${env.NAME}``, which Hadoop replaces when it reads a
    value."""
    settings = azure_settings(account)
    host = f"{account}.{_AZURE_DOMAIN}"
    if settings.key:
        conf = {f"fs.azure.account.key.{host}": f"${{env.{_first_set(_AZURE_KEYS)}}}"}
    elif settings.sas:
        conf = {
            f"fs.azure.account.auth.type.{host}": "SAS",
            f"fs.azure.sas.fixed.token.{host}": f"${{env.{_AZURE_SAS}}}",
        }
    else:
        conf = {}
    if settings.endpoint:  # an emulator, which has the Blob service only
        conf["fs.azure.abfs.endpoint"] = settings.authority
        conf["fs.azure.account.hns.enabled"] = "false"
        conf["fs.azure.fns.account.service.type"] = "BLOB"
        conf["fs.azure.always.use.https"] = str(not settings.plain).lower()
        conf["fs.azure.networking.library"] = "JDK_HTTP_URL_CONNECTION"  # Apache's needs TLS
    return {f"spark.hadoop.{name}": value for name, value in conf.items()}


def _executor_environment() -> dict[str, str]:
    return {
        f"spark.executorEnv.{name}": os.environ[name] for name in PASSED_ON if name in os.environ
    }


def _first(environment: Mapping[str, str], *names: str) -> str:
    return environment.get(_first_set(names, environment), "")


def _first_set(names: Sequence[str], environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of the first variable that is set, or the first name if none is."""
    return next((name for name in names if environment.get(name)), names[0])
