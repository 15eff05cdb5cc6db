/* tests/e2e/decode_dump.c: what core/decoder.h gives for a file, as JSON, for the tests.
 *
 *     decode-dump [options] FILE
 *       --raw OUT        frames (or the mask) as raw bytes
 *       --mask           decode a PNG mask
 *       --patches        of each frame the upper left patch, twice, and how many warnings had come by then
 *       --bilinear       TT_RESIZE_BILINEAR
 *       --program P      another decoder program
 *       --threads N --max-pixels N --max-frames N --memory-mib N --cpu N --stall N
 *       --hold           after open, print the child's pid and wait for a line on standard input
 *       --stop-after N   stop reading after N frames
 *       --interrupt-ms N make interrupt_fd readable after N milliseconds
 */
#include "core/decoder.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

struct arguments {
    struct tt_decoder_options options;
    const char *file, *raw;
    bool mask, patches, hold;
    long stop_after;
};

static uint64_t hash(const uint8_t *bytes, size_t count)
{
    uint64_t h = 0xcbf29ce484222325;

    for (size_t i = 0; i < count; i++)
        h = (h ^ bytes[i]) * 0x100000001b3;
    return h;
}

static int timer(long ms)
{
    struct itimerspec when = {.it_value = {ms / 1000, ms % 1000 * 1000000}};
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

    timerfd_settime(fd, 0, &when, NULL);
    return fd;
}

static void parse(struct arguments *a, int argc, char **argv)
{
    *a = (struct arguments){.options = TT_DECODER_DEFAULTS, .stop_after = -1};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";

        if (!strcmp(name, "--mask")) {
            a->mask = true;
        } else if (!strcmp(name, "--patches")) {
            a->patches = true;
        } else if (!strcmp(name, "--hold")) {
            a->hold = true;
        } else if (!strcmp(name, "--bilinear")) {
            a->options.resize = TT_RESIZE_BILINEAR;
        } else if (strncmp(name, "--", 2) || !strcmp(name, "--")) {
            a->file = !strcmp(name, "--") ? value : name;
            i += !strcmp(name, "--");
        } else {
            long number = atol(value);

            i++;
            if (!strcmp(name, "--raw"))
                a->raw = value;
            else if (!strcmp(name, "--program"))
                a->options.program = value;
            else if (!strcmp(name, "--threads"))
                a->options.threads = (int)number;
            else if (!strcmp(name, "--max-pixels"))
                a->options.max_pixels = number;
            else if (!strcmp(name, "--max-frames"))
                a->options.max_frames = number;
            else if (!strcmp(name, "--memory-mib"))
                a->options.memory_bytes = (int64_t)number << 20;
            else if (!strcmp(name, "--cpu"))
                a->options.cpu_seconds = (int)number;
            else if (!strcmp(name, "--stall"))
                a->options.stall_seconds = (int)number;
            else if (!strcmp(name, "--stop-after"))
                a->stop_after = number;
            else if (!strcmp(name, "--interrupt-ms"))
                a->options.interrupt_fd = timer(number);
            else
                exit(2);
        }
    }
    if (!a->file)
        exit(2);
}

static json_t *info_json(const struct tt_video_info *v)
{
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:f, s:s, s:s, s:s, s:s, s:s, s:s}", "width",
        v->width, "height", v->height, "coded_width", v->coded_width, "coded_height", v->coded_height,
        "sar_num", v->sar_num, "sar_den", v->sar_den, "rotation", v->rotation, "mirrored", v->mirrored,
        "rate_num", v->rate_num, "rate_den", v->rate_den, "frames_hint", (json_int_t)v->frames_hint,
        "duration_hint_s", v->duration_hint_s, "container", v->container, "codec", v->codec, "pixel_format",
        v->pixel_format, "matrix", v->matrix, "transfer", v->transfer, "range", v->range);
}

static enum tt_status dump_video(const struct arguments *a, int fd, FILE *raw, json_t *out,
                                 struct tt_error *err)
{
    enum { BLOCK = 16 };
    static uint8_t rgb[BLOCK * TT_FRAME_BYTES];
    double times[BLOCK];
    json_t *time_s = json_array(), *hashes = json_array(), *warnings = json_array();
    struct tt_decoder *decoder = NULL;
    const char *const *texts;
    int got, count;
    enum tt_status status = tt_decoder_open(&decoder, fd, &a->options, err);

    if (status)
        goto out;
    json_object_set_new(out, "info", info_json(tt_decoder_info(decoder)));
    if (a->hold) {
        printf("%d\n", (int)tt_decoder_pid(decoder));
        fflush(stdout);
        getchar();
    }
    do {
        int wanted = BLOCK;

        if (a->stop_after >= 0 && a->stop_after - (long)json_array_size(time_s) < BLOCK)
            wanted = (int)(a->stop_after - (long)json_array_size(time_s));
        status = tt_decoder_read(decoder, rgb, times, wanted, &got, err);
        for (int i = 0; i < got; i++) {
            char text[20];

            snprintf(text, sizeof text, "%016llx",
                     (unsigned long long)hash(rgb + i * TT_FRAME_BYTES, TT_FRAME_BYTES));
            json_array_append_new(time_s, json_real(times[i]));
            json_array_append_new(hashes, json_string(text));
        }
        if (raw)
            fwrite(rgb, TT_FRAME_BYTES, (size_t)got, raw);
    } while (!status && got == BLOCK);
    texts = tt_decoder_warnings(decoder, &count);
    for (int i = 0; i < count; i++)
        json_array_append_new(warnings, json_string(texts[i]));
    json_object_set_new(out, "truncated", json_boolean(tt_decoder_truncated(decoder)));
out:
    json_object_set_new(out, "frames", json_integer((json_int_t)json_array_size(time_s)));
    json_object_set_new(out, "time_s", time_s);
    json_object_set_new(out, "hashes", hashes);
    json_object_set_new(out, "warnings", warnings);
    tt_decoder_close(decoder);
    return status;
}

static enum tt_status dump_patches(const struct arguments *a, int fd, FILE *raw, json_t *out,
                                   struct tt_error *err)
{
    static const struct tt_cut_place corner;
    static uint8_t patch[TT_CUT_BYTES];
    json_t *sizes = json_array(), *warned = json_array();
    struct tt_decoder *decoder = NULL;
    struct tt_picture picture;
    bool got = true;
    enum tt_status status = tt_decoder_open_patches(&decoder, fd, &a->options, err);

    while (!status && got) {
        int warnings[2] = {0};

        status = tt_decoder_next(decoder, &picture, &got, err);
        for (int i = 0; !status && got && i < 2; i++) {
            status = tt_decoder_cut(decoder, &corner, 1, patch, err);
            tt_decoder_warnings(decoder, &warnings[i]);
            if (raw)
                fwrite(patch, TT_CUT_BYTES, 1, raw);
        }
        if (!status && got) {
            json_array_append_new(sizes, json_pack("[i, i]", picture.width, picture.height));
            json_array_append_new(warned, json_pack("[i, i]", warnings[0], warnings[1]));
        }
    }
    json_object_set_new(out, "sizes", sizes);
    json_object_set_new(out, "warned", warned);
    tt_decoder_close(decoder);
    return status;
}

static enum tt_status dump_mask(const struct arguments *a, int fd, FILE *raw, json_t *out,
                                struct tt_error *err)
{
    uint8_t *mask = NULL;
    int width, height;
    enum tt_status status = tt_decoder_mask(fd, &a->options, &mask, &width, &height, err);

    if (status)
        return status;
    json_object_set_new(out, "width", json_integer(width));
    json_object_set_new(out, "height", json_integer(height));
    if (raw)
        fwrite(mask, (size_t)width, (size_t)height, raw);
    free(mask);
    return TT_OK;
}

int main(int argc, char **argv)
{
    struct arguments a;
    struct tt_error err = {.text = ""};
    json_t *out = json_object();
    FILE *raw = NULL;
    int fd = -1;
    enum tt_status status;

    parse(&a, argc, argv);
    if (a.raw)
        raw = fopen(a.raw, "wb");
    status = tt_decoder_open_path(a.file, &fd, &err);
    if (!status)
        status = a.mask      ? dump_mask(&a, fd, raw, out, &err)
                 : a.patches ? dump_patches(&a, fd, raw, out, &err)
                             : dump_video(&a, fd, raw, out, &err);
    json_object_set_new(out, "status", json_string(tt_status_name(status)));
    json_object_set_new(out, "error", json_string(status ? err.text : ""));
    json_object_set_new(out, "zombies", json_boolean(waitpid(-1, NULL, WNOHANG) >= 0));
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    if (raw)
        fclose(raw);
    if (fd >= 0)
        close(fd);
    json_decref(out);
    return status != TT_OK;
}
