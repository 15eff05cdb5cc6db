/* tests/fuzz/fuzz_safetensors.c: any bytes as a safetensors file. They are refused with a text, or become
 * tensors every byte of which can be read; as a model they are refused unless they are one.
 */
#include "core/weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void read_whole(const struct tt_tensor *tensor, const uint8_t *file, size_t size)
{
    static const int bytes[] = {[TT_F32] = 4, [TT_F16] = 2, [TT_U8] = 1, [TT_I32] = 4, [TT_I64] = 8};
    const uint8_t *start = tensor->data;
    int64_t count = 1;
    float *copy;

    for (int d = 0; d < TT_TENSOR_RANK; d++)
        count *= tensor->shape[d];
    require(count == tensor->count && count >= 0);
    require(start >= file && start + count * bytes[tensor->dtype] <= file + size);
    copy = tt_tensor_to_f32(tensor);
    require((copy != NULL) == (tensor->dtype == TT_F32 || tensor->dtype == TT_F16));
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a", "b", "c", "clip", "torch_pips_mixer.input_proj.weight"};
    struct tt_weights *tensors = NULL;
    struct tt_error err = {TT_OK, ""};
    uint8_t *copy = malloc(size ? size : 1); /* of the exact size, so that a byte too far is seen */

    require(copy != NULL);
    if (size)
        memcpy(copy, data, size);
    if (tt_tensors_from_memory(&tensors, "fuzz", copy, size, &err) == TT_OK) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            const struct tt_tensor *tensor = tt_weights_find(tensors, names[i]);

            if (tensor)
                read_whole(tensor, copy, size);
        }
        tt_weights_close(tensors);
    } else {
        require(tensors == NULL && err.status == TT_BAD_INPUT && err.text[0]);
    }
    tensors = NULL;
    if (tt_weights_from_memory(&tensors, "fuzz", copy, size, &err) == TT_OK)
        tt_weights_close(tensors);
    free(copy);
    return 0;
}
