/* tests/kernels/kern.c: see kern.h. One list holds every allocation, so a check need not clean up. */
#include "tests/kernels/kern.h"

#include "cuda/pack.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ALLOCATIONS = 4096, CANARY = 4096 };

static struct {
    void *memory;
    int on_device;
} allocations[MAX_ALLOCATIONS];
static int allocation_count, passed, failed, canaries_broken;
static uint64_t state = 1;

void kern_status(int status, const char *what)
{
    if (status == cudaSuccess)
        return;
    fprintf(stderr, "CUDA error %d (%s) in: %.200s\n", status, cudaGetErrorString((cudaError_t)status), what);
    exit(2);
}

static void *keep(void *memory, int on_device)
{
    if (!memory || allocation_count == MAX_ALLOCATIONS) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    allocations[allocation_count].memory = memory;
    allocations[allocation_count++].on_device = on_device;
    return memory;
}

void kern_free_all(void)
{
    for (int i = 0; i < allocation_count; i++) {
        if (allocations[i].on_device)
            kern_status(cudaFree(allocations[i].memory), "cudaFree");
        else
            free(allocations[i].memory);
    }
    allocation_count = 0;
}

void kern_seed(uint64_t seed)
{
    state = seed;
}

float kern_uniform(void)
{
    uint64_t z = state += 0x9E3779B97F4A7C15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40) / 8388608.0f - 1.0f;
}

void *kern_zeros(size_t bytes)
{
    return keep(calloc(1, bytes ? bytes : 1), 0);
}

float *kern_random(size_t n, float scale)
{
    float *x = kern_zeros(n * sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = scale * kern_uniform();
    return x;
}

uint16_t *kern_to_half(float *x, size_t n)
{
    uint16_t *h = kern_zeros(n * sizeof(*h));
    for (size_t i = 0; i < n; i++) {
        h[i] = tt_half_from_float(x[i]);
        x[i] = tt_float_from_half(h[i]);
    }
    return h;
}

void *kern_device(size_t bytes)
{
    void *p = NULL;
    kern_status(cudaMalloc(&p, bytes), "cudaMalloc");
    return keep(p, 1);
}

void *kern_upload(const void *host, size_t bytes)
{
    void *p = kern_device(bytes);
    kern_status(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "upload");
    return p;
}

struct kern_out kern_output(size_t bytes, const void *initial)
{
    struct kern_out out = {.bytes = bytes, .initial = initial};
    out.block = kern_device(bytes + 2 * CANARY);
    out.device = out.block + CANARY;
    out.host[0] = kern_zeros(bytes);
    out.host[1] = kern_zeros(bytes);
    return out;
}

void kern_poison(struct kern_out *out)
{
    kern_status(cudaMemset(out->block, 0xff, out->bytes + 2 * CANARY), "poison");
    if (out->initial)
        kern_status(cudaMemcpy(out->device, out->initial, out->bytes, cudaMemcpyHostToDevice), "initial");
}

void kern_take(struct kern_out *out, int run)
{
    unsigned char guard[2 * CANARY];
    kern_status(cudaDeviceSynchronize(), "kernel");
    kern_status(cudaMemcpy(out->host[run], out->device, out->bytes, cudaMemcpyDeviceToHost), "fetch");
    kern_status(cudaMemcpy(guard, out->block, CANARY, cudaMemcpyDeviceToHost), "canary");
    kern_status(cudaMemcpy(guard + CANARY, out->block + CANARY + out->bytes, CANARY, cudaMemcpyDeviceToHost),
                "canary");
    for (size_t i = 0; i < sizeof(guard); i++)
        if (guard[i] != 0xff)
            canaries_broken = 1;
}

void kern_verdict(struct kern_out *out, const double *want, size_t n, int half, double relative, double worst,
                  const char *name, ...)
{
    char text[160];
    va_list args;
    va_start(args, name);
    vsnprintf(text, sizeof(text), name, args);
    va_end(args);
    double error = 0.0, norm = 0.0, largest = 0.0;
    size_t where = 0, nans = 0;
    for (size_t i = 0; i < n; i++) {
        const double got =
            half ? tt_float_from_half(((uint16_t *)out->host[0])[i]) : ((float *)out->host[0])[i];
        const double d = fabs(got - want[i]);
        if (isnan(d)) {
            nans++;
            continue;
        }
        error += d * d, norm += want[i] * want[i];
        if (d > largest)
            largest = d, where = i;
    }
    const double rms = sqrt(norm / (double)n), rel = sqrt(error / (norm > 0 ? norm : 1e-300));
    const int same = memcmp(out->host[0], out->host[1], out->bytes) == 0;
    const int ok = !nans && same && !canaries_broken && rel <= relative && largest <= worst * rms;
    printf("%-4s %-58s relative %.1e (limit %.0e), worst %.1e rms at %zu (limit %.0e)%s%s%s\n",
           ok ? "ok" : "FAIL", text, rel, relative, rms > 0 ? largest / rms : largest, where, worst,
           nans ? ", NaN" : "", same ? "" : ", runs differ", canaries_broken ? ", canary overwritten" : "");
    canaries_broken = 0;
    ok ? passed++ : failed++;
}

void kern_same(const struct kern_out *a, const struct kern_out *b, const char *name)
{
    const int ok = a->bytes == b->bytes && memcmp(a->host[0], b->host[0], a->bytes) == 0 && !canaries_broken;
    printf("%-4s %-58s %s\n", ok ? "ok" : "FAIL", name, ok ? "the same bits" : "other bits");
    canaries_broken = 0;
    ok ? passed++ : failed++;
}

void kern_refused(int status, const char *name)
{
    const int ok = status != cudaSuccess;
    cudaGetLastError();
    printf("%-4s %-58s refused: %s\n", ok ? "ok" : "FAIL", name, cudaGetErrorName((cudaError_t)status));
    ok ? passed++ : failed++;
}

int kern_passed(void)
{
    return passed;
}

int kern_failed(void)
{
    return failed;
}
