/* tests/unit/temporary.h: an empty directory for a test, removed behind it. */
#ifndef TT_TESTS_UNIT_TEMPORARY_H
#define TT_TESTS_UNIT_TEMPORARY_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* cmocka set-up: *state becomes the directory's path; the working directory is changed to it. */
static int enter_temporary(void **state)
{
    /* Memory, so that a busy disk's fsync does not set the pace. */
    const char *base = getenv("TMPDIR")                ? getenv("TMPDIR")
                       : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                                       : "/tmp";
    char *path;

    if (asprintf(&path, "%s/tt-test-XXXXXX", base) < 0 || !mkdtemp(path))
        return -1;
    *state = path;
    return chdir(path);
}

static int leave_temporary(void **state)
{
    char command[PATH_MAX + 16];

    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return chdir("/") || system(command);
}

/* Names in the working directory, "." and ".." left out. */
static inline int count_names(void)
{
    DIR *directory = opendir(".");
    int count = 0;

    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count - 2;
}

/* A small file's content, "" where there is none. */
static inline const char *content_of(const char *path)
{
    static char text[4096];
    FILE *file = fopen(path, "rb");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;

    if (file)
        fclose(file);
    text[length] = '\0';
    return text;
}

static inline void put_content(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");

    if (!file || fputs(text, file) < 0 || fclose(file))
        abort();
}

#endif
