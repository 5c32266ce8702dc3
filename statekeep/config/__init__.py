"""Typed settings and the sources they are read from."""
