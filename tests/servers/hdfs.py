"""HDFS: one NameNode, some DataNodes."""

import shutil
import subprocess
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from servers.hadoop import hadoop_class_path
from servers.process import (
    ServerUnavailableError,
    free_ports,
    is_listening,
    running,
    temporary_directory,
)

_ANSWER_S: Final = 60
_PROGRAM: Final = """\
import java.io.BufferedReader;
import java.io.File;
import java.io.FileWriter;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class Mini {
  public static void main(String[] args) throws Exception {
    Configuration conf = new HdfsConfiguration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);
    conf.setInt("dfs.blocksize", 8 << 20);
    conf.setInt("dfs.replication", 2);
    conf.setInt("dfs.client.socket-timeout", 5000);
    conf.setInt("dfs.heartbeat.interval", 1);
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1000);
    conf.setLong("dfs.namenode.fs-limits.min-block-size", 1 << 20);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf)
        .nameNodePort(Integer.parseInt(args[1])).nameNodeHttpPort(Integer.parseInt(args[2]))
        .numDataNodes(Integer.parseInt(args[3])).build();
    cluster.waitActive();
    File answers = new File(args[4]);
    answer(answers, "ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    MiniDFSCluster.DataNodeProperties stopped = null;
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      switch (words[1]) {
        case "stop-datanode": stopped = cluster.stopDataNode(Integer.parseInt(words[2])); break;
        case "start-datanode": cluster.restartDataNode(stopped, true); cluster.waitActive(); break;
        case "restart-namenode": cluster.restartNameNode(true); break;
        case "enter-safe-mode": cluster.getNameNodeRpc().setSafeMode(
            org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction.SAFEMODE_ENTER, false); break;
        case "leave-safe-mode": cluster.getNameNodeRpc().setSafeMode(
            org.apache.hadoop.hdfs.protocol.HdfsConstants.SafeModeAction.SAFEMODE_LEAVE, false); break;
        case "space-quota":
          cluster.getFileSystem().mkdirs(new Path(words[2]));
          cluster.getFileSystem().setQuota(new Path(words[2]), Long.MAX_VALUE - 1, Long.parseLong(words[3])); break;
        case "read-only":
          cluster.getFileSystem().mkdirs(new Path(words[2]));
          cluster.getFileSystem().setOwner(new Path(words[2]), "another", "user");
          cluster.getFileSystem().setPermission(new Path(words[2]), new FsPermission((short) 0555)); break;
        default: throw new IllegalArgumentException(line);
      }
      answer(answers, words[0]);
    }
    cluster.shutdown(true);
    System.exit(0);
  }

  static void answer(File answers, String text) throws Exception {
    try (FileWriter out = new FileWriter(answers, true)) { out.write(text + "\\n"); }
  }
}
"""


class HdfsCluster:
    """A NameNode and its DataNodes in one Java process; tests make them fail.

    Attributes:
        uri: The root, such as ``hdfs://127.0.0.1:8020``.
        web_uri: The same by HTTP, ``webhdfs://…``.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", answers: Path, ports: list[int]) -> None:
        self.uri = f"hdfs://127.0.0.1:{ports[0]}"
        self.web_uri = f"webhdfs://127.0.0.1:{ports[1]}"
        self._process = process
        self._answers = answers

    def stop_datanode(self, index: int) -> None:
        """End a DataNode; its blocks are out of reach."""
        self._do(f"stop-datanode {index}")

    def start_datanode(self) -> None:
        """Start the DataNode again that was stopped last."""
        self._do("start-datanode")

    def restart_namenode(self) -> None:
        """End the NameNode and start it on the same files."""
        self._do("restart-namenode")

    def enter_safe_mode(self) -> None:
        """Make the NameNode refuse writes."""
        self._do("enter-safe-mode")

    def leave_safe_mode(self) -> None:
        """Make the NameNode take writes again."""
        self._do("leave-safe-mode")

    def limit_space(self, path: str, size: int) -> None:
        """Give a directory, created if missing, a quota of bytes (all replicas counted)."""
        self._do(f"space-quota {path} {size}")

    def make_read_only(self, path: str) -> None:
        """Create a directory of another user."""
        self._do(f"read-only {path}")

    def _do(self, command: str) -> None:
        name = uuid.uuid4().hex
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {command}\n".encode())
        self._process.stdin.flush()
        wait_for_line(self._process, self._answers, name)


def wait_for_line(process: "subprocess.Popen[bytes]", path: Path, line: str) -> None:
    """Wait until a file of answers has a line.

    Raises:
        ServerUnavailableError: The process ended, or the time is over.
    """
    for _ in range(_ANSWER_S * 20):
        if path.exists() and line in path.read_text().splitlines():
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        raise ServerUnavailableError(f"the cluster ended: code={process.returncode}")
    raise ServerUnavailableError(f"the cluster did not answer: line={line}")


@contextmanager
def hdfs_cluster(datanodes: int = 3) -> Generator[HdfsCluster]:
    """Run a cluster on free ports that keeps two copies; its data is gone after.

    Raises:
        ServerUnavailableError: There is no Java, or the artefacts cannot be fetched.
    """
    class_path = hadoop_class_path()
    java = shutil.which("java")
    if java is None:
        raise ServerUnavailableError("HDFS needs Java 17: install a JRE")
    with temporary_directory("hdfs") as directory:
        source = directory / "Mini.java"
        source.write_text(_PROGRAM)
        answers = directory / "answers"
        ports = free_ports(2)
        command = [
            *(java, "-Xmx512m", "-cp", class_path, str(source), str(directory / "data")),
            *(str(ports[0]), str(ports[1]), str(datanodes), str(answers)),
        ]

        def is_ready() -> bool:
            return answers.exists() and is_listening(ports[0])

        with running(command, log=directory / "hdfs.log", is_ready=is_ready, timeout_s=90) as node:
            yield HdfsCluster(node, answers, ports)
