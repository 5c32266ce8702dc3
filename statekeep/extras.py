"""Which extra of ``pip install`` brings a package that is missing."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from statekeep.errors import ConfigError

_EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pyspark": "spark",
        "py4j": "spark",
        "pandas": "spark",
        "pyarrow": "spark",
        "google": "spark",  # protobuf
        "boto3": "s3",
        "botocore": "s3",
        "azure": "azure",
        "gcsfs": "gcs",
        "paramiko": "sftp",
        "cryptography": "encryption",
        "prometheus_client": "prometheus",
        "opentelemetry": "otel",
        "confluent_kafka": "kafka",
        "hdfs_native": "hdfs",
        "lz4": "hdfs",
        "requests": "hdfs",
        "xxhash": "hdfs",
        "zstandard": "hdfs",
    }
)
"""``{top-level module: extra}``"""


def missing_package(error: ModuleNotFoundError, *, key: str | None = None) -> ConfigError | None:
    """Return an error that names the extra to install; None if no extra brings the module."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(module)
    if extra is None:
        return None
    return ConfigError(
        f"a package is not installed: module={module}",
        key=key,
        hint=f"pip install 'statekeep[{extra}]'",
    )
