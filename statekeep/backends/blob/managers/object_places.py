"""From the URI of a blob backend to the client of an object store."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from statekeep.backends.blob.managers.object_client import ObjectClient
from statekeep.backends.blob.managers.object_store_settings import AzureSettings, S3Settings
from statekeep.errors import ConfigError

_S3_SCHEMES: Final = frozenset({"s3", "s3a"})
_AZURE_SCHEMES: Final = frozenset({"az", "abfs", "abfss"})


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A bucket, or what its store calls one, and a prefix in it."""

    scheme: str
    bucket: str
    prefix: str
    """Begins every key: empty, or with a slash at its end."""
    account_url: str | None
    """The account of an Azure URI that names one."""

    @classmethod
    def parse(cls, uri: str, key: str) -> "ObjectPlace | None":
        """Read a URI; None if its scheme is not one of an object store with a client of ours.

        Args:
            uri: ``s3://bucket/prefix``, ``az://container/prefix``,
                ``abfs://container@account.dfs.core.windows.net/prefix``.
            key: The setting that holds it, for errors.

        Raises:
            ConfigError: No bucket, or something that such a URI cannot have.
        """
        parts = urlsplit(uri)
        if parts.scheme not in _S3_SCHEMES | _AZURE_SCHEMES:
            return None
        container, at, host = parts.netloc.rpartition("@")
        bucket = container if at else parts.netloc
        is_account = bool(at) and parts.scheme.startswith("abfs") and ":" not in container
        if not bucket or parts.query or parts.fragment or (at and not is_account):
            raise ConfigError(
                f"not a place in an object store: {key} needs scheme://bucket/prefix and no more",
                key=key,
                hint="credentials come from the SDK's usual chain, not from a URI",
            )
        prefix = parts.path.strip("/")
        return cls(
            scheme=parts.scheme,
            bucket=bucket,
            prefix=f"{prefix}/" if prefix else "",
            account_url=f"https://{host.replace('.dfs.', '.blob.', 1)}" if at else None,
        )

    def client_factory(
        self, s3: S3Settings, azure: AzureSettings, connections: int
    ) -> Callable[[], ObjectClient]:
        """Return what builds the client; it imports the SDK: ConfigError if that is missing."""
        if self.scheme in _S3_SCHEMES:
            return partial(_make_s3_client, self, s3, connections)
        return partial(_make_azure_client, self, azure, connections)

    def plainer_client_factories(
        self, s3: S3Settings, azure: AzureSettings
    ) -> Mapping[str, Callable[[], ObjectClient]]:
        """Return what builds clients that send less with each object, by the setting left out."""
        if self.scheme in _S3_SCHEMES:
            settings = s3.plainer()
            return {name: self.client_factory(less, azure, 1) for name, less in settings.items()}
        return {name: self.client_factory(s3, less, 1) for name, less in azure.plainer().items()}


def _make_s3_client(place: ObjectPlace, settings: S3Settings, connections: int) -> ObjectClient:
    _check_certificates(settings.ca_bundle, "s3.ca.bundle")
    with missing_package_told("s3"):
        from statekeep.backends.blob.managers.s3_client import (  # noqa: PLC0415  # it needs the SDK
            S3Client,
        )

    return S3Client(place.bucket, place.prefix, settings, connections)


def _make_azure_client(
    place: ObjectPlace, settings: AzureSettings, connections: int
) -> ObjectClient:
    _check_certificates(settings.ca_bundle, "azure.ca.bundle")
    with missing_package_told("azure"):
        from statekeep.backends.blob.managers.azure_client import (  # noqa: PLC0415  # as above
            AzureClient,
        )

    account_url = place.account_url or settings.account_url
    return AzureClient(place.bucket, place.prefix, account_url, settings, connections)


def _check_certificates(path: str | None, key: str) -> None:
    """Refuse a file that is not there: the SDKs would look for it only after a connection."""
    if path is not None and not Path(path).is_file():
        msg = f"no such file of certificates: key={key} path={path}"
        raise ConfigError(msg, hint="it has to be on every machine that talks to the store")


@contextmanager
def missing_package_told(extra: str) -> Generator[None]:
    """Say which extra brings a package that cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as exc:
        msg = f"a package for this kind of place is missing: package={exc.name}"
        raise ConfigError(msg, hint=f"pip install 'statekeep[{extra}]'") from exc
