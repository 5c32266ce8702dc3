"""Faults put on purpose: into calls of a blob store, and at the fault points of any process."""

from statekeep.testing.faults.blob_faults import (
    Fault,
    FaultPlan,
    FaultyBlobStoreManager,
    Moment,
    faulty_blob_factory,
    throttled,
)
from statekeep.testing.faults.process_faults import (
    HANDLER,
    PLAN_VARIABLE,
    ProcessFaults,
    at_fault_point,
    process_kind,
)
from statekeep.testing.faults.process_plan import (
    Action,
    ArmedFault,
    ProcessKind,
    ProcessPlan,
    Strike,
)

__all__ = [
    "HANDLER",
    "PLAN_VARIABLE",
    "Action",
    "ArmedFault",
    "Fault",
    "FaultPlan",
    "FaultyBlobStoreManager",
    "Moment",
    "ProcessFaults",
    "ProcessKind",
    "ProcessPlan",
    "Strike",
    "at_fault_point",
    "faulty_blob_factory",
    "process_kind",
    "throttled",
]
