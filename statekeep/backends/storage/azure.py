"""The requests of Azure Blob Storage, by azure-storage-blob."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

import requests
from azure.core import MatchConditions
from azure.core import exceptions as azure_errors
from azure.core.credentials import TokenCredential
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobBlock, BlobClient, BlobPrefix, BlobProperties, ContainerClient
from requests.adapters import HTTPAdapter
from typing_extensions import override

from statekeep.backends.plain_text import warn_of_plain_url
from statekeep.backends.storage.client import (
    ObjectClient,
    ObjectRange,
    ObjectStamps,
    PartLimits,
    StorageClient,
    UnfinishedUpload,
)
from statekeep.backends.storage.locations import Location, check_certificates
from statekeep.config.blob_settings import AzureSettings
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    ThrottledError,
)

_MIB: Final = 1 << 20
_CONNECT_S: Final = 10
_READ_S: Final = 60
"""Without a byte; a request that hangs longer is given up and made again."""
_RANGE: Final = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
_WHOLE: Final = 5000 * _MIB
"""The SDK does not cut content that it is given."""
_THROTTLED: Final = {"ServerBusy", "OperationTimedOut"}
_NO_NAMES: Final = {"InvalidUri", "InvalidResourceName", "OutOfRangeInput"}
"""Of a name that is too long or has too many parts."""
_PLACE_GONE: Final = {"ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
_TAKEN: Final = {"BlobAlreadyExists", "ConditionNotMet", "UnauthorizedBlobOverwrite"}


def open_client(location: Location) -> StorageClient:
    """Build a client; see the table of stores."""
    bucket, settings = location.bucket(), location.settings(AzureSettings)
    check_certificates(settings.ca_bundle, "azure.ca.bundle")
    account_url = bucket.account_url or settings.account_url
    return AzureClient(bucket.name, bucket.prefix, account_url, settings, location.connections)


class AzureClient(ObjectClient):
    """One container of one storage account. The SDK's own retries are off.

    Every blob and block is sent with an MD5 that the service compares, unless set otherwise.

    Credentials: ``AZURE_STORAGE_CONNECTION_STRING``; else, for the account of the URI, of the
    settings or of ``AZURE_STORAGE_ACCOUNT``: ``AZURE_STORAGE_KEY``, ``AZURE_STORAGE_SAS_TOKEN``, or
    what azure-identity's default chain finds.
    """

    part_limits = PartLimits(min_bytes=1, max_parts=50_000)

    def __init__(
        self,
        container: str,
        prefix: str,
        account_url: str | None,
        settings: AzureSettings,
        connections: int,
    ) -> None:
        """Build a client; nothing is reached yet.

        Args:
            container: Its name.
            prefix: Begins every blob's name; empty or with a slash at its end.
            account_url: Of the storage account; None: by the environment.
            settings: See there.
            connections: Most requests at once.

        Raises:
            ConfigError: No account, or no credentials for it.
        """
        self._container_name = container
        self._prefix = prefix
        self._put_options: Mapping[str, Any] = _put_options(settings)
        self._tags = settings.tags
        self._has_md5 = settings.checksum == "md5"
        self._scope: Mapping[str, Any] = _given(encryption_scope=settings.encryption_scope)
        with self._mapped(""):
            self._container = _container_client(container, account_url, settings, connections)
        warn_of_plain_url(self._container.url, "let azure.account.url begin with https://")

    @override
    def check(self) -> None:
        with self._mapped(""):
            self._container.get_container_properties()

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        with self._mapped(name):
            self._blob(name).upload_blob(
                data,
                length=len(data),
                metadata=dict(stamps.metadata),
                overwrite=not if_absent,
                validate_content=self._has_md5,
                **self._put_options,
                **self._tagging(stamps),
            )

    @override
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        # Blocks belong to a name, so those of another upload have to have other ids.
        return os.urandom(8).hex()

    @override
    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str:
        block = f"{upload}-{number:06d}"
        with self._mapped(name):
            self._blob(name).stage_block(
                block, data, length=len(data), validate_content=self._has_md5, **self._scope
            )
        return block

    @override
    def complete_parts(
        self,
        name: str,
        upload: str,
        parts: Sequence[str],
        stamps: ObjectStamps,
        *,
        if_absent: bool,
    ) -> None:
        absent: dict[str, Any] = {"etag": "*", "match_condition": MatchConditions.IfMissing}
        condition = absent if if_absent else {}
        with self._mapped(name):
            self._blob(name).commit_block_list(
                [BlobBlock(part) for part in parts],
                metadata=dict(stamps.metadata),
                **self._put_options,
                **self._tagging(stamps),
                **condition,
            )

    @override
    def abort(self, name: str, upload: str) -> None:
        """Blocks that no blob was made of are dropped by the service after a week."""

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        return ()  # as above

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        with self._mapped(name):
            blob = self._blob(name)
            try:
                found = blob.download_blob(offset=start, length=length, max_concurrency=1)
            except azure_errors.HttpResponseError as exc:
                if getattr(exc, "error_code", None) in _NO_NAMES:
                    raise BlobNotFoundError(name) from None
                if exc.status_code != _RANGE:
                    raise
                return ObjectRange(b"", int(blob.get_blob_properties().size))
            data: bytes = found.readall()
        total = str(found.properties.content_range).rpartition("/")[2]
        return ObjectRange(data, int(total))

    @override
    def delete(self, name: str) -> None:
        try:
            with self._mapped(name):
                self._blob(name).delete_blob(delete_snapshots="include")
        except BlobNotFoundError:
            return

    @override
    def remove_tags(self, name: str) -> None:
        with self._mapped(name):
            self._blob(name).set_blob_tags(dict(self._tags))

    @override
    def list(self, prefix: str) -> Sequence[str]:
        with self._mapped(prefix):
            found = self._container.list_blobs(
                name_starts_with=f"{self._prefix}{prefix}", include=["metadata"]
            )
            return [
                str(blob.name).removeprefix(self._prefix) for blob in found if not _is_folder(blob)
            ]

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        begin = f"{self._prefix}{prefix}"
        with self._mapped(prefix):
            found = self._container.walk_blobs(name_starts_with=begin, delimiter="/")
            return [
                str(entry.name).removeprefix(begin).rstrip("/")
                for entry in found
                if isinstance(entry, BlobPrefix)
            ]

    @override
    def close(self) -> None:
        self._container.close()

    def _tagging(self, stamps: ObjectStamps) -> Mapping[str, Any]:
        return _given(tags={**self._tags, **stamps.tags} or None)

    def _blob(self, name: str) -> BlobClient:
        return self._container.get_blob_client(f"{self._prefix}{name}")

    @contextmanager
    def _mapped(self, name: str) -> Generator[None]:
        """Raise an error of the SDK as one of ours, without it: its texts may quote a SAS token."""
        where = f"container={self._container_name} name={name}"
        try:
            yield
        except azure_errors.ClientAuthenticationError as exc:
            raise _explained_denial(exc, where) from None
        except (
            azure_errors.ServiceRequestError,
            azure_errors.ServiceResponseError,
            azure_errors.IncompleteReadError,
            azure_errors.DecodeError,
        ) as exc:
            if "CERTIFICATE_VERIFY_FAILED" in str(exc):
                msg = f"the certificate of the object store is not trusted: {where}"
                raise ConfigError(msg, hint="set the CA bundle: azure.ca.bundle") from None
            msg = f"the object store did not answer: {where} kind={_kind(exc)}"
            raise RetriableError(msg) from None
        except azure_errors.HttpResponseError as exc:
            raise _explained(exc, name, where) from None
        except azure_errors.AzureError as exc:
            msg = f"the object store cannot be used: {where} kind={_kind(exc)}"
            raise ConfigError(msg) from None
        except (OSError, requests.RequestException) as exc:
            msg = f"the object store did not answer: {where} kind={_kind(exc)}"
            raise RetriableError(msg) from None


def _is_folder(blob: BlobProperties) -> bool:
    """Return whether a listed blob is none: accounts with a hierarchical namespace list folders."""
    return (blob.metadata or {}).get("hdi_isfolder") == "true"


def _kind(error: BaseException) -> str:
    """Return the class of what lies at the bottom of an error, such as ``NameResolutionError``."""
    inner = (getattr(error, "inner_exception", None), getattr(error, "reason", None), *error.args)
    below = next((each for each in inner if isinstance(each, BaseException)), None)
    return type(error).__name__ if below is None else _kind(below)


def _put_options(settings: AzureSettings) -> Mapping[str, Any]:
    return _given(
        standard_blob_tier=settings.access_tier,
        encryption_scope=settings.encryption_scope,
    )


def _given(**options: object) -> Mapping[str, Any]:
    """Return the options that are set: the SDK tells None from nothing."""
    return {name: value for name, value in options.items() if value is not None}


def _container_client(
    container: str, account_url: str | None, settings: AzureSettings, connections: int
) -> ContainerClient:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=connections))
    transport = RequestsTransport(
        session=session,
        session_owner=True,
        # A client that is given a transport passes none of these on to it.
        connection_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        connection_verify=settings.ca_bundle or True,
    )
    options: dict[str, Any] = {
        "transport": transport,
        "retry_total": 0,
        "max_single_put_size": _WHOLE,
        "max_single_get_size": _WHOLE,
    }
    if settings.proxy is not None:
        options["proxies"] = {"http": settings.proxy, "https": settings.proxy}
    connection_string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if account_url is None and connection_string is not None:
        try:
            return ContainerClient.from_connection_string(connection_string, container, **options)
        except ValueError:
            msg = "not a connection string: AZURE_STORAGE_CONNECTION_STRING"
            raise ConfigError(msg) from None  # it may quote the string
    if account_url is None:
        account_url = _account_of_environment()
    try:
        return ContainerClient(account_url, container, credential=_credential(), **options)
    except ValueError:
        raise ConfigError(
            "not the URL of a storage account, or not one for these credentials",
            key="blob.store.azure.account.url",
            hint="it is https://<account>.blob.core.windows.net; only keys and SAS go over http",
        ) from None  # as above


def _account_of_environment() -> str:
    account = os.environ.get("AZURE_STORAGE_ACCOUNT")
    if account is None:
        raise ConfigError(
            "no storage account is named",
            key="blob.store.azure.account.url",
            hint="set azure.account.url, AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_ACCOUNT, "
            "or name the account in the URI: abfs://container@account.dfs.core.windows.net/path",
        )
    return f"https://{account}.blob.core.windows.net"


def _credential() -> str | TokenCredential:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        if secret := os.environ.get(name):
            return secret
    try:
        from azure.identity import (  # noqa: PLC0415  # not needed with a key
            DefaultAzureCredential,
        )
    except ModuleNotFoundError as exc:
        raise ConfigError(
            "no key for the storage account, and azure-identity is missing",
            hint="set AZURE_STORAGE_KEY, or pip install 'statekeep[azure]'",
        ) from exc
    return DefaultAzureCredential()


def _explained_denial(error: azure_errors.ClientAuthenticationError, where: str) -> Exception:
    is_answer = error.status_code is not None
    is_bad_key = type(error).__name__ == "AzureSigningError"  # which the SDK does not export
    if is_answer or is_bad_key:
        return ConfigError(f"access denied: {where} status={error.status_code}")
    explained = RetriableError(f"no credentials were found, or none gave a token: {where}")
    explained.add_note(
        "hint: set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or see azure-identity"
    )
    return explained


def _explained(error: azure_errors.HttpResponseError, name: str, where: str) -> Exception:
    code = str(getattr(error, "error_code", None) or "")
    status = error.status_code or 0
    what = f"{where} code={code} status={status}"
    if code in _THROTTLED or status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(f"the object store asks for fewer requests: {what}")
    if status == 0 or status >= HTTPStatus.INTERNAL_SERVER_ERROR or code == "Md5Mismatch":
        return RetriableError(f"the object store did not answer: {what}")
    if code in _TAKEN:
        return BlobExistsError(name)
    if code in _PLACE_GONE or (status == HTTPStatus.NOT_FOUND and not name):
        return ConfigError(f"no such container: {what}")
    if status == HTTPStatus.NOT_FOUND:
        return BlobNotFoundError(name)
    denied = status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}
    reason = "access denied" if denied else "the object store refuses a request"
    return ConfigError(f"{reason}: {what}")
