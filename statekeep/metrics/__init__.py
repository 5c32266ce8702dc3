"""Metrics: figures that are made of events, and what exports them."""
