#!/usr/bin/env bash
# Set up a virtual environment with every distribution of this workspace, and the system packages they use.
# Usage: tools/setup.sh VENV DIST...   Needs Python 3.11 or newer; says what is missing where it may not install.
set -euo pipefail

venv=$1
shift
PATH=$PATH:/usr/sbin # where dockerd is
declare -A package=([bwrap]=bubblewrap [dockerd]=docker.io [rg]=ripgrep [chromium]=chromium
    [qemu-system-x86_64]=qemu-system-x86 [debootstrap]=debootstrap [mksquashfs]=squashfs-tools [busybox]=busybox-static
    [lz4]=lz4)
declare -A loss=(
    [bwrap]="sandboxes in namespaces: runs that use local/namespaces refuse to start"
    [dockerd]="tests of sandboxes in containers, which start an engine of their own and fail without it"
    [rg]="the grep tool, and tests of it"
    [chromium]="tests that open the report in a browser"
    [qemu-system-x86_64]="sandboxes in virtual machines, and their tests, which fail without it"
    [debootstrap]="making the image of virtual machines"
    [mksquashfs]="making the image of virtual machines"
    [busybox]="making the image of virtual machines"
    [lz4]="the kernel of virtual machines for Firecracker, and tests of it, which fail without it"
)

missing=()
for command in "${!package[@]}"; do
    command -v "$command" >/dev/null || missing+=("$command")
done
if [ ${#missing[@]} -gt 0 ]; then
    names=()
    for command in "${missing[@]}"; do names+=("${package[$command]}"); done
    as_root=()
    if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
    if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
        echo "setup: installing system packages: ${names[*]}"
        "${as_root[@]}" apt-get update -qq || echo "setup: apt-get update failed, trying with the lists at hand"
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${names[@]}" >/dev/null ||
            echo "setup: apt-get could not install ${names[*]}"
    fi
    for command in "${missing[@]}"; do
        command -v "$command" >/dev/null ||
            echo "setup: '$command' is missing (Debian package ${package[$command]}); lost: ${loss[$command]}"
    done
fi

python=${PYTHON:-python3}
"$python" - <<'PY' || { echo "setup: Python 3.11 or newer is needed (set PYTHON=...)" >&2; exit 1; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
echo "setup: installing Python packages into $venv"
"${pip[@]}" install -c constraints.txt hatchling editables
editable=()
for dist in "$@"; do editable+=(-e "$dist"); done
"${pip[@]}" install -c constraints.txt --no-build-isolation "${editable[@]}" -r tools/requirements-dev.txt
touch "$venv/.ready"
