"""What the older releases of PySpark lack: 4.1, and 4.0 before it."""

from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql import types
from pyspark.sql.types import AtomicType

RELEASE: Final = tuple(map(int, pyspark.__version__.split(".")[:2]))
"""Such as ``(4, 3)``."""

if TYPE_CHECKING or RELEASE >= (4, 1):
    TimeType = types.TimeType
else:

    class TimeType(AtomicType):
        """The type of no column: 4.0 has none for times of day."""
