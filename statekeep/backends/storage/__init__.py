"""Stores of objects and files, and how requests of them are made."""
