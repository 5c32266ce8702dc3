"""Programs that show Statekeep on real input."""
