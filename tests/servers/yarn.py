"""YARN: one ResourceManager, some NodeManagers."""

import os
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servers.hadoop import hadoop_class_path
from servers.process import ServerUnavailableError, running, temporary_directory
from servers.process_tree import command_of, processes_that_name
from servers.spark_cluster import EXECUTOR

_PROGRAM: Final = """\
import java.io.File;
import java.io.FileOutputStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

public class Mini {
  public static void main(String[] args) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    conf.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
    conf.setInt("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
    conf.setInt("yarn.nodemanager.resource.memory-mb", 4096);
    conf.setInt("yarn.scheduler.minimum-allocation-mb", 128);
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.setInt("yarn.scheduler.capacity.root.default.capacity", 100);
    conf.setInt("yarn.scheduler.capacity.maximum-am-resource-percent", 1);
    MiniYARNCluster cluster = new MiniYARNCluster("mini", Integer.parseInt(args[1]), 1, 1);
    cluster.init(conf);
    cluster.start();
    if (!cluster.waitForNodeManagersToConnect(60000)) throw new IllegalStateException("no NodeManagers");
    File written = new File(args[0], "written.xml");
    try (FileOutputStream out = new FileOutputStream(written)) { cluster.getConfig().writeXml(out); }
    written.renameTo(new File(args[0], "yarn-site.xml"));
    while (System.in.read() >= 0) { }
    cluster.stop();
    System.exit(0);
  }
}
"""


@dataclass(frozen=True)
class YarnCluster:
    """A running cluster."""

    configuration: Path
    """For ``HADOOP_CONF_DIR``."""
    directory: Path
    """All files of the cluster."""

    def kill_executor(self) -> None:
        """Kill the JVM of an executor."""
        found = processes_that_name(self.directory)
        jvms = [
            pid
            for pid in found
            if EXECUTOR in command_of(pid) and "/bin/java" in command_of(pid).split()[0]
        ]
        os.kill(jvms[0], signal.SIGKILL)


@contextmanager
def yarn_cluster(node_count: int) -> Generator[YarnCluster]:
    """Run NodeManagers in one process with their ResourceManager; all is gone after.

    Raises:
        ServerUnavailableError: There is no Java, or the artefacts cannot be fetched.
    """
    class_path = hadoop_class_path()
    java = shutil.which("java")
    if java is None:
        raise ServerUnavailableError("YARN needs Java 17: install a JRE")
    with temporary_directory("yarn") as directory:
        source = directory / "Mini.java"
        source.write_text(_PROGRAM)
        configuration = directory / "configuration"
        configuration.mkdir()
        command = [
            *(java, "-Xmx512m", "--add-opens", "java.base/java.lang=ALL-UNNAMED"),
            *("-cp", class_path, str(source), str(configuration), str(node_count)),
        ]
        with running(
            command,
            log=directory / "yarn.log",
            is_ready=(configuration / "yarn-site.xml").exists,
            timeout_s=90,
        ):
            yield YarnCluster(configuration, directory)
