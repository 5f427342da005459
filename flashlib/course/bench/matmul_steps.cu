// A matmul of square matrices in 16 bits, step by step: who loads what, and from where. Row-major; n is a
// multiple of 32. Compiled and called by flashlib/course/bench/matmul_steps.py; notebook 02 shows the result.
#include <cuda_fp16.h>

// One thread an element of C, 32 × 32 threads a block. The 32 threads of a warp differ in x: they stand
// side by side in a row of C, and read side by side in B; or in a column of C, a row of A apart.
template <bool ALONG_ROW>
__global__ void naive(const __half *A, const __half *B, __half *C, int n) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    int row = ALONG_ROW ? y : x, col = ALONG_ROW ? x : y;
    float sum = 0.0f;
    for (int k = 0; k < n; k++)
        sum += __half2float(A[(size_t)row * n + k]) * __half2float(B[(size_t)k * n + col]);
    C[(size_t)row * n + col] = __float2half(sum);
}

// One block a tile of C: all its threads load a tile of A and one of B into shared memory, an element
// each, and then all read both from there.
template <int TILE>
__global__ void tiled(const __half *A, const __half *B, __half *C, int n) {
    __shared__ __half a[TILE][TILE], b[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int first = 0; first < n; first += TILE) {
        a[y][x] = A[(size_t)row * n + first + x];
        b[y][x] = B[(size_t)(first + y) * n + col];
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += __half2float(a[y][k]) * __half2float(b[k][x]);
        __syncthreads();
    }
    C[(size_t)row * n + col] = __float2half(sum);
}

// C = A·B on a stream; returns CUDA's error code, or -1 for a step that there is not.
extern "C" int matmul(int step, const __half *A, const __half *B, __half *C, int n, cudaStream_t stream) {
    int edge = step == 2 ? 16 : 32;
    dim3 threads(edge, edge), blocks(n / edge, n / edge);
    if (step == 0)
        naive<true><<<blocks, threads, 0, stream>>>(A, B, C, n);
    else if (step == 1)
        naive<false><<<blocks, threads, 0, stream>>>(A, B, C, n);
    else if (step == 2)
        tiled<16><<<blocks, threads, 0, stream>>>(A, B, C, n);
    else if (step == 3)
        tiled<32><<<blocks, threads, 0, stream>>>(A, B, C, n);
    else
        return -1;
    return cudaGetLastError();
}
