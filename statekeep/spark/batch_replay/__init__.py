"""One recorded batch of a job again, in this process, with a trace; the job is only read."""
