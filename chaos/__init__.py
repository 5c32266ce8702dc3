"""The crash harness: random schedules of faults against real jobs, and verifiers that judge them."""
