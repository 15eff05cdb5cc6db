/* tests/kernels/reference.c: see reference.h. Pure functions, ref_cost keeps its maps in static memory. */
#include "tests/kernels/reference.h"

#include "cuda/pack.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static double activated(const struct ref_conv *c, int f, int y, int x, int ch)
{
    const float v = c->in[(((size_t)f * c->in_size + y) * c->in_size + x) * c->in_c + ch];
    if (!c->norm)
        return v;
    const float *n = c->norm + ((size_t)f * c->in_c + ch) * 2;
    const double r = fmax((double)v * n[0] + n[1], 0.0);
    return c->round16 ? tt_float_from_half(tt_half_from_float((float)r)) : r;
}

void ref_conv(double *out, const struct ref_conv *c)
{
    const int area = c->kernel * c->kernel;
    for (int f = 0; f < c->frames; f++)
        for (int y = 0; y < c->out_size; y++)
            for (int x = 0; x < c->out_size; x++, out += c->out_c) {
                for (int o = 0; o < c->out_c; o++)
                    out[o] = (c->add ? out[o] : 0.0) + (c->bias ? c->bias[o] : 0.0);
                for (int t = 0; t < area; t++) {
                    const int yy = y * c->stride - c->pad + t / c->kernel;
                    const int xx = x * c->stride - c->pad + t % c->kernel;
                    if (yy < 0 || yy >= c->in_size || xx < 0 || xx >= c->in_size)
                        continue;
                    for (int i = 0; i < c->in_c; i++) {
                        const double a = activated(c, f, yy, xx, i);
                        for (int o = 0; o < c->out_c; o++)
                            out[o] += a * c->weight[((size_t)o * c->in_c + i) * area + t];
                    }
                }
            }
}

double ref_gelu(double x)
{
    return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
}

void ref_stem(double *out, const uint8_t *rgb, const float *weight, int frames, int size)
{
    const int half = size / 2;
    for (int f = 0; f < frames; f++)
        for (int y = 0; y < half; y++)
            for (int x = 0; x < half; x++, out += 64)
                for (int o = 0; o < 64; o++) {
                    out[o] = 0.0;
                    for (int k = 0; k < 147; k++) {
                        const int yy = 2 * y - 2 + k / 21, xx = 2 * x - 2 + k % 21 / 3;
                        if (yy >= 0 && yy < size && xx >= 0 && xx < size)
                            out[o] +=
                                (rgb[(((size_t)f * size + yy) * size + xx) * 3 + k % 3] * (2.0 / 255.0) -
                                 1.0) *
                                weight[k * 64 + o];
                    }
                }
}

void ref_instance_norm(double *norm, const float *in, const float *gamma, const float *beta, int frames,
                       int pixels, int channels, double epsilon)
{
    for (int f = 0; f < frames; f++)
        for (int c = 0; c < channels; c++, norm += 2) {
            const float *x = in + (size_t)f * pixels * channels + c;
            double mean = 0.0, var = 0.0;
            for (int p = 0; p < pixels; p++)
                mean += x[(size_t)p * channels] / (double)pixels;
            for (int p = 0; p < pixels; p++)
                var += (x[(size_t)p * channels] - mean) * (x[(size_t)p * channels] - mean) / pixels;
            norm[0] = gamma[c] / sqrt(var + epsilon);
            norm[1] = beta[c] - mean * norm[0];
        }
}

void ref_group_norm(double *norm, const float *in, const float *gamma, const float *beta, int patches,
                    int positions, int channels, double epsilon)
{
    for (int p = 0; p < patches; p++)
        for (int c = 0; c < channels; c++, norm += 2) {
            const float *x = in + (size_t)p * positions * channels + c / 16 * 16;
            double mean = 0.0, var = 0.0;
            for (int i = 0; i < positions * 16; i++)
                mean += x[(size_t)(i / 16) * channels + i % 16] / (positions * 16.0);
            for (int i = 0; i < positions * 16; i++) {
                const double d = x[(size_t)(i / 16) * channels + i % 16] - mean;
                var += d * d / (positions * 16.0);
            }
            norm[0] = gamma[c] / sqrt(var + epsilon);
            norm[1] = beta[c] - mean * norm[0];
        }
}

void ref_layer_norm(double *out, const float *in, const float *gamma, const float *beta, int rows, int width)
{
    for (int r = 0; r < rows; r++, in += width, out += width) {
        double mean = 0.0, var = 0.0;
        for (int i = 0; i < width; i++)
            mean += in[i] / (double)width;
        for (int i = 0; i < width; i++)
            var += (in[i] - mean) * (in[i] - mean) / width;
        for (int i = 0; i < width; i++)
            out[i] = (in[i] - mean) / sqrt(var + 1e-5) * gamma[i] + beta[i];
    }
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

void ref_support(double *out, const float *grid, const int *frame, const float *xy, int queries, int size,
                 int channels, double scale)
{
    for (int q = 0; q < queries; q++)
        for (int s = 0; s < 49; s++)
            for (int c = 0; c < channels; c++, out++) {
                const double y = clamp(xy[2 * q + 1] * scale - 0.5 + s / 7 - 3, 0, size - 1);
                const double x = clamp(xy[2 * q] * scale - 0.5 + s % 7 - 3, 0, size - 1);
                *out = 0.0;
                for (int k = 0; k < 4; k++) {
                    const int yy = (int)y + k / 2, xx = (int)x + k % 2;
                    const double w = (1.0 - fabs(y - yy)) * (1.0 - fabs(x - xx));
                    if (yy < size && xx < size)
                        *out += w * grid[(((size_t)frame[q] * size + yy) * size + xx) * channels + c];
                }
            }
}

void ref_correlate(double *direct, const float *grid, const float *support, double x, double y, int size,
                   int channels)
{
    for (int p = 0; p < 49; p++) {
        const double py = y - 0.5 + p / 7 - 3, px = x - 0.5 + p % 7 - 3;
        for (int s = 0; s < 49; s++)
            direct[p * 49 + s] = 0.0;
        for (int k = 0; k < 4; k++) {
            const double yy = floor(py) + k / 2, xx = floor(px) + k % 2;
            if (yy < 0 || yy >= size || xx < 0 || xx >= size)
                continue;
            const double w = (1.0 - fabs(py - yy)) * (1.0 - fabs(px - xx));
            const float *g = grid + ((size_t)yy * size + (size_t)xx) * channels;
            for (int s = 0; s < 49; s++)
                for (int c = 0; c < channels; c++)
                    direct[p * 49 + s] += w * g[c] * support[s * channels + c];
        }
    }
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

void ref_cost(double *out, const float *lowres, const float *hires, const float *lowres_q,
              const float *hires_q, const float *conv, const float *occ_w, const float *occ_b)
{
    enum { LO = 32, HI = 64 };
    static double lo[LO * LO], map[2][HI * HI], pos[HI * HI];
    for (int p = 0; p < LO * LO; p++)
        lo[p] = dot(lowres + (size_t)p * 256, lowres_q, 256);
    for (int p = 0; p < HI * HI; p++) {
        map[1][p] = dot(hires + (size_t)p * 128, hires_q, 128);
        const double y = clamp((p / HI + 0.5) / 2 - 0.5, 0, LO - 1),
                     x = clamp((p % HI + 0.5) / 2 - 0.5, 0, LO - 1);
        map[0][p] = 0.0;
        for (int k = 0; k < 4; k++) {
            const int yy = (int)y + k / 2, xx = (int)x + k % 2;
            if (yy < LO && xx < LO)
                map[0][p] += (1.0 - fabs(y - yy)) * (1.0 - fabs(x - xx)) * lo[yy * LO + xx];
        }
    }
    double feature[6];
    for (int m = 0; m < 2; m++) {
        feature[m] = 0.0, feature[2 + m] = -1e300, feature[4 + m] = 1e300;
        for (int p = 0; p < HI * HI; p++) {
            feature[m] += map[m][p] / (HI * HI);
            feature[2 + m] = fmax(feature[2 + m], map[m][p]);
            feature[4 + m] = fmin(feature[4 + m], map[m][p]);
        }
    }
    int best = 0;
    for (int p = 0; p < HI * HI; p++) {
        pos[p] = 0.0;
        for (int k = 0; k < 9; k++) {
            const int y = p / HI + k / 3 - 1, x = p % HI + k % 3 - 1;
            if (y >= 0 && y < HI && x >= 0 && x < HI)
                pos[p] += conv[2 * k] * map[0][y * HI + x] + conv[2 * k + 1] * map[1][y * HI + x];
        }
        if (pos[p] > pos[best])
            best = p;
    }
    double n = 0.0, sx = 0.0, sy = 0.0;
    for (int p = 0; p < HI * HI; p++) {
        const int dx = p % HI - best % HI, dy = p / HI - best / HI;
        if (dx * dx + dy * dy >= 25)
            continue;
        const double e = exp(20.0 * (pos[p] - pos[best]));
        n += e, sx += e * (p % HI + 0.5), sy += e * (p / HI + 0.5);
    }
    out[0] = sx / n * 4.0, out[1] = sy / n * 4.0;
    for (int i = 0; i < 2; i++) {
        out[2 + i] = occ_b[i];
        for (int j = 0; j < 6; j++)
            out[2 + i] += occ_w[6 * i + j] * feature[j];
    }
}

void ref_tokens(double *tokens, const float *state, int queries, int frames, int row)
{
    for (int i = 0; i < queries * frames; i++, tokens += row) {
        const int f = i % frames;
        const float *s = state + (size_t)i * 4;
        double motion[4] = {0};
        for (int k = 0; k < 2; k++) {
            motion[k] = f + 1 < frames ? (double)(s[k] - s[4 + k]) / 256.0 : 0.0;
            motion[2 + k] = f > 0 ? (double)(s[k] - s[k - 4]) / 256.0 : 0.0;
        }
        tokens[0] = s[2], tokens[1] = s[3];
        for (int k = 0; k < 4; k++) {
            tokens[770 + k] = motion[k];
            for (int o = 0; o < 10; o++) {
                tokens[774 + o * 4 + k] = sin(ldexp(motion[k], o));
                tokens[814 + o * 4 + k] = cos(ldexp(motion[k], o));
            }
        }
        for (int k = 854; k < row; k++)
            tokens[k] = 0.0;
    }
}

void ref_attention(double *out, const float *qkv, int queries, int frames, int heads)
{
    const int width = heads * 64, half = heads / 2;
    for (int n = 0; n < queries; n++)
        for (int f = 0; f < frames; f++)
            for (int h = 0; h < heads; h++) {
                const float *base = qkv + (size_t)n * frames * 3 * width + h * 64;
                double *o = out + ((size_t)n * frames + f) * width + h * 64, p[64], top = -1e300, total = 0.0;
                const double slope = pow(24.0, -(h % half + 1.0) / half);
                const int first = h < half ? 0 : f, last = h < half ? f : frames - 1;
                memset(o, 0, 64 * sizeof(*o));
                for (int k = first; k <= last; k++) {
                    p[k] = dot(base + (size_t)f * 3 * width, base + ((size_t)k * 3 + 1) * width, 64) / 8.0 -
                           slope * fabs((double)(f - k));
                    top = fmax(top, p[k]);
                }
                for (int k = first; k <= last; k++)
                    total += p[k] = exp(p[k] - top);
                for (int k = first; k <= last; k++)
                    for (int c = 0; c < 64; c++)
                        o[c] += p[k] / total * base[((size_t)k * 3 + 2) * width + c];
            }
}
