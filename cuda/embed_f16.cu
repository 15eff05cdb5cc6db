/* cuda/embed_f16.cu: small's correlation embeddings: local 4D correlation and its encoder in one kernel, so
 * that no volume leaves the chip.
 *
 * A block takes a query point at a level and 24 frames, and goes down the 8 rows of the patches. Frames are
 * columns of every product here.
 * 1. Products of the 8 pixels of a row with the support: each warp three frames. The 64 rows of the product
 *    are the 4×4 windows of support positions that the encoder's four positions (px, py) see, overlaps
 *    repeated. A lane's 16 bytes of a feature serve two steps of k as they lie in registers.
 * 2. Two rows of products, as halves, times a 16×8 matrix of bilinear weights give a row of neighbourhood
 *    positions; to shared memory as [x][frame][64 and 8].
 * 3. The first convolution, accumulated row by row, 48 sums a lane: four warps for each orientation, of which
 *    two take the encoder positions of either px, half of the channels each. Direct: a neighbourhood position
 *    falls under one tap of each encoder position that sees it; its inputs are the support positions.
 * Transposed: it is itself an input; the taps of an encoder position fall on its window. So each step of k is
 * elements of one window. After the last row: group norm and ReLU, second convolution, group norm, ReLU, out.
 *
 * Shared memory: 27,904 + 128·C bytes, 60,672 at C = 256. Features, support and the first convolution's
 * weights (0.56 MB, through L1, one neighbourhood position ahead) are read once a block. Sums: in the order
 * of the rows; a frame's do not depend on the others.
 */
#include "cuda/embed_encoder_f16.cuh"

namespace
{

template <bool K16> __global__ void __launch_bounds__(32 * WARPS, 1) embed(const struct tt_k_embed_f16 e)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const struct tt_k_embed_level &l = e.level[blockIdx.z];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, query = blockIdx.x,
              first = blockIdx.y * FRAMES;
    const int orientation = warp / 4, px = warp / 2 % 2, half = warp % 2;
    float *scalars = reinterpret_cast<float *>(shared + VOLUME_BYTES);
    unsigned char *support = shared + VOLUME_BYTES + SCALARS * 4;
    tt_let_next();
    load_scalars(scalars, l);
    if (threadIdx.x < SIDE * FRAMES) /* behind the windows: two elements and six zeros */
        *reinterpret_cast<uint4 *>(shared + threadIdx.x / FRAMES * COLUMN + threadIdx.x % FRAMES * LINE +
                                   128) = make_uint4(0, 0, 0, 0);
    tt_wait_previous();
    patch<TILES> p;
    place(p, l, e.state + (size_t)query * e.frames * 4, first + warp * TILES, e.frames);
    pixels<TILES> b[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < 2 || l.channels > 64)
            load(b[i], p, i);
    const float *from = l.support + (size_t)query * e.row;
    if (l.channels == 64)
        load_support<4>(support, from, 4);
    else
        load_support<8>(support, from, l.channels == 128 ? 5 : 6);
    __syncthreads();

    const uint32_t row_address = tt_shared_address(support) + lane % 16 * pitch(l.channels) + lane / 16 * 16;
    const uint32_t volume_address = tt_shared_address(shared) + lane % 8 * LINE;
    const row_of_weights r = {(const uint4 *)l.weight[orientation] + half * 64 + lane, orientation, px,
                              3 * UNIT - half * 32};
    uint32_t above[TILES][4][2], below[TILES][4][2];
    window_acc acc = {};
#pragma unroll 1
    for (int y = -1; y < SIDE; y++) {
        products<K16>(below, b, p, l.channels, l.size, row_address, y + 1);
        if (y >= 0) {
            weights w;
            r.first(w, y);
            __syncthreads(); /* the row before has been read */
            blend<K16>(shared + warp * TILES * LINE, above, below, p, y);
            __syncthreads();
            first_conv<K16>(acc, w, r, y, volume_address);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++)
#pragma unroll
            for (int u = 0; u < 4; u++)
                above[j][u][0] = below[j][u][0], above[j][u][1] = below[j][u][1];
    }

    uint2 *act = reinterpret_cast<uint2 *>(shared) + orientation * 16 * TILES * 32 + lane;
    first_norm(acc, act, reinterpret_cast<float *>(support) + (orientation * 2 + half) * 8 * FRAMES,
               scalars + half * 32, px, half);
    __syncthreads();
    const int quarter = warp % 4, c = quarter * 32;
    second_conv<K16>(act, (const uint4 *)l.weight2 + quarter / 2 * 16 * UNIT + quarter % 2 * 64 + lane,
                     scalars + 192 + c,
                     (__half *)l.out + ((size_t)query * e.frames + first) * e.out_row + orientation * OUT + c,
                     e.out_row, e.frames - first);
}

} // namespace

extern "C" int tt_k_embed_f16(const struct tt_k_embed_f16 *e, enum tt_k_mma mma, void *stream)
{
    int widest = 0;
    if (e->levels < 1 || e->levels > TT_K_EMBED_LEVELS || e->queries < 1 || e->frames < 1 || e->out_row % 2)
        return cudaErrorInvalidValue;
    for (int i = 0; i < e->levels; i++) {
        const int c = e->level[i].channels;
        if (c != 64 && c != 128 && c != 256)
            return cudaErrorInvalidValue;
        widest = c > widest ? c : widest;
    }
    const size_t bytes = VOLUME_BYTES + SCALARS * 4 + 64 * (2 * widest + 16);
    const dim3 grid(e->queries, tt_div_up(e->frames, FRAMES), e->levels);
    cudaError_t error = mma == TT_MMA_K16 ? tt_shared(embed<true>, bytes) : tt_shared(embed<false>, bytes);
    if (error)
        return error;
    return tt_launch(mma == TT_MMA_K16 ? embed<true> : embed<false>, grid, 32 * WARPS, bytes, stream, *e);
}
