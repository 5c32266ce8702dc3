"""The PySpark runtime: anchored tasks, the stateful operator, the container process, replay."""
