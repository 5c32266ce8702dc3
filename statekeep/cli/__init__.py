"""The command line: ``statekeep ...`` looks at jobs and looks after their checkpoints."""
