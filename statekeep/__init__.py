"""Asynchronous, pluggable backup and exact restore of the state of stateful streams."""
