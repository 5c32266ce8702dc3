"""A sidecar is one of many small processes: it loads what it needs, and no Spark."""

import json
import subprocess
import sys

HEAVY = ["numpy", "pandas", "py4j", "pyarrow", "pyspark"]


def test_a_sidecar_loads_neither_spark_nor_what_spark_brings_along() -> None:
    program = (
        "import json, sys, statekeep.spark.sidecar.process;"
        f" print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == []


def test_what_starts_a_sidecar_loads_next_to_nothing() -> None:
    program = (
        "import json, sys, statekeep.spark.sidecar.__main__;"
        " print(json.dumps([name for name in sys.modules"
        " if name.startswith(('statekeep.', 'importlib.metadata'))]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert set(json.loads(done.stdout)) == {
        "statekeep.spark",
        "statekeep.spark.sidecar",
        "statekeep.spark.sidecar.__main__",
    }
