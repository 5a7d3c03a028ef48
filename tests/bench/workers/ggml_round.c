/* Rounds a matrix by one of ggml's types, and prints what the codes stand for: ik_llama.cpp's quantizers by themselves.

   usage: ggml_round TYPE ROWS COLUMNS HAS_IMATRIX < f32 weights, then f32 importances of columns > f32 values
   The bytes of the codes go to standard error. TYPE is a number of `enum ggml_type`.

   gcc -O1 -I ggml/include -c ggml_round.c
   g++ ggml_round.o build/ggml/src/libggml.a -fopenmp -lpthread -lm -ldl -o ggml_round */

#include <stdio.h>
#include <stdlib.h>

#include "ggml.h"

int main(int count, char **arguments) {
    if (count != 5) return 64;
    enum ggml_type type = (enum ggml_type)atoi(arguments[1]);
    long rows = atol(arguments[2]), columns = atol(arguments[3]);
    struct ggml_init_params parameters = {1 << 20, NULL, 0};
    ggml_init(parameters);
    float *weights = malloc(sizeof(float) * rows * columns), *importances = NULL;
    if (fread(weights, sizeof(float) * columns, rows, stdin) != (size_t)rows) return 66;
    if (atoi(arguments[4])) {
        importances = malloc(sizeof(float) * columns);
        if (fread(importances, sizeof(float), columns, stdin) != (size_t)columns) return 66;
    }
    size_t row_bytes = ggml_row_size(type, columns);
    char *codes = malloc(row_bytes * rows + 64);
    struct quantize_user_data options = {0};
    size_t size = ggml_quantize_chunk(type, weights, codes, 0, rows, columns, importances, &options);
    ggml_type_traits_t traits = ggml_internal_get_type_traits(type);
    for (long row = 0; row < rows; row++) traits.to_float(codes + row * row_bytes, weights + row * columns, columns);
    fwrite(weights, sizeof(float) * columns, rows, stdout);
    fprintf(stderr, "%zu\n", size);
    return 0;
}
