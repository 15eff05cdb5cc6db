/* core/refine/align.c: inverse compositional registration with gain and offset.
 *
 * Invariants. Sums run over rows of whole vectors, whose lanes are added in one order, so results do not
 * depend on the machine or on who calls. Behind a window's last column everything is weighted with zero.
 * Nothing here allocates. A registration that runs away says so; whether one that does not is any good is for
 * the caller to see from the likeness.
 */
#include "core/refine/align.h"

#include "core/cpu/vec.h"

#include <math.h>
#include <string.h>

enum {
    SIZE = TT_CUT_SIZE,
    HALF = TT_ALIGN_HALF,
    SIDE = TT_ALIGN_SIDE,
    ROW = TT_ALIGN_ROW,
    PARAMETERS = TT_ALIGN_PARAMETERS,
    STEPS = 20, /* of Gauss-Newton at most */
    REACH = 16, /* pixels that the point may move from the patch's middle */
};

#define SIGMA           6.f    /* pixels, of the Gaussian that weights the window */
#define SMOOTHING       0.8f   /* pixels, of the Gaussian that an image is smoothed with */
#define STILL           0.005f /* pixels: a shorter step ends the search */
#define LEAST_GAIN      0.3f
#define STIFFNESS       0.002 /* of the affine part, relative to its own curvature */
#define LEAST_CORNER    0.5   /* (grey levels a pixel)², smaller eigenvalue of the structure tensor */
#define LEAST_DEVIATION 2.f   /* grey levels */
#define MOST            (SIZE - 1.001f) /* largest place with a right and a lower neighbour */

/* Sums in 256 bits were measured slower than in 128: eight of them fill all registers there are. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&     \
    !defined(__SANITIZE_THREAD__)
#define SUMMING_CLONES __attribute__((target_clones("avx512f", "default")))
#else
#define SUMMING_CLONES
#endif

typedef float quad __attribute__((vector_size(16)));
typedef float quad_memory __attribute__((vector_size(16), aligned(4), may_alias));

/* exp(-u²/2σ²) along a row; zero behind the window. */
static void fill_weights(float weights[ROW])
{
    for (int u = 0; u < ROW; u++)
        weights[u] = u < SIDE ? expf(-(float)((u - HALF) * (u - HALF)) / (2 * SIGMA * SIGMA)) : 0;
}

/* A row of bytes, smoothed along itself. */
TT_INLINE void smooth_row(const uint8_t *bytes, const float kernel[3], float row[SIZE])
{
    float line[SIZE + 4];

    for (int x = 0; x < SIZE; x++)
        line[x + 2] = bytes[x];
    line[0] = line[1] = line[2];
    line[SIZE + 2] = line[SIZE + 3] = line[SIZE + 1];
    for (int x = 0; x < SIZE; x++)
        row[x] = kernel[0] * (line[x] + line[x + 4]) + kernel[1] * (line[x + 1] + line[x + 3]) +
                 kernel[2] * line[x + 2];
}

TT_CLONES
void tt_align_smooth(const uint8_t *patch, struct tt_image *image)
{
    float kernel[3], sum = 0, rows[SIZE + 4][SIZE], smooth[SIZE + 1][SIZE];

    for (int i = 0; i < 5; i++)
        sum += expf(-(float)((i - 2) * (i - 2)) / (2 * SMOOTHING * SMOOTHING));
    for (int i = 0; i < 3; i++)
        kernel[i] = expf(-(float)((i - 2) * (i - 2)) / (2 * SMOOTHING * SMOOTHING)) / sum;
    for (int y = 0; y < SIZE; y++)
        smooth_row(patch + y * SIZE, kernel, rows[y + 2]);
    for (int i = 0; i < 2; i++) {
        memcpy(rows[i], rows[2], sizeof *rows);
        memcpy(rows[SIZE + 2 + i], rows[SIZE + 1], sizeof *rows);
    }
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++)
            smooth[y][x] = kernel[0] * (rows[y][x] + rows[y + 4][x]) +
                           kernel[1] * (rows[y + 1][x] + rows[y + 3][x]) + kernel[2] * rows[y + 2][x];
    memcpy(smooth[SIZE], smooth[SIZE - 1], sizeof *smooth);
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++) {
            image->pixels[y][x][0] = smooth[y][x];
            image->pixels[y][x][1] = smooth[y + 1][x];
        }
}

/* Whether a window's samples all lie between pixels of the image, so that none need be moved there. */
TT_INLINE bool is_inside(const struct tt_warp *warp)
{
    float across = HALF * (fabsf(warp->a[0]) + fabsf(warp->a[1])) + fabsf(warp->a[0]);
    float down = HALF * (fabsf(warp->a[2]) + fabsf(warp->a[3])) + fabsf(warp->a[2]);

    return warp->x - across >= 0 && warp->x + across < MOST && warp->y - down >= 0 && warp->y + down < MOST;
}

/* Bilinear samples at four places: each pixel is read with its three neighbours as one, and the four vectors
 * are turned. Four at a time on every machine: the compiler takes shuffles of sixteen apart, one float after
 * the other, where there is no AVX-512. */
TT_INLINE quad sample_four(const struct tt_image *image, const int32_t place[4], quad fx, quad fy)
{
    const float *pixels = &image->pixels[0][0][0];
    quad a = *(const quad_memory *)(pixels + 2 * place[0]), b = *(const quad_memory *)(pixels + 2 * place[1]);
    quad c = *(const quad_memory *)(pixels + 2 * place[2]), d = *(const quad_memory *)(pixels + 2 * place[3]);
    quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    quad right_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    quad right_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    quad upper = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    quad lower = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);

    upper += fx * (__builtin_shufflevector(right_ab, right_cd, 0, 1, 4, 5) - upper);
    lower += fx * (__builtin_shufflevector(right_ab, right_cd, 2, 3, 6, 7) - lower);
    return upper + fy * (lower - upper);
}

/* Bilinear samples of the image along one row v of the window under a warp. row: out, zeros behind it. */
TT_INLINE void sample_row(const struct tt_image *image, const struct tt_warp *warp, bool inside, float v,
                          float row[ROW])
{
    const tt_vec lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const tt_vec x0 = tt_splat(warp->x + warp->a[1] * v), y0 = tt_splat(warp->y + warp->a[3] * v);
    float across[ROW], down[ROW];
    int32_t place[ROW];

    for (int i = 0; i < ROW; i += TT_LANES) {
        tt_vec u = lanes + tt_splat((float)(i - HALF)), x = x0 + warp->a[0] * u, y = y0 + warp->a[2] * u;
        tt_ivec column, line, places;

        if (!inside) {
            x = tt_min(tt_max(x, tt_splat(0)), tt_splat(MOST));
            y = tt_min(tt_max(y, tt_splat(0)), tt_splat(MOST));
        }
        column = __builtin_convertvector(x, tt_ivec);
        line = __builtin_convertvector(y, tt_ivec);
        places = line * SIZE + column;
        tt_store(across + i, x - __builtin_convertvector(column, tt_vec));
        tt_store(down + i, y - __builtin_convertvector(line, tt_vec));
        memcpy(place + i, &places, sizeof places);
    }
    for (int i = 0; i < ROW; i += 4)
        *(quad_memory *)(row + i) = sample_four(image, place + i, *(const quad_memory *)(across + i),
                                                *(const quad_memory *)(down + i));
    for (int i = SIDE; i < ROW; i++)
        row[i] = 0;
}

static void sample(const struct tt_image *image, float x, float y, float rows[SIDE][ROW])
{
    const struct tt_warp shift = {x, y, {1, 0, 0, 1}};

    for (int j = 0; j < SIDE; j++)
        sample_row(image, &shift, is_inside(&shift), (float)(j - HALF), rows[j]);
}

/* --- templates --- */

/* matrix: symmetric, positive; becomes its inverse (Gauss-Jordan; `regular` diagonals need no pivoting). */
static void invert(double matrix[PARAMETERS][PARAMETERS], int size)
{
    for (int k = 0; k < size; k++) {
        double pivot = 1 / matrix[k][k];

        matrix[k][k] = 1;
        for (int j = 0; j < size; j++)
            matrix[k][j] *= pivot;
        for (int i = 0; i < size; i++) {
            double factor = matrix[i][k];

            if (i == k)
                continue;
            matrix[i][k] = 0;
            for (int j = 0; j < size; j++)
                matrix[i][j] -= factor * matrix[k][j];
        }
    }
}

/* The derivatives by the parameters at one pixel: shift, affine part, gain, offset. Without the affine part
 * its four are zero. */
static void derive(const struct tt_template *t, int i, int j, double derivative[PARAMETERS])
{
    double gx = t->across[j][i], gy = t->down[j][i];
    double u = t->is_affine ? i - HALF : 0, v = t->is_affine ? j - HALF : 0;
    const double values[PARAMETERS] = {gx, gy, gx * u, gx * v, gy * u, gy * v, t->value[j][i], 1};

    memcpy(derivative, values, sizeof values);
}

static void compute_inverse(struct tt_template *t)
{
    double hessian[PARAMETERS][PARAMETERS] = {{0}}, total = 0, a, b, c;

    for (int j = 0; j < SIDE; j++)
        for (int i = 0; i < SIDE; i++) {
            double weight = (double)t->weights[i] * t->weights[j], derivative[PARAMETERS];

            derive(t, i, j, derivative);
            total += weight;
            for (int m = 0; m < PARAMETERS; m++)
                for (int n = 0; n < PARAMETERS; n++)
                    hessian[m][n] += weight * derivative[m] * derivative[n];
        }
    a = hessian[0][0] / total;
    b = hessian[0][1] / total;
    c = hessian[1][1] / total;
    t->is_textured = (a + c) / 2 - sqrt((a - c) * (a - c) / 4 + b * b) >= LEAST_CORNER;
    for (int m = 0; m < PARAMETERS; m++)
        hessian[m][m] += m < 2 ? 1e-3 : m < 6 ? STIFFNESS * hessian[m][m] + (t->is_affine ? 1e-6 : 1) : 1e-6;
    invert(hessian, PARAMETERS);
    for (int m = 0; m < PARAMETERS; m++)
        for (int n = 0; n < PARAMETERS; n++)
            t->inverse[m][n] = (float)hessian[m][n];
}

static void compute_moments(struct tt_template *t)
{
    double total = 0, sum = 0, squares = 0;

    for (int j = 0; j < SIDE; j++)
        for (int i = 0; i < SIDE; i++) {
            double weight = (double)t->weights[i] * t->weights[j];

            total += weight;
            sum += weight * t->value[j][i];
            squares += weight * t->value[j][i] * t->value[j][i];
        }
    t->mean = (float)(sum / total);
    t->deviation = (float)sqrt(fmax(squares / total - sum * sum / (total * total), 0));
    t->is_textured = t->is_textured && t->deviation >= LEAST_DEVIATION;
}

void tt_template_take(struct tt_template *made, const struct tt_image *image, float x, float y,
                      bool is_affine)
{
    float near[SIDE][ROW], far[SIDE][ROW];

    fill_weights(made->weights);
    made->is_affine = is_affine;
    sample(image, x, y, made->value);
    sample(image, x - 0.5f, y, near);
    sample(image, x + 0.5f, y, far);
    for (int j = 0; j < SIDE; j++)
        for (int i = 0; i < ROW; i++)
            made->across[j][i] = far[j][i] - near[j][i];
    sample(image, x, y - 0.5f, near);
    sample(image, x, y + 0.5f, far);
    for (int j = 0; j < SIDE; j++)
        for (int i = 0; i < ROW; i++)
            made->down[j][i] = far[j][i] - near[j][i];
    compute_inverse(made);
    compute_moments(made);
}

/* --- registration --- */

TT_INLINE float add_lanes(tt_vec v)
{
    float sum = 0;

    for (int i = 0; i < TT_LANES; i++)
        sum += v[i];
    return sum;
}

SUMMING_CLONES
float tt_align_likeness(const struct tt_template *t, const struct tt_image *image, const struct tt_warp *warp)
{
    tt_vec total = tt_splat(0), sum = total, squares = total, products = total;
    float row[ROW], all, mean, variance;
    bool inside = is_inside(warp);

    for (int j = 0; j < SIDE; j++) {
        sample_row(image, warp, inside, (float)(j - HALF), row);
        for (int i = 0; i < ROW; i += TT_LANES) {
            tt_vec weight = tt_load(t->weights + i) * tt_splat(t->weights[j]), value = tt_load(row + i);

            total += weight;
            sum += weight * value;
            squares += weight * value * value;
            products += weight * value * (tt_load(t->value[j] + i) - tt_splat(t->mean));
        }
    }
    all = add_lanes(total);
    mean = add_lanes(sum) / all;
    variance = add_lanes(squares) / all - mean * mean;
    return add_lanes(products) / all / (t->deviation * sqrtf(variance > 0 ? variance : 0) + 1e-3f);
}

/* The gradient of the squared differences by the parameters. */
SUMMING_CLONES
static void slope(const struct tt_template *t, const struct tt_image *image, const struct tt_warp *warp,
                  float result[PARAMETERS])
{
    tt_vec sums[PARAMETERS], columns[ROW / TT_LANES];
    float row[ROW];
    bool inside = is_inside(warp);

    for (int m = 0; m < PARAMETERS; m++)
        sums[m] = tt_splat(0);
    for (int i = 0; i < ROW; i++)
        row[i] = (float)(i - HALF);
    for (int i = 0; i < ROW; i += TT_LANES)
        columns[i / TT_LANES] = tt_load(row + i);
    for (int j = 0; j < SIDE; j++) {
        const tt_vec v = tt_splat((float)(j - HALF));

        sample_row(image, warp, inside, (float)(j - HALF), row);
        for (int i = 0; i < ROW; i += TT_LANES) {
            tt_vec value = tt_load(t->value[j] + i), u = columns[i / TT_LANES];
            tt_vec off = tt_load(t->weights + i) * tt_splat(t->weights[j]) * (tt_load(row + i) - value);
            tt_vec across = off * tt_load(t->across[j] + i), down = off * tt_load(t->down[j] + i);

            sums[0] += across;
            sums[1] += down;
            sums[2] += across * u;
            sums[3] += across * v;
            sums[4] += down * u;
            sums[5] += down * v;
            sums[6] += off * value;
            sums[7] += off;
        }
    }
    for (int m = 0; m < PARAMETERS; m++)
        result[m] = add_lanes(sums[m]);
}

/* Composes the warp with the inverse of a step; false where that has none. Returns by *moved how far the
 * point went. */
static bool compose(struct tt_warp *warp, const float step[PARAMETERS], bool is_affine, float *moved)
{
    float gain = fmaxf(1 + step[6], LEAST_GAIN), part = is_affine ? 1 / gain : 0;
    float p = 1 + step[2] * part, q = step[3] * part, r = step[4] * part, s = 1 + step[5] * part;
    float determinant = p * s - q * r, a[4], dx, dy;

    if (!(fabsf(determinant) > 0.1f))
        return false;
    a[0] = (warp->a[0] * s - warp->a[1] * r) / determinant;
    a[1] = (warp->a[1] * p - warp->a[0] * q) / determinant;
    a[2] = (warp->a[2] * s - warp->a[3] * r) / determinant;
    a[3] = (warp->a[3] * p - warp->a[2] * q) / determinant;
    dx = -(a[0] * step[0] + a[1] * step[1]) / gain;
    dy = -(a[2] * step[0] + a[3] * step[1]) / gain;
    *warp = (struct tt_warp){warp->x + dx, warp->y + dy, {a[0], a[1], a[2], a[3]}};
    *moved = hypotf(dx, dy);
    return true;
}

/* Not mirrored, not more than twice or less than half as large as the template; within reach. */
static bool makes_sense(const struct tt_warp *warp)
{
    float determinant = warp->a[0] * warp->a[3] - warp->a[1] * warp->a[2], middle = (SIZE - 1) / 2.f;

    return determinant > 0.25f && determinant < 4 && fabsf(warp->x - middle) <= REACH &&
           fabsf(warp->y - middle) <= REACH;
}

bool tt_align(const struct tt_template *wanted, const struct tt_image *image, struct tt_warp *warp)
{
    float moved = 1;

    for (int i = 0; i < STEPS && moved >= STILL; i++) {
        float gradient[PARAMETERS], step[PARAMETERS] = {0};

        slope(wanted, image, warp, gradient);
        for (int m = 0; m < PARAMETERS; m++)
            for (int n = 0; n < PARAMETERS; n++)
                step[m] += wanted->inverse[m][n] * gradient[n];
        if (!compose(warp, step, wanted->is_affine, &moved) || !makes_sense(warp))
            return false;
    }
    return true;
}
