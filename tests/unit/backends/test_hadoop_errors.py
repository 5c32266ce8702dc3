"""What a server of HDFS says by HTTP is told by its Java exception, not by its status."""

import json
from typing import Any

import pytest
import requests

from statekeep.backends.storage.file_errors import mapped_errors, mapped_foreign_errors
from statekeep.backends.storage.hdfs.errors import explained_java_errors
from statekeep.errors import BlobNotFoundError, ConfigError, RetriableError, StateBackupError

ROOT = "webhdfs://namenode/root"
BELOW = "/place/a/b (is not a directory)"


def answer(status: int, content: bytes) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    response._content = content
    return requests.HTTPError("403 for url: https://namenode/?delegation=SECRET", response=response)


def remote(name: str, message: str = "it is so") -> bytes:
    told: dict[str, Any] = {"exception": name, "javaClassName": f"org.{name}", "message": message}
    return json.dumps({"RemoteException": told}).encode()


def told(error: Exception) -> StateBackupError:
    with (
        pytest.raises(StateBackupError) as caught,
        mapped_errors(ROOT, "blob"),
        mapped_foreign_errors(ROOT, "blob"),
        explained_java_errors(ROOT),
    ):
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (answer(403, remote("SafeModeException")), RetriableError, "NameNode is in safe mode"),
        (
            answer(403, remote("RetriableException", "o.a.h.hdfs.SafeModeException: wait")),
            RetriableError,
            "NameNode is in safe mode",
        ),
        (RuntimeError("Cannot delete /a. Name node is in safe mode."), RetriableError, "safe mode"),
        (answer(403, remote("DSQuotaExceededException")), ConfigError, "quota is used up"),
        (answer(403, remote("AccessControlException")), ConfigError, "access denied"),
        (RuntimeError(f"AccessControlException {BELOW}"), ConfigError, "a file stands where"),
        (PermissionError(BELOW), ConfigError, "a file stands where"),
        (answer(403, remote("LeaseExpiredException")), RetriableError, "did not answer"),
        (answer(404, remote("FileNotFoundException")), BlobNotFoundError, "blob"),
        (answer(403, b"<html>the proxy says no</html>"), ConfigError, "access denied"),
        (answer(403, b"[]"), ConfigError, "access denied"),
    ],
    ids=[
        *("safe mode", "safe mode of a DataNode", "safe mode without its name", "quota"),
        *(
            "access",
            "below a file",
            "below a file by fsspec",
            "lease",
            "missing",
            "page of a proxy",
            "other JSON",
        ),
    ],
)
def test_an_answer_is_classified_by_the_exception_in_it(
    error: Exception, kind: type[StateBackupError], text: str
) -> None:
    found = told(error)
    assert type(found) is kind
    assert text in str(found)
    assert "SECRET" not in f"{found} {found.__cause__} {found.__context__ and ''}"
