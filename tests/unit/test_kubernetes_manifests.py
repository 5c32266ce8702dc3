"""deploy/kubernetes/: what docs/how-to/cluster.md runs, written down for `kubectl apply`."""

import shlex
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
import yaml  # type: ignore[import-untyped] # ships no types
from pages_kit import ROOT, blocks

from statekeep.config.load import load_dict

MANIFESTS = ROOT / "deploy/kubernetes/totals.yaml"
VOLUME = "spark.kubernetes.executor.volumes."
PARTS = {
    "spark.executorEnv.LOGGED_STORE_BASE_DIR": ("spark.executorEnv.",),
    "spark.kubernetes.authenticate.executor.serviceAccountName": (
        "spark.kubernetes.authenticate.executor",
        ".serviceAccountName",
    ),
    f"{VOLUME}hostPath.state.mount.path": (VOLUME, "hostPath", "mount.path"),
    f"{VOLUME}hostPath.state.options.path": (VOLUME, "hostPath"),
}
"""Of names that Spark puts together: what stands in its classes."""


@pytest.fixture
def by_kind() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFESTS.read_text())}


def settings_of(arguments: list[str]) -> dict[str, str]:
    """Return the settings of a command line of ``spark-submit``."""
    values = [arguments[at + 1] for at, word in enumerate(arguments) if word == "--conf"]
    return dict(value.split("=", 1) for value in values)


def pod_of(by_kind: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = by_kind["Deployment"]["spec"]["template"]
    return pod


def test_the_driver_has_the_rights_of_its_account(by_kind: dict[str, Any]) -> None:
    assert list(by_kind) == ["ServiceAccount", "Role", "RoleBinding", "Deployment"]
    account = by_kind["ServiceAccount"]["metadata"]["name"]
    binding = by_kind["RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == by_kind["Role"]["metadata"]["name"]
    assert pod_of(by_kind)["spec"]["serviceAccountName"] == account
    (rule,) = by_kind["Role"]["rules"]
    # What Spark's driver makes and deletes for its executors.
    assert {"pods", "services", "configmaps", "persistentvolumeclaims"} == set(rule["resources"])
    assert {"create", "get", "list", "watch", "delete", "deletecollection"} <= set(rule["verbs"])


def test_the_pod_is_found_and_outlives_its_last_commit(by_kind: dict[str, Any]) -> None:
    spec, pod = by_kind["Deployment"]["spec"], pod_of(by_kind)
    assert spec["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    limit_s = load_dict({"job.name": "totals"}).task.shutdown_ms / 1000
    assert pod["spec"]["terminationGracePeriodSeconds"] >= limit_s + 15


def test_the_command_is_that_of_the_page_with_the_driver_in_this_pod(
    by_kind: dict[str, Any],
) -> None:
    (driver,) = pod_of(by_kind)["spec"]["containers"]
    _, *printed = shlex.split(blocks("docs/how-to/cluster.md", "Kubernetes", "bash")[0])
    own, page = settings_of(driver["args"]), settings_of(printed)
    assert page.items() <= own.items()
    assert driver["args"][-1] == printed[-1]
    assert own["spark.kubernetes.container.image"] == driver["image"]
    known = {f"$({each['name']})" for each in driver["env"]}
    given = {value for value in own.values() if value.startswith("$(")}
    assert given == known


def test_spark_knows_the_settings_of_the_manifest(by_kind: dict[str, Any]) -> None:
    """By the names in its own classes: Spark passes over a setting that it does not know."""
    jars = Path(pyspark.__file__).parent / "jars"
    classes = b""
    for pattern, name in [
        ("spark-kubernetes_*.jar", "deploy/k8s/Config$"),
        ("spark-core_*.jar", "internal/config/package$"),
        ("spark-core_*.jar", "SparkConf"),
    ]:
        (jar,) = jars.glob(pattern)
        with ZipFile(jar) as archive:
            classes += archive.read(f"org/apache/spark/{name}.class")
    (driver,) = pod_of(by_kind)["spec"]["containers"]
    for setting in settings_of(driver["args"]):
        for part in PARTS.get(setting, (setting,)):
            assert part.encode() in classes, setting
