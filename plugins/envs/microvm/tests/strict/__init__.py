"""A strict server of Firecracker's published API, with a real machine behind it.

Firecracker itself needs KVM and is not to be had everywhere. This one says no to whatever the published description of
the API does not allow (`api`: paths, fields, types, what goes before and after the boot, what needs a pause), and runs
what it is told to run under QEMU (`vm`): the same kernel, image and agent boot, memory is really saved, loaded
privately and saved again by its difference. The agent's vsock port is really listened on; what stands in for the
device is a relay inside the guest (`relay`).
"""
