"""What runs on the driver: the batch call, commits, recovery, replay."""
