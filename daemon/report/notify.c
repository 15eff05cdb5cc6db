/* daemon/report/notify.c: sd_notify. The environment (NOTIFY_SOCKET, WATCHDOG_USEC) is systemd's way to ask;
 * workers and other children are no business of systemd's, but they cannot speak for us either:
 * NotifyAccess=main. */
#include "daemon/report/notify.h"

#include <inttypes.h>
#include <systemd/sd-daemon.h>
#include <time.h>

int64_t tt_notify_watchdog_ms(void)
{
    uint64_t usec = 0;

    if (sd_watchdog_enabled(0, &usec) <= 0)
        return 0;
    return usec < 3000 ? 1 : (int64_t)(usec / 3000);
}

void tt_notify_watchdog(void)
{
    sd_notify(0, "WATCHDOG=1");
}

void tt_notify_status(const char *text)
{
    sd_notifyf(0, "STATUS=%s", text);
}

void tt_notify_ready(const char *text)
{
    sd_notifyf(0, "READY=1\nSTATUS=%s", text);
}

/* systemd 252 does not know Type=notify-reload, later ones want the time. */
void tt_notify_reloading(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
               (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void tt_notify_stopping(const char *text)
{
    sd_notifyf(0, "STOPPING=1\nSTATUS=%s", text);
}

void tt_notify_extend(int64_t ms)
{
    sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%" PRId64, ms * 1000);
}
