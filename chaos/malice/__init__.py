"""Schedules in which somebody changes what the job has stored: it starts rightly, or says why not."""
