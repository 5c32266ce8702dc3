"""From the URI of a backend's storage to the client of it: the table of stores."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.client import StorageClient
from statekeep.config.blob_settings import AzureSettings, S3Settings
from statekeep.config.redact import redact
from statekeep.errors import ConfigError


class BucketSettings(Protocol):
    """Settings of a kind of store with buckets; made without arguments, they are the defaults."""

    def plainer(self) -> Mapping[str, Self]:
        """Return settings that lack one thing each that goes with every object, by what it is."""
        ...


SettingsT = TypeVar("SettingsT", bound=BucketSettings)


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store."""

    module: str
    """Below this package; has ``open_client(location)``, or ``open_manager(location, executor)``."""
    extra: str | None = None
    """Of our package, which brings what the module needs."""
    settings: type[BucketSettings] | None = None
    """Those of its own, which go with every object; None: it is a filesystem, with storage options."""
    is_manager: bool = False
    """Its client is a `BlobStoreManager`: it is asked by coroutines."""

    @property
    def has_buckets(self) -> bool:
        """Whether it has settings of its own, and no storage options."""
        return self.settings is not None


_S3: Final = StoreKind("s3", "s3", S3Settings)
_AZURE: Final = StoreKind("azure", "azure", AzureSettings)
_GCS: Final = StoreKind("gcs", "gcs")
_SFTP: Final = StoreKind("sftp", "sftp")
_HDFS: Final = StoreKind("hdfs.manager", "hdfs", is_manager=True)
_FSSPEC: Final = StoreKind("fsspec_client")

STORES: Final[Mapping[str, StoreKind]] = MappingProxyType(
    {
        "s3": _S3,
        "s3a": _S3,
        "az": _AZURE,
        "abfs": _AZURE,
        "abfss": _AZURE,
        "gs": _GCS,
        "gcs": _GCS,
        "sftp": _SFTP,
        "ssh": _SFTP,
        "hdfs": _HDFS,
        "viewfs": _HDFS,
    }
)
"""By the scheme of a URI; any other, and a path of this machine, is fsspec's."""


def bucket_settings() -> list[type[BucketSettings]]:
    """Return the settings of each kind of store that has some of its own."""
    found = (kind.settings for kind in STORES.values())
    return list(dict.fromkeys(each for each in found if each is not None))


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, or what its store calls one, and a prefix in it."""

    name: str
    prefix: str
    """Begins every key: empty, or with a slash at its end."""
    account_url: str | None
    """The account of an Azure URI that names one."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a backend's storage is, and what is set about its client."""

    uri: str = field(repr=False)
    key: str = "uri"
    """The setting that holds it, for errors."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """Of the filesystem's client; may hold secrets."""
    of_buckets: Mapping[type[BucketSettings], BucketSettings] = field(
        default_factory=dict[type[BucketSettings], BucketSettings]
    )
    """What is set for the kinds of stores with buckets."""
    connections: int = 1
    """Most requests at once."""

    @property
    def kind(self) -> StoreKind:
        """What kind of store it is."""
        return STORES.get(urlsplit(self.uri).scheme, _FSSPEC)

    @property
    def shown_uri(self) -> str:
        """The URI as messages show it: without what may be secret."""
        return redact(self.uri, is_secret=False)

    def bucket(self) -> Bucket:
        """Read the URI of a store with buckets.

        ``s3://bucket/prefix``, ``az://container/prefix``,
        ``abfs://container@account.dfs.core.windows.net/prefix``.

        Raises:
            ConfigError: No bucket, or something that such a URI cannot have.
        """
        parts = urlsplit(self.uri)
        container, at, host = parts.netloc.rpartition("@")
        name = container if at else parts.netloc
        is_account = bool(at) and parts.scheme.startswith("abfs") and ":" not in container
        if not name or parts.query or parts.fragment or (at and not is_account):
            raise ConfigError(
                f"not a location in an object store: {self.key} needs scheme://bucket/prefix and no more",
                key=self.key,
                hint="credentials come from the SDK's usual chain, not from a URI",
            )
        prefix = parts.path.strip("/")
        return Bucket(
            name=name,
            prefix=f"{prefix}/" if prefix else "",
            account_url=f"https://{host.replace('.dfs.', '.blob.', 1)}" if at else None,
        )

    def settings(self, kind: type[SettingsT]) -> SettingsT:
        """Return what is set for a kind of store with buckets, or its defaults."""
        found = self.of_buckets.get(kind)
        return found if isinstance(found, kind) else kind()

    def plainer(self) -> Mapping[str, Self]:
        """Return locations whose clients send less with each object, by the setting left out."""
        kind = self.kind.settings
        if kind is None:
            return {}
        one = replace(self, connections=1)
        return {
            name: replace(one, of_buckets={kind: less})
            for name, less in self.settings(kind).plainer().items()
        }

    def open_client(self) -> StorageClient:
        """Build the client; blocking. ConfigError if a package is missing or the URI is no location."""
        client: StorageClient = self._module().open_client(self)
        return client

    def open_manager(self, executor: BlockingExecutor) -> BlobStoreManager:
        """Build the client of a store whose `kind` says that it is a manager."""
        manager: BlobStoreManager = self._module().open_manager(self, executor)
        return manager

    def _module(self) -> Any:  # noqa: ANN401 - a module, by its name
        kind = self.kind
        with explained_missing_package(kind.extra):
            return import_module(f"{__package__}.{kind.module}")


def check_certificates(path: str | None, key: str) -> None:
    """Refuse a file that is not there: the SDKs would look for it only after a connection."""
    if path is not None and not Path(path).is_file():
        msg = f"no such file of certificates: key={key} path={path}"
        raise ConfigError(msg, hint="it must be on every machine that talks to the store")


@contextmanager
def explained_missing_package(extra: str | None) -> Generator[None]:
    """Say which extra brings a package that cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if extra is None:
            raise
        msg = f"a package for this kind of storage is missing: package={exc.name}"
        raise ConfigError(msg, hint=f"pip install 'statekeep[{extra}]'") from exc
