"""The requests of S3, and of what speaks its protocol, by boto3."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlencode, urlsplit

import boto3  # pyright: ignore[reportMissingTypeStubs]  # it ships no types
from botocore import exceptions as boto_errors  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.parsers import ResponseParserError  # pyright: ignore[reportMissingTypeStubs]
from typing_extensions import override
from urllib3.exceptions import HTTPError

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
from statekeep.config.blob_settings import S3Settings
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
_THROTTLED: Final = {
    "SlowDown",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
}
"""Any other answer of 503 is an outage, as for the SDK: proxies answer so when the store is down."""
_RETRIABLE: Final = {
    "BadDigest",  # damaged on its way
    "ConditionalRequestConflict",  # another create of the name is under way and may yet fail
    "ExpiredToken",  # the chain of credentials draws a new one
    "IncompleteBody",
    "OperationAborted",
    "RequestTimeout",
    "XAmzContentChecksumMismatch",
}
_MAX_UNSTATED_BYTES: Final = 256 << 20
"""Of an answer that does not say how long it is."""
_ERROR_STATUS: Final = {
    "InternalError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "ServiceUnavailable": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Of objects that a request for many could not delete; any other error is raised by a single delete."""
_TOO_LONG: Final = "KeyTooLongError"
_MISSING: Final = {"NoSuchKey", "NoSuchUpload", "404"}


def open_client(location: Location) -> StorageClient:
    """Build a client; see the table of stores."""
    bucket, settings = location.bucket(), location.settings(S3Settings)
    check_certificates(settings.ca_bundle, "s3.ca.bundle")
    return S3Client(bucket.name, bucket.prefix, settings, location.connections)


class S3Client(ObjectClient):
    """One bucket. Every object is sent with a CRC32 that the store compares, unless set otherwise.

    The SDK's own retries are off.
    """

    part_limits = PartLimits(min_bytes=5 * _MIB, max_parts=10_000)
    max_deletes = 1_000

    def __init__(self, bucket: str, prefix: str, settings: S3Settings, connections: int) -> None:
        """Build a client; credentials come from the SDK's usual chain at the first request.

        Args:
            bucket: Its name.
            prefix: Begins every key; empty or with a slash at its end.
            settings: See there.
            connections: Most requests at once.
        """
        self._bucket = bucket
        self._prefix = prefix
        self._put_options = _put_options(settings)
        self._tags = settings.tags
        self._checksum = {"ChecksumAlgorithm": "CRC32"} if settings.checksum == "crc32" else {}
        with self._mapped(""):
            self._s3 = _sdk_client(settings, connections)

    @override
    def check(self) -> None:
        with self._mapped(""):
            self._s3.head_bucket(Bucket=self._bucket)

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        with self._mapped(name):
            self._s3.put_object(
                **self._key(name),
                Body=data,
                Metadata=stamps.metadata,
                **self._put_options,
                **self._tagging(stamps),
                **self._checksum,
                **_condition(if_absent),
            )

    @override
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        with self._mapped(name):
            answer = self._s3.create_multipart_upload(
                **self._key(name),
                Metadata=stamps.metadata,
                **self._put_options,
                **self._tagging(stamps),
                **self._checksum,
            )
        return str(answer["UploadId"])

    @override
    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str:
        with self._mapped(name):
            answer = self._s3.upload_part(
                **self._key(name),
                UploadId=upload,
                PartNumber=number + 1,
                Body=data,
                **self._checksum,
            )
        return f"{answer['ETag']} {answer.get('ChecksumCRC32', '')}"

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
        listed = [_listed_part(number, part) for number, part in enumerate(parts, 1)]
        with self._mapped(name):
            self._s3.complete_multipart_upload(
                **self._key(name),
                UploadId=upload,
                MultipartUpload={"Parts": listed},
                **_condition(if_absent),
            )

    @override
    def abort(self, name: str, upload: str) -> None:
        try:
            with self._mapped(name):
                self._s3.abort_multipart_upload(**self._key(name), UploadId=upload)
        except BlobNotFoundError:
            return

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        pages = self._s3.get_paginator("list_multipart_uploads")
        with self._mapped(""):
            return [
                UnfinishedUpload(
                    str(entry["Key"]).removeprefix(self._prefix), str(entry["UploadId"])
                )
                for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}")
                for entry in page.get("Uploads", ())
            ]

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        with self._mapped(name):
            try:
                answer = self._s3.get_object(
                    **self._key(name), Range=f"bytes={start}-{start + length - 1}"
                )
            except boto_errors.ClientError as exc:
                if _code(exc) == _TOO_LONG:
                    raise BlobNotFoundError(name) from exc
                if _status(exc) != _RANGE:
                    raise
                return ObjectRange(b"", self._size(name))
            is_whole = "ContentRange" not in answer  # a server may answer with the whole object
            skipped = start if is_whole else 0
            data = _read_body(answer, skipped + length)
        if is_whole:
            size = int(answer.get("ContentLength") or len(data))
            return ObjectRange(data[start : start + length], size)
        return ObjectRange(data[:length], int(str(answer["ContentRange"]).rpartition("/")[2]))

    @override
    def delete(self, name: str) -> None:
        with self._mapped(name):
            self._s3.delete_object(**self._key(name))

    @override
    def delete_many(self, names: Sequence[str]) -> None:
        keys = [{"Key": f"{self._prefix}{name}"} for name in names]
        with self._mapped(names[0]):
            answer = self._s3.delete_objects(
                Bucket=self._bucket, Delete={"Objects": keys, "Quiet": True}
            )
            for error in answer.get("Errors", ()):
                status = _ERROR_STATUS.get(str(error.get("Code")), HTTPStatus.FORBIDDEN)
                raise boto_errors.ClientError(
                    {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}},
                    "DeleteObjects",
                )

    @override
    def remove_tags(self, name: str) -> None:
        with self._mapped(name):
            if self._tags:
                tags = [{"Key": key, "Value": value} for key, value in self._tags.items()]
                self._s3.put_object_tagging(**self._key(name), Tagging={"TagSet": tags})
            else:
                self._s3.delete_object_tagging(**self._key(name))

    @override
    def list(self, prefix: str) -> Sequence[str]:
        pages = self._s3.get_paginator("list_objects_v2")
        with self._mapped(prefix):
            return [
                str(entry["Key"]).removeprefix(self._prefix)
                for page in pages.paginate(Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}")
                for entry in page.get("Contents", ())
            ]

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        pages = self._s3.get_paginator("list_objects_v2")
        begin = f"{self._prefix}{prefix}"
        with self._mapped(prefix):
            return [
                str(entry["Prefix"]).removeprefix(begin).rstrip("/")
                for page in pages.paginate(Bucket=self._bucket, Prefix=begin, Delimiter="/")
                for entry in page.get("CommonPrefixes", ())
            ]

    @override
    def close(self) -> None:
        self._s3.close()

    def _key(self, name: str) -> Mapping[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{name}"}

    def _tagging(self, stamps: ObjectStamps) -> Mapping[str, str]:
        tags = urlencode({**self._tags, **stamps.tags})
        return {"Tagging": tags} if tags else {}

    def _size(self, name: str) -> int:
        return int(self._s3.head_object(**self._key(name))["ContentLength"])

    @contextmanager
    def _mapped(self, name: str) -> Generator[None]:
        """Raise an error of the SDK as one of ours; none of its texts, which may quote a request."""
        where = f"bucket={self._bucket} name={name}"
        try:
            yield
        except boto_errors.ClientError as exc:
            raise _explained(exc, name, where) from exc
        except boto_errors.SSLError as exc:
            if "CERTIFICATE_VERIFY_FAILED" not in str(exc):
                raise RetriableError(f"the object store did not answer: {where}") from exc
            raise ConfigError(
                f"the certificate of the object store is not trusted: {where}",
                hint="set the CA bundle: s3.ca.bundle",
            ) from exc
        except (
            boto_errors.ConnectionError,
            boto_errors.CredentialRetrievalError,
            boto_errors.FlexibleChecksumError,
            boto_errors.HTTPClientError,
            boto_errors.IncompleteReadError,
            HTTPError,
            OSError,
            ResponseParserError,
        ) as exc:
            msg = f"the object store did not answer: {where} kind={type(exc).__name__}"
            raise RetriableError(msg) from exc
        except boto_errors.BotoCoreError as exc:
            msg = f"the object store cannot be used: {where} kind={type(exc).__name__}"
            raise ConfigError(msg, hint=str(exc)) from exc


def _read_body(answer: Mapping[str, Any], max_bytes: int) -> bytes:
    """Read an answer in one go: pieces are copied twice on their way through the HTTP library.

    What is more than ``max_bytes`` is left unread, and its connection is closed.
    """
    body, size = answer["Body"], answer.get("ContentLength")
    if size is None:
        unstated: bytes = body.read(_MAX_UNSTATED_BYTES)
        if len(unstated) == _MAX_UNSTATED_BYTES:
            body.close()
            raise boto_errors.IncompleteReadError(actual_bytes=len(unstated), expected_bytes="any")
        return unstated
    expected = min(size, max_bytes)
    # Asked for an amount, the library does not raise an error that keeps what has come.
    data: bytes = body.read(expected)
    if size > expected:
        body.close()
    if (actual := len(data)) != expected:
        body.close()
        del data  # the error's frames would keep it
        raise boto_errors.IncompleteReadError(actual_bytes=actual, expected_bytes=expected)
    return data


def _sdk_client(settings: S3Settings, connections: int) -> Any:  # noqa: ANN401 - made at run time
    session = cast("Any", boto3.Session(profile_name=settings.profile))
    msg = "not the URL of an S3 store: s3.endpoint, or the SDK's own setting of an endpoint"
    try:
        client = session.client(
            "s3",
            endpoint_url=settings.endpoint,
            region_name=settings.region,
            verify=settings.ca_bundle,
            config=_sdk_config(settings, connections),
        )
    except boto_errors.BotoCoreError:
        raise
    except ValueError:  # its text quotes the endpoint, as do many others later on
        raise ConfigError(msg, hint="it begins with http:// or https://") from None
    if "@" in urlsplit(str(client.meta.endpoint_url)).netloc:
        hint = "http://host:port and no more: credentials come from the SDK's usual chain"
        raise ConfigError(msg, hint=hint)
    warn_of_plain_url(str(client.meta.endpoint_url), "let s3.endpoint begin with https://")
    return client


def _sdk_config(settings: S3Settings, connections: int) -> Config:
    styles = {None: "auto", True: "path", False: "virtual"}
    checksums = "when_supported" if settings.checksum == "crc32" else "when_required"
    return Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=connections,
        tcp_keepalive=True,
        proxies={"http": settings.proxy, "https": settings.proxy} if settings.proxy else None,
        s3={"addressing_style": styles[settings.has_path_style]},
        request_checksum_calculation=checksums,
        # Restores compare the sha-256 of every file; ranges have no checksum to compare anyway.
        response_checksum_validation="when_required",
    )


def _put_options(settings: S3Settings) -> Mapping[str, str]:
    options = {
        "ServerSideEncryption": settings.server_side_encryption,
        "SSEKMSKeyId": settings.kms_key_id,
        "StorageClass": settings.storage_class,
    }
    return {key: value for key, value in options.items() if value is not None}


def _condition(if_absent: bool) -> Mapping[str, str]:  # noqa: FBT001  # of `put`, passed on
    return {"IfNoneMatch": "*"} if if_absent else {}


def _listed_part(number: int, part: str) -> Mapping[str, object]:
    tag, _, crc32 = part.partition(" ")
    return {"PartNumber": number, "ETag": tag} | ({"ChecksumCRC32": crc32} if crc32 else {})


def _status(error: boto_errors.ClientError) -> int:
    return int(cast("Any", error).response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: boto_errors.ClientError) -> str:
    return str(cast("Any", error).response.get("Error", {}).get("Code", ""))


def _explained(error: boto_errors.ClientError, name: str, where: str) -> Exception:
    code = _code(error)
    status = _status(error)
    what = f"{where} code={code} status={status}"
    if code in _THROTTLED or status == HTTPStatus.TOO_MANY_REQUESTS:
        return ThrottledError(f"the object store asks for fewer requests: {what}")
    if code in _RETRIABLE or (
        status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    ):
        return RetriableError(f"the object store did not answer: {what}")
    if status == HTTPStatus.PRECONDITION_FAILED:
        return BlobExistsError(name)
    if name and code in _MISSING:
        return BlobNotFoundError(name)
    return ConfigError(f"{_reason(code, status)}: {what}")


def _reason(code: str, status: int) -> str:
    """Say why a request will never be served."""
    if code in {"NoSuchBucket", "404"}:
        return "no such bucket"
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED}:
        return "access denied"
    return "the object store refuses a request"
