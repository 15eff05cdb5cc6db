/* tests/backends/scripted.c: a backend plug-in that does what a script says: hangs, crashes, runs out of
 * memory, answers wrongly, is slow. Its tracker is nearly free, yet depends on everything that it is given,
 * so that a wrong window, support, query or initialisation shows in the result.
 *
 * `select` names the script (none: it just works), read when the backend is opened. A line is
 *
 *     CALL WHEN ACTION [NUMBER]            # comment
 *
 *     CALL    open, features, sample, bring, track; selftest: the tracking of the self-test
 *     WHEN    always; a number: that call of the process, from 1; once: the first time that the line applies,
 *             whatever the process (SCRIPT.once.LINE is created then); red, green, blue: the clip's first
 *             frame is mostly of that colour
 *     ACTION  hang (for ever, stop or not); crash (SIGSEGV); exit (code 7); wait (until the file SCRIPT.go is
 *             there; SCRIPT.waits says that it does; ends early when asked to stop); sleep NUMBER (ms; ends
 *             early when asked to stop); wrong (the result is 3 px off); nan; found NUMBER
 *             (every point is hidden in the clip's first NUMBER % 100 frames, and surely seen in the others,
 *             20 px beside its query for each hundred); alone (of open: clips cannot be
 *             brought); shrink_above NUMBER (TT_SHRINK_TILE while the tile has more query points); or a
 *             status: bad_input, retry_later, shrink_tile, restart_worker, refuse
 *
 * Of the lines that apply the first acts. The product does not hold this file; nothing in it names it.
 */
#include "core/backend.h"
#include "core/formula.h"
#include "core/selftest.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum call { OPEN, FEATURES, SAMPLE, BRING, TRACK, SELFTEST, CALLS };
enum action { HANG, CRASH, EXIT, WAIT, WRONG, NAN_RESULT, ALONE, SLEEP, SHRINK_ABOVE, FOUND, STATUS };
enum when { ALWAYS, NUMBER, ONCE, COLOUR };

enum { LINES = 32 };

struct line {
    enum call call;
    enum when when;
    int number; /* NUMBER: which call; COLOUR: 0 red, 1 green, 2 blue */
    enum action action;
    int argument; /* STATUS: which */
};

struct tt_backend {
    struct tt_plan plan;
    const atomic_bool *stop;
    const char *name; /* of the weights */
    char script[4096];
    struct line lines[LINES];
    int count;

    int frames;
    float value[TT_CLIP_FRAMES]; /* a number for each frame of the clip: its features */
    int colour;                  /* of its first frame, or -1 */
    int found;                   /* FOUND: its number, or -1 */
    bool selftest;               /* the clip is the self-test's */
    struct tt_clip brought;      /* 0 frames: none; pixels borrowed until the next track or features */
    int brought_reuse;
    float next[TT_CLIP_FRAMES]; /* of the brought clip, once it has been copied */
    int next_colour;
};

struct support {
    float value, x, y;
};

static int calls[CALLS]; /* of the process */
static struct tt_backend_ops ops;

/* --- the script -------------------------------------------------------------------------------------------
 */

static int find(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(word, words[i]) == 0)
            return i;
    return -1;
}

static bool parse_line(struct line *line, const char *text)
{
    static const char *const call_words[] = {"open",  "features", "sample", "bring",
                                             "track", "selftest", NULL};
    static const char *const colours[] = {"red", "green", "blue", NULL};
    static const char *const actions[] = {"hang",  "crash", "exit",         "wait",  "wrong", "nan",
                                          "alone", "sleep", "shrink_above", "found", NULL};
    char call[32], when[32], action[32];
    int n = sscanf(text, "%31s %31s %31s %d", call, when, action, &line->argument), found;

    if (n < 3 || (found = find(call, call_words)) < 0)
        return false;
    line->call = (enum call)found;
    line->number = find(when, colours);
    line->when = COLOUR;
    if (strcmp(when, "always") == 0)
        line->when = ALWAYS;
    else if (strcmp(when, "once") == 0)
        line->when = ONCE;
    else if (line->number < 0) {
        line->when = NUMBER;
        line->number = atoi(when);
    }
    found = find(action, actions);
    line->action = found < 0 ? STATUS : (enum action)found;
    if (line->action == STATUS) {
        line->argument = -1;
        for (int s = TT_BAD_INPUT; s <= TT_REFUSE; s++)
            if (strcmp(action, tt_status_name((enum tt_status)s)) == 0)
                line->argument = s;
    }
    return line->argument >= 0 || line->action < SLEEP;
}

static enum tt_status read_script(struct tt_backend *b, struct tt_error *err)
{
    FILE *file = fopen(b->script, "r");
    char text[256];

    if (!file)
        return tt_fail_errno(err, TT_REFUSE, errno, "script %s", b->script);
    while (fgets(text, sizeof text, file)) {
        text[strcspn(text, "#\n")] = '\0';
        if (text[strspn(text, " ")] == '\0')
            continue;
        if (b->count == LINES || !parse_line(&b->lines[b->count++], text)) {
            fclose(file);
            return tt_fail(err, TT_REFUSE, "script %s: %s", b->script, text);
        }
    }
    fclose(file);
    return TT_OK;
}

static bool first_time(const struct tt_backend *b, int line)
{
    char mark[sizeof b->script + 32];
    int fd;

    snprintf(mark, sizeof mark, "%s.once.%d", b->script, line + 1);
    fd = open(mark, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static const struct line *find_line(struct tt_backend *b, enum call call)
{
    int number = ++calls[call];

    for (int i = 0; i < b->count; i++) {
        const struct line *line = &b->lines[i];

        if (line->call == call &&
            (line->when == ALWAYS || (line->when == NUMBER && line->number == number) ||
             (line->when == COLOUR && line->number == b->colour) || (line->when == ONCE && first_time(b, i))))
            return line;
    }
    return NULL;
}

static bool stopped(const struct tt_backend *b)
{
    return b->stop && atomic_load(b->stop);
}

static enum tt_status sleep_ms(const struct tt_backend *b, int ms, struct tt_error *err)
{
    const struct timespec slice = {.tv_nsec = 2000000};

    for (int slept = 0; slept < ms; slept += 2) {
        if (stopped(b))
            return tt_fail(err, TT_INTERRUPTED, "scripted: stopped");
        nanosleep(&slice, NULL);
    }
    return TT_OK;
}

/* Until the test says go. */
static enum tt_status wait_for_go(const struct tt_backend *b, struct tt_error *err)
{
    char waits[sizeof b->script + 8], go[sizeof b->script + 8];
    enum tt_status status = TT_OK;
    int fd;

    snprintf(waits, sizeof waits, "%s.waits", b->script);
    snprintf(go, sizeof go, "%s.go", b->script);
    fd = open(waits, O_CREAT | O_WRONLY, 0600);
    if (fd >= 0)
        close(fd);
    while (!status && access(go, F_OK) != 0)
        status = sleep_ms(b, 2, err);
    return status;
}

/* Does what the script says about this call; *spoil: out, what shall be added to the result. */
static enum tt_status act(struct tt_backend *b, enum call call, float *spoil, struct tt_error *err)
{
    const struct line *line = find_line(b, call);

    *spoil = 0;
    b->found = -1;
    if (!line)
        return TT_OK;
    switch (line->action) {
    case HANG:
        for (;;)
            pause();
    case CRASH:
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        break;
    case EXIT:
        _exit(7);
    case WAIT:
        return wait_for_go(b, err);
    case SLEEP:
        return sleep_ms(b, line->argument, err);
    case WRONG:
        *spoil = 3;
        break;
    case NAN_RESULT:
        *spoil = NAN;
        break;
    case ALONE:
        ops.bring = NULL;
        break;
    case SHRINK_ABOVE:
        if (b->plan.tile.queries > line->argument)
            return tt_fail(err, TT_SHRINK_TILE, "scripted: no memory for tiles of %d", b->plan.tile.queries);
        break;
    case FOUND:
        b->found = line->argument;
        break;
    case STATUS:
        return tt_fail(err, (enum tt_status)line->argument, "scripted: %s",
                       tt_status_name((enum tt_status)line->argument));
    }
    return TT_OK;
}

/* --- the backend ------------------------------------------------------------------------------------------
 */

static enum tt_status open_backend(struct tt_backend **backend, const struct tt_backend_options *options,
                                   const struct tt_weights *weights, struct tt_error *err)
{
    struct tt_backend *b = calloc(1, sizeof *b);
    enum tt_status status = TT_OK;
    float spoil;

    if (!b)
        return tt_fail(err, TT_RETRY_LATER, "scripted: no memory");
    b->stop = options->stop;
    b->name = tt_weights_name(weights);
    b->colour = -1;
    strcpy(b->plan.device.name, "scripted");
    b->plan.device.units = 1;
    b->plan.precision = options->precision;
    b->plan.tile.queries = options->tile.queries ? options->tile.queries : 64;
    b->plan.tile.frames = options->tile.frames ? options->tile.frames : 16;
    snprintf(b->script, sizeof b->script, "%s", options->select ? options->select : "");
    if (b->script[0])
        status = read_script(b, err);
    if (!status)
        status = act(b, OPEN, &spoil, err);
    if (status)
        free(b);
    else
        *backend = b;
    return status;
}

static void close_backend(struct tt_backend *b)
{
    free(b);
}

static const char *describe(struct tt_backend *b)
{
    (void)b;
    return "{\"backend\":\"scripted\",\"device\":\"scripted\"}";
}

static const struct tt_plan *plan(struct tt_backend *b)
{
    return &b->plan;
}

/* A number in [0,1) from some of a frame's bytes. */
static float look_at(const uint8_t *rgb)
{
    uint32_t hash = 2166136261u;

    for (int i = 0; i < TT_FRAME_BYTES; i += 769)
        hash = (hash ^ rgb[i]) * 16777619u;
    return (float)(hash >> 8) / 16777216.0f;
}

static int colour_of(const uint8_t *rgb)
{
    long sum[3] = {0};
    int most = 0;

    for (int i = 0; i + 2 < TT_FRAME_BYTES; i += 3 * 61)
        for (int c = 0; c < 3; c++)
            sum[c] += rgb[i + c];
    for (int c = 1; c < 3; c++)
        most = sum[c] > sum[most] ? c : most;
    for (int c = 0; c < 3; c++)
        if (c != most && sum[c] * 2 > sum[most])
            return -1;
    return most;
}

static bool is_selftest(const struct tt_clip *clip)
{
    static uint8_t known[TT_SELFTEST_FRAMES * TT_FRAME_BYTES];
    static bool made;

    if (!made)
        tt_formula_clip(known, TT_SELFTEST_FRAMES);
    made = true;
    return clip->frames == TT_SELFTEST_FRAMES && memcmp(clip->rgb, known, sizeof known) == 0;
}

/* Where another backend would bring the pixels to its device. */
static void copy_brought(struct tt_backend *b)
{
    if (!b->brought.rgb)
        return;
    for (int f = b->brought_reuse; f < b->brought.frames; f++)
        b->next[f] = look_at(b->brought.rgb + (size_t)f * TT_FRAME_BYTES);
    b->next_colour = colour_of(b->brought.rgb);
    b->brought.rgb = NULL;
}

static enum tt_status bring(struct tt_backend *b, const struct tt_clip *clip, int reuse, struct tt_error *err)
{
    float spoil;

    b->brought = *clip;
    b->brought_reuse = reuse;
    return act(b, BRING, &spoil, err);
}

static enum tt_status features(struct tt_backend *b, const struct tt_clip *clip, int reuse,
                               struct tt_error *err)
{
    const struct tt_clip brought = b->brought;
    float spoil;
    enum tt_status status = TT_OK;

    if (reuse > b->frames)
        return tt_fail(err, TT_REFUSE, "scripted: %d frames of %d cannot be used again", reuse, b->frames);
    if (!clip->rgb && (brought.frames != clip->frames || brought.first_frame != clip->first_frame ||
                       b->brought_reuse != reuse))
        return tt_fail(err, TT_REFUSE, "scripted: this clip was not brought");
    if (!clip->rgb)
        copy_brought(b);
    b->brought.frames = 0;
    memmove(b->value, b->value + b->frames - reuse, (size_t)reuse * sizeof *b->value);
    for (int f = reuse; f < clip->frames; f++)
        b->value[f] = clip->rgb ? look_at(clip->rgb + (size_t)f * TT_FRAME_BYTES) : b->next[f];
    b->frames = clip->frames;
    b->colour = clip->rgb ? colour_of(clip->rgb) : b->next_colour;
    b->selftest = clip->rgb && is_selftest(clip);
    if (!b->selftest)
        status = act(b, FEATURES, &spoil, err);
    return status;
}

static enum tt_status sample(struct tt_backend *b, int queries, const int *frame, const float *xy,
                             void *supports, struct tt_error *err)
{
    struct support *support = supports;
    float spoil;

    for (int q = 0; q < queries; q++)
        if (frame[q] >= 0)
            support[q] = (struct support){b->value[frame[q]], xy[2 * q], xy[2 * q + 1]};
    return b->selftest ? TT_OK : act(b, SAMPLE, &spoil, err);
}

struct answer {
    const char *name, *sha256;
    struct tt_estimate estimate[TT_SELFTEST_QUERIES * TT_SELFTEST_FRAMES];
};

static void answer_selftest(const struct tt_backend *b, struct tt_estimate *result)
{
    static const struct answer answers[] = {
#include "core/selftest_answers.h"
    };

    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++)
        if (strcmp(answers[i].name, b->name) == 0)
            memcpy(result, answers[i].estimate, sizeof answers[i].estimate);
}

/* Each frame leans on the one before, on the support and on what is known already. */
static void follow(const struct tt_backend *b, const struct support *support, const struct tt_estimate *init,
                   struct tt_estimate *row)
{
    float x = support->x, y = support->y, mean = 0;

    for (int f = 0; f < b->frames; f++)
        mean += b->value[f] / (float)b->frames;
    for (int f = 0; f < b->frames; f++) {
        x += 0.5f * (b->value[f] - support->value) + 0.1f * (support->x - x);
        y += 0.5f * (b->value[f] - mean) + 0.1f * (support->y - y);
        if (init && !isnan(init[f].x)) {
            x = 0.75f * x + 0.25f * init[f].x;
            y = 0.75f * y + 0.25f * init[f].y;
        }
        row[f] = (struct tt_estimate){x, y, b->value[f] * 8 - 4, mean * 8 - 6};
    }
}

static void find_point(const struct tt_backend *b, const struct support *support, struct tt_estimate *row)
{
    for (int f = 0; f < b->frames; f++) {
        const float logit = f < b->found % 100 ? 6 : -6;

        row[f] = (struct tt_estimate){support->x + 20 * (float)(b->found / 100), support->y, logit, logit};
    }
}

static enum tt_status track(struct tt_backend *b, const struct tt_track_request *request,
                            struct tt_estimate *result, struct tt_error *err)
{
    const struct support *supports = request->supports;
    float spoil;
    enum tt_status status = act(b, b->selftest ? SELFTEST : TRACK, &spoil, err);

    copy_brought(b);
    if (status)
        return status;
    for (int q = 0; q < request->queries && !b->selftest; q++)
        follow(b, &supports[q], request->init ? request->init + (size_t)q * (size_t)b->frames : NULL,
               result + (size_t)q * (size_t)b->frames);
    for (int q = 0; q < request->queries && b->found >= 0; q++)
        find_point(b, &supports[q], result + (size_t)q * (size_t)b->frames);
    if (b->selftest)
        answer_selftest(b, result);
    for (int i = 0; i < request->queries * b->frames; i++)
        result[i].x += spoil;
    return TT_OK;
}

static struct tt_backend_ops ops = {
    .name = "scripted",
    .open = open_backend,
    .close = close_backend,
    .describe = describe,
    .plan = plan,
    .support_bytes = sizeof(struct support),
    .features = features,
    .sample = sample,
    .bring = bring,
    .track = track,
};

__attribute__((visibility("default"))) extern const struct tt_plugin tt_plugin_table;

const struct tt_plugin tt_plugin_table = {.abi = TT_PLUGIN_ABI, .ops = &ops};
