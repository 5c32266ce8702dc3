"""What runs in an executor's Python worker: the tasks of a slot, and the short task functions."""
