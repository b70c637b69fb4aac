"""Firecracker's API as its published description has it: operations, fields, and when each is allowed.

Source: src/firecracker/swagger/firecracker.yaml (facts, in a form of our own), versions 1.13 to 1.16, without what was
added later. Fields that are deprecated are not taken.
"""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen


class Refused(Exception):
    """Answered with 400 and this text."""


@frozen
class Field:
    """One of a body; `kind` is a type, a tuple of the texts that are allowed, or the name of another body."""

    kind: Any
    required: bool = False
    least: int = 0
    most: int = 1 << 62


BODIES: dict[str, dict[str, Field]] = {
    "BootSource": {
        "kernel_image_path": Field(str, required=True),
        "initrd_path": Field(str),
        "boot_args": Field(str),
    },
    "Drive": {
        "drive_id": Field(str, required=True),
        "is_root_device": Field(bool, required=True),
        "partuuid": Field(str),
        "cache_type": Field(("Unsafe", "Writeback")),
        "is_read_only": Field(bool),
        "path_on_host": Field(str),
        "rate_limiter": Field("RateLimiter"),
        "io_engine": Field(("Sync", "Async")),
        "socket": Field(str),
    },
    "EntropyDevice": {"rate_limiter": Field("RateLimiter")},
    "InstanceActionInfo": {
        "action_type": Field(("FlushMetrics", "InstanceStart", "SendCtrlAltDel"), required=True),
    },
    "Logger": {
        "level": Field(("Error", "Warning", "Info", "Debug", "Trace", "Off")),
        "log_path": Field(str),
        "show_level": Field(bool),
        "show_log_origin": Field(bool),
        "module": Field(str),
    },
    "MachineConfiguration": {
        "vcpu_count": Field(int, required=True, least=1, most=32),
        "mem_size_mib": Field(int, required=True, least=1),
        "smt": Field(bool),
        "track_dirty_pages": Field(bool),
        "huge_pages": Field(("None", "2M")),
    },
    "MemoryBackend": {
        "backend_type": Field(("File", "Uffd"), required=True),
        "backend_path": Field(str, required=True),
    },
    "Metrics": {"metrics_path": Field(str, required=True)},
    "RateLimiter": {"bandwidth": Field("TokenBucket"), "ops": Field("TokenBucket")},
    "SnapshotCreateParams": {
        "mem_file_path": Field(str, required=True),
        "snapshot_path": Field(str, required=True),
        "snapshot_type": Field(("Full", "Diff")),
    },
    "SnapshotLoadParams": {
        "snapshot_path": Field(str, required=True),
        "mem_backend": Field("MemoryBackend", required=True),
        "track_dirty_pages": Field(bool),
        "resume_vm": Field(bool),
    },
    "TokenBucket": {
        "size": Field(int, required=True),
        "refill_time": Field(int, required=True),
        "one_time_burst": Field(int),
    },
    "Vm": {"state": Field(("Paused", "Resumed"), required=True)},
    "Vsock": {"guest_cid": Field(int, required=True, least=3, most=2**32 - 1), "uds_path": Field(str, required=True)},
}
BEFORE, AFTER, EVER = "before", "after", "ever"


@frozen
class Operation:
    """A method on a path. One that `configures` what boots rules out loading a snapshot."""

    body: str | None
    when: str
    configures: bool = False


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/"): Operation(None, EVER),
    ("GET", "/version"): Operation(None, EVER),
    ("GET", "/machine-config"): Operation(None, EVER),
    ("PUT", "/actions"): Operation("InstanceActionInfo", EVER),
    ("PUT", "/boot-source"): Operation("BootSource", BEFORE, configures=True),
    ("PUT", "/drives/{id}"): Operation("Drive", BEFORE, configures=True),
    ("PUT", "/entropy"): Operation("EntropyDevice", BEFORE, configures=True),
    ("PUT", "/logger"): Operation("Logger", BEFORE),
    ("PUT", "/machine-config"): Operation("MachineConfiguration", BEFORE, configures=True),
    ("PUT", "/metrics"): Operation("Metrics", BEFORE),
    ("PUT", "/snapshot/create"): Operation("SnapshotCreateParams", AFTER),
    ("PUT", "/snapshot/load"): Operation("SnapshotLoadParams", BEFORE),
    ("PUT", "/vsock"): Operation("Vsock", BEFORE, configures=True),
    ("PATCH", "/vm"): Operation("Vm", AFTER),
}
POSTBOOT = "The requested operation is not supported after starting the microVM."
PREBOOT = "The requested operation is not supported before starting the microVM."


def operation(method: str, path: str) -> tuple[str, Operation, str]:
    """The path as it is described, the operation, and the id in the path."""
    described, name = path, ""
    if match := re.fullmatch(r"/drives/([^/]*)", path):
        described, name = "/drives/{id}", match[1]
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise Refused("API Resource IDs can only contain alphanumeric characters and underscores.")
    found = OPERATIONS.get((method, described))
    if found is None:
        raise Refused(f"Invalid request method and/or path: {method} {path}.")
    return described, found, name


def allowed(found: Operation, started: bool) -> None:
    if found.when == BEFORE and started:
        raise Refused(POSTBOOT)
    if found.when == AFTER and not started:
        raise Refused(PREBOOT)


def checked(name: str, value: Any) -> dict[str, Any]:
    """The body, if it is one of this name."""
    fields = BODIES[name]
    if not isinstance(value, dict):
        raise Refused(f"invalid type for {name}: {value!r}")
    for key in value:
        if key not in fields:
            raise Refused(f"unknown field `{key}`, expected one of {', '.join(fields)}")
    for key, field in fields.items():
        if key in value:
            _check(key, field, value[key])
        elif field.required:
            raise Refused(f"missing field `{key}`")
    return value


def _check(key: str, field: Field, value: Any) -> None:
    if isinstance(field.kind, str):
        checked(field.kind, value)
    elif isinstance(field.kind, tuple):
        if value not in field.kind:
            raise Refused(f"unknown variant {value!r} of `{key}`, expected one of {', '.join(field.kind)}")
    elif type(value) is not field.kind:
        raise Refused(f"invalid type of `{key}`: {value!r}, expected {field.kind.__name__}")
    elif field.kind is int and not field.least <= value <= field.most:
        raise Refused(f"invalid value of `{key}`: {value}")
