#!/bin/sh
# The long forms of the spool's kill tests: 3 × 5,000 random kills, and a kill at every system call that changes a
# disk, each also while recovering from that. Takes about ten minutes.
#
#     tests/long/spool.sh BUILD_DIRECTORY
set -e
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
export TILETRACK_SOURCE="$source"

"$build/tests/test_spool_kill" "$build/tests/spool_driver" 5000
export SPOOL_DRIVER="$build/tests/spool_driver"
for call in fsync renameat renameat2 linkat unlinkat mkdirat write openat; do
    echo "before every $call"
    SPOOL_CALL=$call "$build/tests/test_spool_kill" "$source/tests/fault/kill_at_syscall.sh" 0 syscalls
done
