"""The clones level: a job is cloned, and all of them change, end and are cleaned up, by commands that are killed."""
