/* tests/fuzz/replay.c: runs a fuzz target over files, so that its corpus is a test with any compiler.
 *
 * Arguments are files or directories (whose files are taken). Each file is given whole and cut at CUTS
 * lengths, in a block of memory of exactly its size, so that a sanitizer sees any read behind it. No file at
 * all is a failure.
 */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CUTS = 32 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static int replayed;

static void give(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);

    if (!exact)
        abort();
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static int replay_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(size + 1);
    int failed = !file || !data || fread(data, 1, size, file) != size;

    if (failed) {
        perror(path);
    } else {
        for (size_t cut = 0; cut < CUTS && cut < size; cut++)
            give(data, size * cut / CUTS);
        give(data, size);
        replayed++;
    }
    if (file)
        fclose(file);
    free(data);
    return failed;
}

static int replay(const char *path)
{
    struct stat info;
    struct dirent *entry;
    DIR *directory;
    int failed = 0;

    if (stat(path, &info) < 0) {
        perror(path);
        return 1;
    }
    if (S_ISREG(info.st_mode))
        return replay_file(path, (size_t)info.st_size);
    directory = opendir(path);
    while (directory && (entry = readdir(directory))) {
        char inside[PATH_MAX];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
        failed |= replay(inside);
    }
    if (directory)
        closedir(directory);
    return failed || !directory;
}

int main(int argc, char **argv)
{
    int failed = 0;

    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i]);
    printf("%d files replayed\n", replayed);
    return failed || replayed == 0;
}
