"""Settings of `docker/docker`."""

from __future__ import annotations

from attrs import field, frozen, validators


@frozen(kw_only=True)
class DockerConfig:
    """Settings of `docker/docker`; at most one of `image`, `rootfs` and `folders` is given.

    With none of them the base image is made of this machine's own programs: a shell, the usual tools, `python3` with
    its standard library, and whatever a task or a tool needs.
    """

    image: str = ""
    """Reference of an image that the engine has already; nothing is ever pulled."""
    rootfs: str = ""
    """Folder that holds a whole root file system; it is imported once for each content."""
    folders: tuple[str, ...] = ()
    """Folders of this machine, such as "/usr", to import where they are; it is for you to know what they hold."""
    engine: str = ""
    """Address of the engine, "unix:///run/docker.sock" for example; default, what DOCKER_HOST says, or that socket."""
    cpus: float = field(default=1.0, validator=validators.ge(0))
    """Cores that one sandbox may use; 0 for no limit."""
    starts: int = field(default=4, validator=validators.ge(1))
    """Containers that are started at once; more wait their turn."""
    store_bytes: int = field(default=1 << 30, validator=validators.ge(1 << 20))
    """Memory that all snapshots of one provider may take together."""
