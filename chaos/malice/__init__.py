"""Schedules in which an attacker changes what the job has stored: it starts rightly, or says why not."""
