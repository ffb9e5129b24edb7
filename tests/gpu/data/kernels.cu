// Kernels of known needs for cubin_test.cc. kernels.cubin is made from this file by
//   nvcc -arch=sm_90a -cubin --ptxas-options=-v -o kernels.cubin kernels.cu
// (CUDA 13.0); the numbers in the test are those that ptxas printed then.
struct Params {
  float* x;
  int count;
  int unused[6];
};

extern "C" __global__ void __launch_bounds__(256, 1) shares(const __grid_constant__ Params p) {
  __shared__ float values[300];
  values[threadIdx.x] = p.x[threadIdx.x];
  __syncthreads();
  p.x[threadIdx.x] = values[(threadIdx.x + 1) % 256];
}

// 48 values a thread in 32 registers.
extern "C" __global__ void __launch_bounds__(1024, 2) spills(Params p) {
  float a[48];
#pragma unroll
  for (int i = 0; i < 48; i++) a[i] = p.x[i * 1024 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 48; i++) a[i] = a[i] * a[(i + 17) % 48] + a[(i * 7) % 48];
#pragma unroll
  for (int i = 0; i < 48; i++) a[i] = a[i] * a[(i + 11) % 48] + a[(i * 5) % 48];
#pragma unroll
  for (int i = 0; i < 48; i++) p.x[i * 1024 + threadIdx.x] = a[i];
}

// An array in memory, no spill.
extern "C" __global__ void indexes(Params p) {
  float a[64];
  for (int i = 0; i < p.count; i++) a[(i * p.count) & 63] = p.x[i];
  p.x[0] = a[p.count & 63];
}

// Recursion: the stack's size is not known to the compiler.
__device__ __noinline__ float recurse(float x, int depth) { return depth == 0 ? x : recurse(x * 1.5f, depth - 1) + x; }
extern "C" __global__ void calls(float* x, int depth) { x[0] = recurse(x[1], depth); }

// Nothing but registers; shared memory of the launch's size.
extern "C" __global__ void plain(Params p) {
  extern __shared__ float values[];
  values[threadIdx.x] = p.x[0];
  __syncthreads();
  p.x[1] = values[threadIdx.x ^ 1];
}
