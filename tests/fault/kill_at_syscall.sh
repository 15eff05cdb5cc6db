#!/bin/sh
# Stands for spool_driver in test_spool_kill and counts calls of one system call instead of steps: the driver dies on
# entering the TT_KILL_AT-th one (strace injects the signal).
#
#     SPOOL_DRIVER: the real driver     SPOOL_CALL: the system call
if [ "${TT_KILL_AT:-0}" = 0 ]; then
    exec "$SPOOL_DRIVER" "$@"
fi
at=$TT_KILL_AT
unset TT_KILL_AT
printf syscall >&3
exec strace -f -qq -o /dev/null -e trace="$SPOOL_CALL" -e inject="$SPOOL_CALL:signal=KILL:when=$at" \
    "$SPOOL_DRIVER" "$@"
