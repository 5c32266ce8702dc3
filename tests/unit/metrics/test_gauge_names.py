"""Names of gauges in Spark's metrics system, whose sinks divide them at dots."""

from statekeep.spark.metrics_system import part_of_name


def test_names_that_differ_in_a_sign_alone_share_no_gauge() -> None:
    parts = [part_of_name(name) for name in ("a_b-c", "a.b-c", "a b-c", "a/b-c")]
    assert parts[0] == "a_b-c"
    assert len(set(parts)) == 4
    assert all(part.startswith("a_b-c") and "." not in part for part in parts)
