"""Gives each executor of a ``local-cluster`` a local disk of its own, as if it had a host of its own.

Python imports this by its name at its start, where the directory is on ``PYTHONPATH``.
"""

import os
from pathlib import Path

_work = Path.cwd()  # of an executor: <work>/<application>/<executor>
if "DISKS" in os.environ and _work.parent.name.startswith("app-"):
    os.environ["LOGGED_STORE_BASE_DIR"] = f"{os.environ['DISKS']}/{_work.name}"
