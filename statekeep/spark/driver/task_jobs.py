"""The anchored jobs that the driver runs, as plain calls: ask the tasks, get their answers."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import logging
from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from statekeep.errors import RestoreFailedError
from statekeep.spark.anchor import Anchor
from statekeep.spark.driver.job_bar import Background, job_bar
from statekeep.spark.tasks import task_name
from statekeep.spark.worker import errands
from statekeep.spark.worker.job_spec import BatchPlan, HandOverPlan, JobSpec, OutputPlan, Receipt
from statekeep.spark.worker.process import process_partition

logger = logging.getLogger(__name__)

Candidates = Sequence[tuple[str, bytes | None]]
"""(VersionId, CheckpointV2 in JSON) of commits, newest first."""


class TaskJobs:
    """Runs one Spark job per call over the N anchored partitions. Blocking, on the driver."""

    def __init__(
        self, spark: SparkSession, anchor: Anchor, spec: JobSpec, background: Background
    ) -> None:
        self._spark = spark
        self._background = background
        self.anchor = anchor
        self.epoch = 0
        """Of this driver, once it has taken over: goes with each request to a container."""
        self._spec = spec

    def process(self, rows: DataFrame, plan: BatchPlan) -> dict[int, Receipt]:
        """Process one batch; every partition asked for answers with a receipt."""
        spec = self._spec
        answers = self.anchor.process(
            rows,
            lambda batches: process_partition(batches, spec, plan),
            key_columns=spec.operator.key_columns,
            row_columns=spec.operator.row_schema.names,
            only=plan.only,
            is_sorted=plan.is_sorted,
        )
        receipts = [Receipt.parse(answer) for answer in answers]
        return {receipt.partition: receipt for receipt in receipts}

    def locate(
        self, candidates: Mapping[int, Sequence[str]], *, is_thorough: bool
    ) -> dict[int, str]:
        """Ask each partition for the first of its candidate versions that is on its host.

        Args:
            candidates: ``{partition: [VersionId]}``, best first.
            is_thorough: Read every byte and compare, as after a restart; else sizes only.

        Returns:
            ``{partition: VersionId}`` of those that have one.
        """
        spec = self._spec
        answers = self.anchor.run_everywhere(
            lambda partition: errands.locate(partition, spec, candidates, is_thorough=is_thorough)
        )
        return {int(a["partition"]): str(a["version"]) for a in answers if a["version"] is not None}

    def restore(
        self,
        candidates: Mapping[int, Candidates],
        bad_markers: Collection[tuple[str, str, str, str]],
    ) -> dict[int, "errands.Restored"]:
        """Let the containers of the given partitions restore one of their candidates.

        Raises:
            RestoreFailedError: A task's state is out of reach.
        """
        spec = self._spec
        bad, epoch = tuple(bad_markers), self.epoch
        with job_bar(self._spark, self._background, f"restoring {len(candidates)} tasks"):
            answers = self.anchor.run(
                lambda partition: errands.restore(
                    partition, spec, candidates, bad_markers=bad, epoch=epoch
                )
            )
        restored = {int(a["partition"]): errands.Restored(**a) for a in answers}
        for partition, outcome in restored.items():
            if outcome.error:
                raise RestoreFailedError(
                    f"the state cannot be restored ({outcome.error})",
                    task_name=task_name(partition),
                    store_names=["state"],
                )
        return restored

    def hand_over(self, plan: HandOverPlan) -> dict[int, str]:
        """Let the tasks hand their versions to their containers; return ``{partition: error}``."""
        spec = self._spec
        answers = self.anchor.run_everywhere(
            lambda partition: errands.hand_over(partition, spec, plan)
        )
        return {int(a["partition"]): str(a["error"]) for a in answers if a["error"]}

    def abandoned(self, plan: HandOverPlan) -> frozenset[int]:
        """Return the tasks of an older driver's attempt whose version nobody backs up any more.

        One that has its entry already may be among them; one whose host cannot be asked is not.
        """
        spec = self._spec
        answers = self.anchor.run_everywhere(
            lambda partition: errands.is_abandoned(partition, spec, plan)
        )
        return frozenset(int(a["partition"]) for a in answers if a["is_abandoned"])

    def output(self, plan: OutputPlan) -> DataFrame:
        """Return the output rows of a batch: no row of another attempt can be in it."""
        spec = self._spec
        return self.anchor.frame(
            lambda partition: errands.read_output(partition, spec, plan), plan.schema
        )

    def stop_containers(self) -> None:
        """Tell the containers of this job to end once they are done, and see them go."""
        spec, epoch = self._spec, self.epoch
        self.anchor.run(lambda partition: errands.stop_container(partition, spec, epoch=epoch))
