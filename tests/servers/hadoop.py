"""The Java artefacts of Hadoop's servers, as PySpark's Ivy fetches them."""

import os
from typing import Final

from servers.java_artefacts import fetched, spark_jar

_VERSION: Final = "3.4.2"
_ARTEFACTS: Final = (
    ("org.apache.hadoop", "hadoop-client-minicluster", _VERSION),
    ("org.apache.hadoop", "hadoop-client-api", _VERSION),
    ("org.apache.hadoop", "hadoop-client-runtime", _VERSION),
    # What WebHDFS needs and Java has no longer.
    ("javax.xml.bind", "jaxb-api", "2.3.1"),
    ("javax.activation", "javax.activation-api", "1.2.0"),
    # What YARN needs and the minicluster does not name.
    ("org.bouncycastle", "bcprov-jdk18on", "1.78.1"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
)


def hadoop_class_path() -> str:
    """Return the class path of the servers; its jars are fetched at first use.

    Raises:
        ServerUnavailableError: There is no Java, or the artefacts cannot be fetched.
    """
    loggers = [spark_jar(f"log4j-{part}-[0-9]*.jar") for part in ("1.2-api", "api", "core")]
    return os.pathsep.join([f"{fetched(f'hadoop-{_VERSION}', _ARTEFACTS)}/*", *map(str, loggers)])
