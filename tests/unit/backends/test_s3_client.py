"""How answers of S3 become errors of ours, and settings become fields of requests."""

import io
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions as boto_errors
from botocore.parsers import ResponseParserError

from statekeep.backends.storage.client import (
    ObjectRange,
    ObjectStamps,
    UnfinishedUpload,
)
from statekeep.backends.storage.s3 import S3Client
from statekeep.config.blob_settings import S3Settings
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    ThrottledError,
)

ENDPOINT = "http://127.0.0.1:9"
NO_STAMPS = ObjectStamps({})


class AnsweringS3:
    """Stands in for the SDK's client: records a request, raises or answers."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def get_paginator(self, operation: str) -> Any:
        return SimpleNamespace(paginate=getattr(self, operation))

    def __getattr__(self, operation: str) -> Any:
        def request(**fields: Any) -> Any:
            self.requests.append((operation, fields))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return request


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        patch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        yield


@pytest.fixture(scope="module")
def client(environment: None) -> Iterator[S3Client]:
    """One for many tests: the SDK takes its time to build it."""
    client = S3Client("bucket", "p/", S3Settings(endpoint=ENDPOINT), 4)
    yield client
    client.close()


def answering(answer: object, settings: S3Settings) -> tuple[S3Client, AnsweringS3]:
    client = S3Client("bucket", "p/", settings, 4)
    client.close()
    stand_in = AnsweringS3(answer)
    client._s3 = stand_in
    return client, stand_in


def answered(code: str, status: int) -> boto_errors.ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": "m"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return boto_errors.ClientError(answer, "Operation")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answered("SlowDown", 503), ThrottledError),
        (answered("TooManyRequests", 429), ThrottledError),
        (answered("", 429), ThrottledError),
        (answered("ServiceUnavailable", 503), RetriableError),
        (answered("503", 503), RetriableError),
        (answered("InternalError", 500), RetriableError),
        (answered("RequestTimeout", 400), RetriableError),
        (answered("BadDigest", 400), RetriableError),
        (answered("ConditionalRequestConflict", 409), RetriableError),
        (answered("ExpiredToken", 400), RetriableError),
        (answered("PreconditionFailed", 412), BlobExistsError),
        (answered("NoSuchKey", 404), BlobNotFoundError),
        (answered("NoSuchUpload", 404), BlobNotFoundError),
        (answered("NoSuchBucket", 404), ConfigError),
        (answered("AccessDenied", 403), ConfigError),
        (answered("SignatureDoesNotMatch", 403), ConfigError),
        (answered("InvalidAccessKeyId", 403), ConfigError),
        (answered("NotImplemented", 501), ConfigError),
        (answered("AuthorizationHeaderMalformed", 400), ConfigError),
        (boto_errors.EndpointConnectionError(endpoint_url=ENDPOINT), RetriableError),
        (boto_errors.ReadTimeoutError(endpoint_url=ENDPOINT), RetriableError),
        (boto_errors.SSLError(endpoint_url=ENDPOINT, error="EOF occurred"), RetriableError),
        (
            boto_errors.SSLError(endpoint_url=ENDPOINT, error="CERTIFICATE_VERIFY_FAILED"),
            ConfigError,
        ),
        (boto_errors.NoCredentialsError(), ConfigError),
        (ResponseParserError("a page of a proxy"), RetriableError),
        (ConnectionResetError(), RetriableError),
    ],
    ids=str,
)
def test_each_answer_is_classified_by_what_its_receiver_must_do(
    client: S3Client, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    monkeypatch.setattr(client, "_s3", AnsweringS3(error))
    with pytest.raises(kind) as caught:
        client.put("a", b"1", NO_STAMPS, if_absent=True)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


def test_settings_go_with_every_new_object_and_a_checksum_too() -> None:
    settings = S3Settings(
        endpoint=ENDPOINT,
        server_side_encryption="aws:kms",
        kms_key_id="key-1",
        storage_class="STANDARD_IA",
        tags={"team": "a b"},
    )
    client, s3 = answering({"UploadId": "1"}, settings)
    client.put("a", b"1", ObjectStamps({"store": "s"}), if_absent=False)
    client.begin_parts("a", ObjectStamps({"store": "s"}))
    for _, fields in s3.requests:
        fields.pop("Body", None)
        assert fields == {
            "Bucket": "bucket",
            "Key": "p/a",
            "Metadata": {"store": "s"},
            "ServerSideEncryption": "aws:kms",
            "SSEKMSKeyId": "key-1",
            "StorageClass": "STANDARD_IA",
            "Tagging": "team=a+b",
            "ChecksumAlgorithm": "CRC32",
        }


def test_a_store_that_refuses_checksums_gets_none() -> None:
    client, s3 = answering({}, S3Settings(endpoint=ENDPOINT, checksum="none"))
    client.put("a", b"1", NO_STAMPS, if_absent=True)
    assert s3.requests == [
        (
            "put_object",
            {"Bucket": "bucket", "Key": "p/a", "Body": b"1", "Metadata": {}, "IfNoneMatch": "*"},
        )
    ]


def test_unfinished_uploads_are_those_of_every_page_by_the_names_of_their_blobs() -> None:
    pages = [
        {"Uploads": [{"Key": "p/a/1", "UploadId": "u1", "Initiator": {}}]},
        {},
        {"Uploads": [{"Key": "p/a/2", "UploadId": "u2"}]},
    ]
    client, s3 = answering(pages, S3Settings(endpoint=ENDPOINT))
    assert client.unfinished("a/") == [UnfinishedUpload("a/1", "u1"), UnfinishedUpload("a/2", "u2")]
    assert s3.requests == [("list_multipart_uploads", {"Bucket": "bucket", "Prefix": "p/a/"})]


def test_an_unknown_profile_is_reported() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        S3Client("bucket", "", S3Settings(profile="no-such-profile"), 4)


@pytest.mark.parametrize("is_set", [True, False], ids=["setting", "environment"])
@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "minio", "http://user:hidden@minio:9000", "http://hidden@minio"]
)
def test_an_endpoint_that_is_no_plain_url_is_refused_unseen(
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    is_set: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError, match="endpoint") as caught:
        S3Client("bucket", "", S3Settings(endpoint=endpoint if is_set else None), 4)
    told = "".join(traceback.format_exception(caught.value))
    assert "http://" in told
    assert "hidden" not in told


def test_no_proxy_password_is_shown() -> None:
    settings = S3Settings(proxy="http://user:hidden@proxy:3128")
    assert "hidden" not in repr(settings)


def test_tags_of_an_object_that_is_not_committed_are_taken_away_and_the_others_stay() -> None:
    settings = S3Settings(endpoint=ENDPOINT, tags={"team": "streams"})
    client, s3 = answering({}, settings)
    client.put("a", b"1", ObjectStamps({}, {"statekeep": "uncommitted"}), if_absent=False)
    assert s3.requests[0][1]["Tagging"] == "team=streams&statekeep=uncommitted"
    client.remove_tags("a")
    tags = {"TagSet": [{"Key": "team", "Value": "streams"}]}
    assert s3.requests[1] == (
        "put_object_tagging",
        {"Bucket": "bucket", "Key": "p/a", "Tagging": tags},
    )


def test_one_request_deletes_many_objects() -> None:
    client, s3 = answering({}, S3Settings(endpoint=ENDPOINT))
    client.delete_many(["a", "b"])
    objects = {"Objects": [{"Key": "p/a"}, {"Key": "p/b"}], "Quiet": True}
    assert s3.requests == [("delete_objects", {"Bucket": "bucket", "Delete": objects})]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AccessDenied", ConfigError),
        ("InternalError", RetriableError),
        ("ServiceUnavailable", RetriableError),
        ("SlowDown", ThrottledError),
    ],
)
def test_an_object_that_a_request_for_many_cannot_delete_is_reported(
    code: str, error: type[Exception]
) -> None:
    answer = {"Errors": [{"Key": "p/b", "Code": code, "Message": "m"}]}
    client, _ = answering(answer, S3Settings(endpoint=ENDPOINT))
    with pytest.raises(error):
        client.delete_many(["a", "b"])


def test_an_object_without_tags_of_its_own_is_left_none() -> None:
    client, s3 = answering({}, S3Settings(endpoint=ENDPOINT))
    client.remove_tags("a")
    assert s3.requests == [("delete_object_tagging", {"Bucket": "bucket", "Key": "p/a"})]


@pytest.mark.parametrize(
    ("has_path_style", "url"),
    [
        (True, "https://s3.example.com/bucket/key"),
        (False, "https://bucket.s3.example.com/key"),
    ],
)
def test_the_bucket_stands_where_the_path_style_says(*, has_path_style: bool, url: str) -> None:
    settings = S3Settings(endpoint="https://s3.example.com", has_path_style=has_path_style)
    client = S3Client("bucket", "", settings, 4)
    signed = client._s3.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "key"})
    assert signed.partition("?")[0] == url
    client.close()


def test_region_and_proxy_are_those_of_the_settings() -> None:
    settings = S3Settings(region="eu-north-1", proxy="http://proxy:3128")
    client = S3Client("bucket", "", settings, 4)
    assert client._s3.meta.region_name == "eu-north-1"
    assert client._s3.meta.config.proxies == {
        "http": "http://proxy:3128",
        "https": "http://proxy:3128",
    }
    client.close()


def test_a_server_that_takes_no_notice_of_ranges_is_understood() -> None:
    answer = {"Body": io.BytesIO(b"0123456789")}
    client, _ = answering(answer, S3Settings(endpoint=ENDPOINT))
    assert client.read("a", 2, 3) == ObjectRange(b"234", 10)


@pytest.mark.parametrize(
    ("body", "data"),
    [(b"234", b"234"), (b"23", b"23"), (b"2345", b"234")],
    ids=["as asked for", "shorter", "longer"],
)
def test_no_more_than_was_asked_for_is_taken_of_an_answer(body: bytes, data: bytes) -> None:
    sent = io.BytesIO(body)
    client, _ = answering(
        {"Body": sent, "ContentRange": "bytes 2-4/10"}, S3Settings(endpoint=ENDPOINT)
    )
    assert client.read("a", 2, 3) == ObjectRange(data, 10)
    assert sent.tell() == len(body)  # read to its end: the connection is for the next request
