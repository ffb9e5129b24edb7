// A driver table whose entry points record their calls and do nothing (copies excepted: device memory is host memory),
// for tests of CudaDevice without a GPU. One state for the process: a test starts with FakeDriver::reset().
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cuda_driver.h"

namespace monostep::gpu {

struct FakeDriver {
  std::vector<std::string> calls;               // names, in order
  std::map<std::string, DriverStatus> answers;  // of calls that fail
  int num_devices = 1;
  int num_live = 0;  // objects and memory that were made and not destroyed
  std::vector<std::byte> params;
  LaunchConfig launch = {};
  LaunchAttribute launch_attribute = {};
  int params_bytes = 0;  // how many bytes launch_kernel copies
  int max_shared_bytes = 0;
  std::map<void*, std::unique_ptr<std::byte[]>> memory;  // what is live, so that what is abandoned is no leak

  static FakeDriver& state() {
    static FakeDriver state;
    return state;
  }
  static void reset() { state() = FakeDriver(); }

  static DriverStatus answer(const char* call) {
    state().calls.emplace_back(call);
    const auto found = state().answers.find(call);
    return found == state().answers.end() ? DriverStatus::kSuccess : found->second;
  }
  // The answer of a call that makes (+1) or destroys (-1) an object.
  static DriverStatus answer(const char* call, int change) {
    const DriverStatus status = answer(call);
    if (status == DriverStatus::kSuccess) state().num_live += change;
    return status;
  }
  static void* reserve(size_t num_bytes) {
    auto bytes = std::make_unique<std::byte[]>(num_bytes);
    void* const at = bytes.get();
    state().memory.emplace(at, std::move(bytes));
    return at;
  }
  template <typename Handle>
  static DriverStatus make(const char* call, Handle* handle) {
    static int object = 0;
    const DriverStatus status = answer(call, 1);
    if (status == DriverStatus::kSuccess) *handle = reinterpret_cast<Handle>(&object);
    return status;
  }

  static int count(std::string_view call) {
    int num_calls = 0;
    for (const std::string& made : state().calls) num_calls += made == call ? 1 : 0;
    return num_calls;
  }

  static Driver table();
};

inline void fake_device_calls(Driver& driver) {
  using F = FakeDriver;
  driver.init = [](unsigned) { return F::answer("init"); };
  driver.get_error_name = [](DriverStatus status, const char** name) {
    *name = status == DriverStatus::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return DriverStatus::kSuccess;
  };
  driver.get_error_string = [](DriverStatus, const char** words) {
    *words = "words of the driver";
    return DriverStatus::kSuccess;
  };
  driver.device_get_count = [](int* count) {
    *count = F::state().num_devices;
    return F::answer("device_get_count");
  };
  driver.device_get = [](int* device, int ordinal) {
    *device = ordinal;
    return F::answer("device_get");
  };
  driver.device_get_name = [](char* name, int, int) {
    std::strcpy(name, "fake");
    return F::answer("device_get_name");
  };
  driver.device_get_attribute = [](int* value, DeviceAttribute attribute, int) {
    *value = 1000 + static_cast<int>(attribute);
    return F::answer("device_get_attribute");
  };
  driver.primary_context_retain = [](DriverContext* context, int) { return F::make("context_retain", context); };
  driver.primary_context_release = [](int) { return F::answer("context_release", -1); };
  driver.context_set_current = [](DriverContext) { return F::answer("context_set_current"); };
}

inline void fake_memory_calls(Driver& driver) {
  using F = FakeDriver;
  driver.mem_get_info = [](size_t* free_bytes, size_t* total_bytes) {
    *free_bytes = 7;
    *total_bytes = 11;
    return F::answer("mem_get_info");
  };
  driver.mem_alloc = [](uint64_t* memory, size_t num_bytes) {
    const DriverStatus status = F::answer("mem_alloc", 1);
    if (status == DriverStatus::kSuccess) *memory = reinterpret_cast<uint64_t>(F::reserve(num_bytes));
    return status;
  };
  driver.mem_free = [](uint64_t memory) {
    F::state().memory.erase(reinterpret_cast<void*>(memory));
    return F::answer("mem_free", -1);
  };
  driver.mem_host_alloc = [](void** memory, size_t num_bytes, unsigned flags) {
    if (flags != (kHostAllocPortable | kHostAllocMapped)) return DriverStatus{1};
    const DriverStatus status = F::answer("mem_host_alloc", 1);
    if (status == DriverStatus::kSuccess) *memory = F::reserve(num_bytes);
    return status;
  };
  driver.mem_host_get_device_pointer = [](uint64_t* device, void* host, unsigned) {
    *device = reinterpret_cast<uint64_t>(host);
    return F::answer("mem_host_get_device_pointer");
  };
  driver.mem_free_host = [](void* memory) {
    F::state().memory.erase(memory);
    return F::answer("mem_free_host", -1);
  };
  driver.memcpy_to_device = [](uint64_t to, const void* from, size_t num_bytes, DriverStream) {
    std::memcpy(reinterpret_cast<void*>(to), from, num_bytes);
    return F::answer("memcpy_to_device");
  };
  driver.memcpy_to_host = [](void* to, uint64_t from, size_t num_bytes, DriverStream) {
    std::memcpy(to, reinterpret_cast<const void*>(from), num_bytes);
    return F::answer("memcpy_to_host");
  };
  driver.memset_bytes = [](uint64_t to, unsigned char value, size_t num_bytes, DriverStream) {
    std::memset(reinterpret_cast<void*>(to), value, num_bytes);
    return F::answer("memset_bytes");
  };
}

inline void fake_kernel_calls(Driver& driver) {
  using F = FakeDriver;
  driver.module_load = [](DriverModule* module, const void*, unsigned, int*, void**) {
    return F::make("module_load", module);
  };
  driver.module_unload = [](DriverModule) { return F::answer("module_unload", -1); };
  driver.module_get_function = [](DriverFunction*, DriverModule, const char*) {
    return F::answer("module_get_function");
  };
  driver.function_set_attribute = [](DriverFunction, FunctionAttribute, int value) {
    F::state().max_shared_bytes = value;
    return F::answer("function_set_attribute");
  };
  driver.launch_kernel = [](const LaunchConfig* config, DriverFunction, void** params, void**) {
    F& state = F::state();
    state.launch = *config;
    if (config->num_attributes > 0) state.launch_attribute = config->attributes[0];
    const auto* bytes = static_cast<const std::byte*>(params[0]);
    state.params.assign(bytes, bytes + state.params_bytes);
    return F::answer("launch_kernel");
  };
}

inline void fake_stream_calls(Driver& driver) {
  using F = FakeDriver;
  driver.stream_create = [](DriverStream* stream, unsigned) { return F::make("stream_create", stream); };
  driver.stream_destroy = [](DriverStream) { return F::answer("stream_destroy", -1); };
  driver.stream_synchronize = [](DriverStream) { return F::answer("stream_synchronize"); };
  driver.stream_query = [](DriverStream) { return F::answer("stream_query"); };
  driver.event_create = [](DriverEvent* event, unsigned) { return F::make("event_create", event); };
  driver.event_destroy = [](DriverEvent) { return F::answer("event_destroy", -1); };
  driver.event_record = [](DriverEvent, DriverStream) { return F::answer("event_record"); };
  driver.event_synchronize = [](DriverEvent) { return F::answer("event_synchronize"); };
  driver.event_elapsed_time = [](float* ms, DriverEvent, DriverEvent) {
    *ms = 2.5f;
    return F::answer("event_elapsed_time");
  };
  driver.stream_begin_capture = [](DriverStream, CaptureMode) { return F::answer("stream_begin_capture"); };
  driver.stream_end_capture = [](DriverStream, DriverGraph* graph) { return F::make("stream_end_capture", graph); };
  driver.graph_instantiate = [](DriverGraphExec* exec, DriverGraph, unsigned long long) {
    return F::make("graph_instantiate", exec);
  };
  driver.graph_launch = [](DriverGraphExec, DriverStream) { return F::answer("graph_launch"); };
  driver.graph_destroy = [](DriverGraph) { return F::answer("graph_destroy", -1); };
  driver.graph_exec_destroy = [](DriverGraphExec) { return F::answer("graph_exec_destroy", -1); };
}

inline Driver FakeDriver::table() {
  Driver driver = {};
  fake_device_calls(driver);
  fake_memory_calls(driver);
  fake_kernel_calls(driver);
  fake_stream_calls(driver);
  return driver;
}

}  // namespace monostep::gpu
