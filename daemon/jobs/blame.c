/* daemon/jobs/blame.c: lists of who failed where. Nothing fails here. */
#include "daemon/jobs/blame.h"

#include <stdio.h>
#include <string.h>

void tt_suspicion_add(struct tt_suspicion *suspicion, int slot, bool charged)
{
    if (suspicion->count == TT_BLAME_ENTRIES) {
        suspicion->count--;
        memmove(suspicion->entries, suspicion->entries + 1,
                (size_t)suspicion->count * sizeof *suspicion->entries);
    }
    suspicion->entries[suspicion->count].slot = (short)slot;
    suspicion->entries[suspicion->count++].charged = charged;
}

bool tt_suspicion_on(const struct tt_suspicion *suspicion, int slot)
{
    for (int i = 0; i < suspicion->count; i++)
        if (suspicion->entries[i].slot == slot)
            return true;
    return false;
}

int tt_suspicion_clear(struct tt_suspicion *suspicion, int slot)
{
    int kept = 0, charges = 0;

    for (int i = 0; i < suspicion->count; i++) {
        if (suspicion->entries[i].slot == slot)
            charges += suspicion->entries[i].charged;
        else
            suspicion->entries[kept++] = suspicion->entries[i];
    }
    suspicion->count = kept;
    return charges;
}

bool tt_streak_add(struct tt_streak *streak, const char *job)
{
    for (int i = 0; i < streak->count; i++)
        if (strcmp(streak->jobs[i], job) == 0)
            return tt_streak_is_sick(streak);
    if (streak->count < TT_BLAME_SICK)
        snprintf(streak->jobs[streak->count++], TT_JOB_ID_BYTES, "%s", job);
    return tt_streak_is_sick(streak);
}

void tt_streak_end(struct tt_streak *streak)
{
    streak->count = 0;
}

bool tt_streak_is_sick(const struct tt_streak *streak)
{
    return streak->count >= TT_BLAME_SICK;
}
