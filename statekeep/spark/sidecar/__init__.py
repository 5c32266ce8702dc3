"""The sidecar process beside each executor: uploads sealed versions, restores lost ones."""
