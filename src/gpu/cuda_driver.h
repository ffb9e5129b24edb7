// The CUDA driver's C interface, as far as it is used: own declarations of its types and values, and a table of its
// entry points filled from libcuda.so.1 at run time, so that neither headers nor libraries of CUDA are needed to build
// or to start. Names follow the driver's; cuda.h of CUDA 13.0 is the source of the values. Used by CudaDevice only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace monostep::gpu {

// CUresult; the values that are told apart.
enum class DriverStatus : int { kSuccess = 0, kOutOfMemory = 2, kNoDevice = 100, kNotReady = 600 };

// Handles of the driver's objects.
using DriverContext = struct DriverContextObject*;
using DriverModule = struct DriverModuleObject*;
using DriverFunction = struct DriverFunctionObject*;
using DriverStream = struct DriverStreamObject*;
using DriverEvent = struct DriverEventObject*;
using DriverGraph = struct DriverGraphObject*;
using DriverGraphExec = struct DriverGraphExecObject*;

enum class DeviceAttribute : int {  // CUdevice_attribute
  kNumSms = 16,
  kL2Bytes = 38,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kCooperativeLaunch = 95,
  kMaxSharedBytesOptIn = 97,
};
enum class FunctionAttribute : int { kMaxDynamicSharedBytes = 8 };  // CUfunction_attribute
enum class CaptureMode : int { kThreadLocal = 1 };                  // CUstreamCaptureMode
inline constexpr unsigned kHostAllocPortable = 1;                   // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kHostAllocMapped = 2;                     // CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr unsigned kStreamNonBlocking = 1;                   // CU_STREAM_NON_BLOCKING

struct LaunchAttribute {  // CUlaunchAttribute
  static constexpr uint32_t kCooperative = 2;
  uint32_t id;
  uint32_t padding;
  union {
    int32_t cooperative;
    uint64_t words[8];
  };
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {  // CUlaunchConfig
  uint32_t num_ctas[3];
  uint32_t threads[3];
  uint32_t shared_bytes;
  DriverStream stream;
  LaunchAttribute* attributes;
  uint32_t num_attributes;
};
static_assert(sizeof(LaunchConfig) == 56);

struct Driver {
  DriverStatus (*init)(unsigned flags);
  DriverStatus (*get_error_name)(DriverStatus status, const char** name);
  DriverStatus (*get_error_string)(DriverStatus status, const char** words);

  DriverStatus (*device_get_count)(int* count);
  DriverStatus (*device_get)(int* device, int ordinal);
  DriverStatus (*device_get_name)(char* name, int name_bytes, int device);
  DriverStatus (*device_get_attribute)(int* value, DeviceAttribute attribute, int device);
  DriverStatus (*primary_context_retain)(DriverContext* context, int device);
  DriverStatus (*primary_context_release)(int device);
  DriverStatus (*context_set_current)(DriverContext context);

  DriverStatus (*mem_get_info)(size_t* free_bytes, size_t* total_bytes);
  DriverStatus (*mem_alloc)(uint64_t* memory, size_t num_bytes);
  DriverStatus (*mem_free)(uint64_t memory);
  DriverStatus (*mem_host_alloc)(void** memory, size_t num_bytes, unsigned flags);
  DriverStatus (*mem_host_get_device_pointer)(uint64_t* device, void* host, unsigned flags);
  DriverStatus (*mem_free_host)(void* memory);
  DriverStatus (*memcpy_to_device)(uint64_t to, const void* from, size_t num_bytes, DriverStream stream);
  DriverStatus (*memcpy_to_host)(void* to, uint64_t from, size_t num_bytes, DriverStream stream);
  DriverStatus (*memset_bytes)(uint64_t to, unsigned char value, size_t num_bytes, DriverStream stream);

  DriverStatus (*module_load)(DriverModule* module, const void* image, unsigned num_options, int* options,
                              void** values);
  DriverStatus (*module_unload)(DriverModule module);
  DriverStatus (*module_get_function)(DriverFunction* function, DriverModule module, const char* name);
  DriverStatus (*function_set_attribute)(DriverFunction function, FunctionAttribute attribute, int value);
  DriverStatus (*launch_kernel)(const LaunchConfig* config, DriverFunction function, void** params, void** extra);

  DriverStatus (*stream_create)(DriverStream* stream, unsigned flags);
  DriverStatus (*stream_destroy)(DriverStream stream);
  DriverStatus (*stream_synchronize)(DriverStream stream);
  DriverStatus (*stream_query)(DriverStream stream);
  DriverStatus (*event_create)(DriverEvent* event, unsigned flags);
  DriverStatus (*event_destroy)(DriverEvent event);
  DriverStatus (*event_record)(DriverEvent event, DriverStream stream);
  DriverStatus (*event_synchronize)(DriverEvent event);
  DriverStatus (*event_elapsed_time)(float* ms, DriverEvent begin, DriverEvent end);

  DriverStatus (*stream_begin_capture)(DriverStream stream, CaptureMode mode);
  DriverStatus (*stream_end_capture)(DriverStream stream, DriverGraph* graph);
  DriverStatus (*graph_instantiate)(DriverGraphExec* exec, DriverGraph graph, unsigned long long flags);
  DriverStatus (*graph_launch)(DriverGraphExec exec, DriverStream stream);
  DriverStatus (*graph_destroy)(DriverGraph graph);
  DriverStatus (*graph_exec_destroy)(DriverGraphExec exec);
};

// Opens the library, which stays open. Errors: kUnavailable (no such library, or one without an entry point).
Result<Driver> open_driver(const char* library = "libcuda.so.1");

// The error of a failed call: its name, CUDA's name and words for the status, and what the caller adds.
Error driver_error(const Driver& driver, DriverStatus status, std::string_view call, std::string_view detail = {});

}  // namespace monostep::gpu
