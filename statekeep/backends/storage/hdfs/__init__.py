"""HDFS as a store of files."""
