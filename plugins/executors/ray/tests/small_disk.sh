# DISK COMMAND...: run COMMAND while 400 kB are left on DISK, then `train --resume` with room; what DISK holds is kept.
# Inside `unshare --user --map-root-user --mount`, so that a file system may be mounted.
disk=$1
shift
mount -t tmpfs -o size=400k tmpfs "$disk" || exit 90
"$@"
echo "full: $?" >&2
mount -o remount,size=64m "$disk" || exit 91
"$1" -m composer_core.cli train --resume "$disk/run"
code=$?
cp -r "$disk/run" "$disk.kept"
exit $code
