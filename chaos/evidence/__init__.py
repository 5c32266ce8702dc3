"""What places hold, read by plain clients: nothing of the runtime is used here."""
