"""The PySpark runtime; containers live in it too, and need no PySpark."""
