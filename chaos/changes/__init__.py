"""The changes level: the state of a stopped job is put, deleted, undone and erased, by commands that are killed."""
