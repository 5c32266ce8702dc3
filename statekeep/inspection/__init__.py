"""Looking at a job from outside: its log, its commits, its backups; the job may go on meanwhile."""
