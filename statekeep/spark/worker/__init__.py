"""What runs in an executor's Python worker: the anchored task and its short errands."""
