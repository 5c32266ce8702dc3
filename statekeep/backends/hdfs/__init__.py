"""The HDFS backend: a delta per commit, a snapshot now and then, tied together by lineage."""
