#!/bin/sh
# The long forms of the daemon's tests: 500 kills of the daemon and 100 of workers under load, 1,000 jobs on a fast and
# a slow device, 100,000 waiting files, 10,000 files dropped during a SIGSTOP, every error at every call of a job's way,
# twice 5,000 jobs without growth, 20 videos on the CPU. Takes about half an hour, and the CPU's part as long again.
#
#     tests/long/daemon.sh BUILD_DIRECTORY
set -e
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
export TILETRACK_SOURCE="$source" TILETRACK_BIN="$build/bin" TILETRACK_LONG=1
export TILETRACK_SHARED="${TILETRACK_SHARED:-$source/../shared}"

for test in test_daemon test_daemon_faults test_daemon_kills test_daemon_troubles test_daemon_real test_daemon_cpu; do
    /usr/bin/python3 "$source/tests/e2e/$test.py"
done
