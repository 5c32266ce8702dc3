"""The PySpark runtime; sidecars live in it too, and need no PySpark."""
