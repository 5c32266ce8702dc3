"""The plain-Python container: a program that keeps task state without Spark."""
